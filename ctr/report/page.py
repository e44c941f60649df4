"""`write_report`: evaluated models as one HTML file that needs nothing beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from ctr.errors import DataError
from ctr.outputs import replace_file
from ctr.packages import require_packages
from ctr.report.mass import UNKNOWN, weight_mass

_NEEDED = {"jinja2": "Jinja2", "matplotlib.figure": "matplotlib"}
_FIELDS_SHOWN = 20
_SLICES_SHOWN = 20
_SETTINGS = ("rows", "examples", "epochs", "workers", "chunk", "admit", "base_rate", "forget")

_ROC = (
    "Clicks found against other rows taken for clicks, threshold by threshold. AUC is the area below; dotted,"
    " a random order."
)
_PRECISION_RECALL = (
    "The click rate among the rows above a threshold, and the share of all clicks that they have. Dotted, the"
    " click rate of all rows."
)
_RELIABILITY = (
    "Tenths of the examples by prediction: what was predicted, and what came. On the dotted line predictions"
    " are right, above it too low. Tenths in which all rows have the same label are left out."
)
_LIFT = "The click rate of each tenth of the examples by that of all. Dotted, a random order."
_SCORES = "How predictions are spread for rows with a click (dashed) and without one; each adds up to 100%."
_LEARNING = (
    "Progressive validation in training: each example predicted before it was learnt. A point is the mean log"
    " loss of the examples since the point before."
)
_ONE_LABEL = "The rows have labels of one kind only, so there is nothing to tell apart."
_NO_LEARNING = (
    "The manifest has no points of progressive validation, which training in memory by single steps keeps, of"
    " some thousand rows."
)


@dataclass(frozen=True, slots=True)
class EvaluatedModel:
    """A model, and what its evaluation found."""

    name: str
    """By which its user knows it, such as its folder."""
    facts: Mapping[str, Any]
    """As `ctr evaluate --json` has them; of all but the first model with `against_first`."""
    manifest: Mapping[str, Any]
    weights: pa.Table
    """See `Model.weights`."""
    scales: Mapping[str, float] = field(default_factory=dict)
    """Of its fields and crosses."""


def require_report() -> None:
    """Raise DataError unless what reports are made with is installed."""
    require_packages("a report", _NEEDED)


def write_report(path: Path, models: Sequence[EvaluatedModel], inputs: Sequence[str]) -> None:
    """Write the page for models that were evaluated on these inputs; a file that is there is replaced.

    Raises DataError when the disk refuses.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    pages = Environment(
        loader=PackageLoader("ctr.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    pages.filters |= {"number": _number, "count": _count, "percent": partial(_number, format_="{:.1%}")}
    page = pages.get_template("report.html.jinja").render(**_content(models, inputs))
    try:
        with replace_file(path) as draft:
            draft.write_text(page, encoding="utf-8")
    except OSError as error:
        raise DataError(f"{path}: the report could not be written ({error}).") from error


def _content(models: Sequence[EvaluatedModel], inputs: Sequence[str]) -> dict[str, Any]:
    """What the template shows."""
    letters = [chr(ord("A") + i) if i < 26 else str(i + 1) for i in range(len(models))]
    lettered = dict(zip(letters, models, strict=True))
    first = models[0]
    return {
        "models": lettered,
        "inputs": inputs,
        "figures": _figures(lettered),
        "columns": list(first.facts["slices"]),
        "slices_shown": _SLICES_SHOWN,
        "settings": _settings(models),
        "mass": _mass_figures(lettered),
    }


def _figures(models: Mapping[str, EvaluatedModel]) -> list[dict[str, str | None]]:
    """Title, picture (or None) and what to know of it."""
    from ctr.report import plots

    facts = {letter: each.facts for letter, each in models.items()}
    ranked = all(each["curves"]["roc"] for each in facts.values())
    curves = {
        letter: points
        for letter, each in models.items()
        if len(points := each.manifest.get("training", {}).get("learning_curve") or []) > 1
    }
    figures = []
    for title, draw, words in (
        ("ROC curve", plots.roc, _ROC),
        ("Precision and recall", plots.precision_recall, _PRECISION_RECALL),
        ("Reliability", plots.reliability, _RELIABILITY),
        ("Lift by decile", plots.lift, _LIFT),
        ("Predictions", plots.scores, _SCORES),
    ):
        there = ranked or draw in (plots.reliability, plots.scores)
        figures.append(
            {
                "title": title,
                "picture": draw(facts) if there else None,
                "words": words if there else _ONE_LABEL,
            }
        )
    picture = plots.learning_curve(curves, legend=len(models) > 1) if curves else None
    words = _LEARNING if curves else _NO_LEARNING
    return [*figures, {"title": "Learning curve", "picture": picture, "words": words}]


def _mass_figures(models: Mapping[str, EvaluatedModel]) -> dict[str, Any]:
    """Of each model its picture of fields, or None where features have no texts."""
    from ctr.report import plots

    found = {}
    for letter, each in models.items():
        shares = weight_mass(each.weights, each.scales)
        fields = [share for share in shares if share[0] != UNKNOWN]
        rest = sum(share for _, share in fields[_FIELDS_SHOWN:])
        shown = fields[:_FIELDS_SHOWN] + [("(all others)", rest)] * (rest > 0) + shares[len(fields) :]
        found[letter] = plots.mass(shown) if shares else None
    return found


def _settings(models: Sequence[EvaluatedModel]) -> list[tuple[str, list[Any]]]:
    """Rows of a table: a setting, and what it is in each model."""
    optimizers = [each.manifest["optimizer"] for each in models]
    rows: list[tuple[str, list[Any]]] = [
        ("optimizer" if key == "name" else key, [each.get(key) for each in optimizers])
        for key in dict.fromkeys(key for each in optimizers for key in each)
    ]
    trainings = [each.manifest.get("training", {}) for each in models]
    rows += [
        (key.replace("_", " "), [each.get(key) for each in trainings])
        for key in _SETTINGS
        if any(each.get(key) is not None for each in trainings)
    ]
    methods = [(each.manifest.get("calibrated") or {}).get("method") for each in models]
    if any(methods):
        rows.append(("calibrated by", methods))
    for key in ("bits", "nonzero_weights", "spec_fingerprint"):
        values = [each.manifest.get(key) for each in models]
        rows.append((key.replace("_", " "), [v[:12] if isinstance(v, str) else v for v in values]))
    return rows


def _number(value: float | None, format_: str = "{:.5f}") -> str:
    return "-" if value is None else format_.format(value)


def _count(value: object) -> str:
    """A setting as people read it."""
    if value is None:
        return "-"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
