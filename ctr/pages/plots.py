"""Plots of evaluated models as SVG inside a page."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from math import log
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Facts = Mapping[str, Any]
"""A model's metrics, as `ctr evaluate --json` has them."""

_INK, _SOFT, _LINE = "#1c2126", "#59636e", "#d9dee3"
_COLOURS = ("#0b62a4", "#d1610f", "#2a8a4a", "#8a4fa3", "#5b5b5b", "#b3234f")
_VARIABLES = {
    _INK: "--ink",
    _SOFT: "--soft",
    _LINE: "--line",
    **{colour: f"--model-{i}" for i, colour in enumerate(_COLOURS)},
}
"""The page's CSS variables, for its light or dark mode, by the colours that are replaced by them."""
_STYLE = {
    "svg.fonttype": "none",  # text stays text, which can be selected and has the page's font
    "svg.hashsalt": "ctr",  # equal numbers give equal bytes
    "font.family": "sans-serif",
    "font.size": 12,
    "text.color": _INK,
    "text.parse_math": False,
    "axes.edgecolor": _LINE,
    "axes.labelcolor": _SOFT,
    "axes.labelsize": 12,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.grid": True,
    "grid.color": _LINE,
    "grid.linewidth": 0.8,
    "xtick.color": _SOFT,
    "ytick.color": _SOFT,
    "xtick.labelsize": 12,
    "ytick.labelsize": 12,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "lines.linewidth": 1.8,
    "lines.solid_capstyle": "round",
    "legend.frameon": False,
    "legend.handlelength": 1.4,
}
_REFERENCE: dict[str, Any] = {"color": _SOFT, "linewidth": 1, "linestyle": ":"}
"""The style of lines to compare with: a random order, or correct predictions."""
_WIDTH, HEIGHT = 4.4, 3.4  # inches of 72 points: the width of a phone, where a point is a pixel
_RATES = (1e-6, 1e-5, 1e-4, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99, 0.999, 0.9999)


def roc(axes: Axes, models: Mapping[str, Facts]) -> None:
    """True positive rate by false positive rate."""
    axes.plot([0, 1], [0, 1], **_REFERENCE)
    for name, facts, colour in _each(models):
        points = facts["curves"]["roc"]
        x, y = (_column(points, key) for key in ("false_positive_rate", "true_positive_rate"))
        axes.plot(x, y, color=colour, label=name)
    axes.set(xlabel="false positive rate", ylabel="true positive rate", xlim=(0, 1), ylim=(0, 1.01))


def precision_recall(axes: Axes, models: Mapping[str, Facts]) -> None:
    """Precision by recall; the dotted line is the click rate, the precision of a random order."""
    for name, facts, colour in _each(models):
        points = facts["curves"]["precision_recall"]
        axes.plot(_column(points, "recall"), _column(points, "precision"), color=colour, label=name)
        axes.axhline(facts["base_rate"], **_REFERENCE)
    axes.set(xlabel="recall (share of clicks found)", ylabel="precision (click rate)", xlim=(0, 1))
    axes.set_ylim(bottom=0)


def reliability(axes: Axes, models: Mapping[str, Facts]) -> None:
    """Click rate with its 95% interval by prediction, on axes of log-odds."""
    series = [
        (name, [row for row in facts["reliability"] if 0 < row["observed_rate"] < 1], colour)
        for name, facts, colour in _each(models)
    ]
    rates = [
        row[key]
        for _, rows, _ in series
        for row in rows
        for key in ("mean_prediction", "observed_rate", "low", "high")
        if row[key]
    ]
    ends = [_odds(min(rates, default=0.25)) - 0.2, _odds(max(rates, default=0.75)) + 0.2]
    axes.plot(ends, ends, **_REFERENCE)
    for name, rows, colour in series:
        x = [_odds(row["mean_prediction"]) for row in rows]
        axes.vlines(x, *([_odds(row[key]) for row in rows] for key in ("low", "high")), color=colour, lw=1.2)
        axes.plot(x, [_odds(row["observed_rate"]) for row in rows], "o-", color=colour, label=name, ms=4)
    _rate_ticks(axes, ends, "x")
    _rate_ticks(axes, ends, "y")
    axes.set(xlabel="mean prediction", ylabel="observed click rate", xlim=ends, ylim=ends)


def lift(axes: Axes, models: Mapping[str, Facts]) -> None:
    """Lift of each tenth of the examples, the highest predictions first."""
    for name, facts, colour in _each(models):
        lifts = _column(facts["curves"]["deciles"], "lift")
        axes.plot(range(1, len(lifts) + 1), lifts, "o-", color=colour, label=name, ms=4)
    axes.axhline(1, **_REFERENCE)
    axes.set(xlabel="tenth of the examples, highest first", ylabel="lift (click rate / overall)")
    axes.set_xticks(range(1, 11))
    axes.set_ylim(bottom=0)


def scores(axes: Axes, models: Mapping[str, Facts]) -> None:
    """Cumulative distributions of the predictions, of examples with a click and of the others."""
    ends = []
    for name, facts, colour in _each(models):
        bins = facts["curves"]["scores"]
        edges = [_odds(bins[0]["low"]), *(_odds(each["high"]) for each in bins)] if bins else [0.0]
        ends += [edges[0], edges[-1]]
        for kind, rows, style in (("negative", "no click", "-"), ("positive", "click", "--")):
            weights = [0.0, *_column(bins, kind)]
            shares = [part / (sum(weights) or 1.0) * 100 for part in accumulate(weights)]
            label = rows if len(models) == 1 else f"{name}, {rows}"
            axes.plot(edges, shares, style, color=colour, label=label, linewidth=1.5)
    limits = [min(ends), max(ends) + 1e-9]
    _rate_ticks(axes, limits, "x")
    axes.set(xlabel="prediction", ylabel="rows predicted lower (%)", xlim=limits, ylim=(0, 101))


def learning_curve(axes: Axes, curves: Mapping[str, Sequence[Sequence[float]]]) -> None:
    """Log loss by examples learnt, for the models that have such points, perhaps not all."""
    for i, (name, points) in enumerate(curves.items()):
        x, y = zip(*points, strict=True)
        axes.plot(x, y, ".-", color=_COLOURS[i % len(_COLOURS)], label=name)
    axes.set(xlabel="examples of the first pass", ylabel="log loss (nats)")
    axes.ticklabel_format(axis="x", style="plain")
    axes.xaxis.set_major_formatter(_short)
    axes.locator_params(axis="x", nbins=5)


def mass(axes: Axes, shares: Sequence[tuple[str, float]]) -> None:
    """Bars of fields with their shares of the sum of absolute weights."""
    names = [name if len(name) <= 18 else name[:17] + "…" for name, _ in shares]
    axes.barh(range(len(shares)), [share * 100 for _, share in shares], color=_COLOURS[0])
    axes.set_yticks(range(len(shares)), names)
    axes.invert_yaxis()
    axes.set(xlabel="share of all absolute weights (%)")
    axes.grid(visible=False, axis="y")


def picture(
    draw: Callable[[Axes, Any], None], values: Any, *, height: float = HEIGHT, legend: bool = False
) -> str:
    """The plot that `draw` makes of the values, as an HTML element."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(_STYLE):
        figure = Figure(figsize=(_WIDTH, height), layout="constrained")
        axes = figure.subplots()
        draw(axes, values)
        if legend:
            axes.legend(fontsize=12, labelcolor=_INK)
        content = io.StringIO()
        figure.savefig(content, format="svg", transparent=True)
    text = content.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    for colour, variable in _VARIABLES.items():
        text = text.replace(colour, f"var({variable})")
    # Without its own size, it is as wide as the page allows.
    head, rest = text.split(">", 1)
    return re.sub(r' (width|height|version)="[^"]*"', "", head) + f' role="img">{rest}'


def _each(models: Mapping[str, Facts]) -> list[tuple[str, Facts, str]]:
    return [(name, facts, _COLOURS[i % len(_COLOURS)]) for i, (name, facts) in enumerate(models.items())]


def _column(points: Sequence[Facts], key: str) -> list[float]:
    return [point[key] for point in points]


def _odds(rate: float) -> float:
    rate = min(max(rate, 1e-7), 1 - 1e-7)
    return log(rate / (1 - rate))


def _rate_ticks(axes: Axes, ends: Sequence[float], axis: str) -> None:
    """Ticks at probabilities, on an axis of log-odds."""
    inside: list[float] = []
    for rate in _RATES:
        if ends[0] <= _odds(rate) <= ends[1]:
            # Labels must not overlap.
            if inside and _odds(rate) - _odds(inside[-1]) < (ends[1] - ends[0]) / 5:
                continue
            inside.append(rate)
    getattr(axes, f"set_{axis}ticks")(
        [_odds(rate) for rate in inside], [f"{rate:.6f}".rstrip("0") for rate in inside]
    )


def _short(number: float, _place: object = None) -> str:
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= size:
            return f"{number / size:g} {unit}"
    return f"{number:g}"
