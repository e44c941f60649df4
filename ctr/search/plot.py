"""The plot of a search: the log loss of each trial, in order and by learning rate."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ctr.errors import DataError
from ctr.outputs import replace_file, require_writable
from ctr.packages import require_packages
from ctr.search.tuning import Tuned

_SUFFIXES = (".png", ".svg")
_SHOWN = 1.1  # times the best log loss; worse trials are only counted


def require_plot(file: Path) -> None:
    """Raises DataError unless the suffix is .png or .svg, and matplotlib is installed."""
    if file.suffix not in _SUFFIXES:
        raise DataError(f"{file}: a plot is written as PNG or SVG: give a name that ends in .png or .svg.")
    require_writable(file, make_folders=False)
    require_packages("the plot of a search", {"matplotlib.figure": "matplotlib"})


def write_plot(tuned: Tuned, file: Path) -> None:
    """Write the plot, which replaces an earlier file. Raises DataError if the disk refuses."""
    from matplotlib.figure import Figure

    shown = [each for each in tuned.tried if each.judged.loss <= _SHOWN * tuned.best.judged.loss]
    numbers, alphas, losses, passes = (
        np.array(column)
        for column in zip(
            *((t.number, t.settings["alpha"], t.judged.loss, t.judged.best_pass) for t in shown), strict=True
        )
    )
    figure = Figure(figsize=(7.2, 7.2), layout="constrained")
    by_trial, by_alpha = figure.subplots(2, 1, sharey=True)
    by_trial.plot(numbers, losses, "o", label="a trial")
    by_trial.step(numbers, np.minimum.accumulate(losses), where="post", label="the best so far")
    if (default := tuned.default_loss) is not None and default <= _SHOWN * tuned.best.judged.loss:
        by_trial.axhline(default, color="grey", linestyle="--", linewidth=1, label="defaults, one pass")
    hidden = len(tuned.tried) - len(shown)
    note = f" ({hidden} not shown: above {_SHOWN:g} times the best)" if hidden else ""
    by_trial.set(title=f"Settings scored on {tuned.scored_on}", xlabel=f"trial{note}")
    by_trial.legend()
    points = by_alpha.scatter(alphas, losses, c=passes, cmap="viridis")
    best = tuned.best
    by_alpha.scatter(
        [best.settings["alpha"]],
        [best.judged.loss],
        s=160,
        facecolors="none",
        edgecolors="C3",
        label="chosen",
    )
    by_alpha.set(xscale="log", xlabel="learning rate alpha")
    by_alpha.legend()
    figure.colorbar(points, ax=by_alpha, label="passes over the data")
    for axes in (by_trial, by_alpha):
        axes.set_ylabel("log loss on validation rows (nats)")
        axes.grid(visible=True, alpha=0.3)
    with replace_file(file, "the plot") as draft:
        figure.savefig(draft, dpi=150)
