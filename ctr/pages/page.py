"""`write_report`: a report on evaluated models as one self-contained HTML file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ctr.outputs import replace_file
from ctr.packages import require_packages
from ctr.weights import BETWEEN, BIAS

UNKNOWN = "(no text)"


def weight_mass(weights: pa.Table, scales: Mapping[str, float]) -> list[tuple[str, float]]:
    """The share of each field and cross in the sum of absolute weights, the largest first.

    `weights` is the result of `Model.weights`; each is multiplied by the scale of its field or cross. The
    bias is excluded. The last entry has the features without a text, such as those that are not in the
    dictionary. If several features share a slot, the most frequent one gets the weight. Empty if no feature
    has a text.
    """
    sums: Counter[str] = Counter()
    sizes = np.abs(weights["weight"].to_numpy()).astype(np.float64)
    texts = weights["feature"]
    has_text = np.asarray(texts.is_valid())
    unknown = float(sizes[~has_text].sum())
    for text, size in zip(
        texts.filter(pa.array(has_text)).to_pylist(), sizes[has_text].tolist(), strict=True
    ):
        if text != BIAS:
            name = text.partition(BETWEEN)[0].partition("=")[0]
            sums[name] += size * scales.get(name, 1.0)
    total = sum(sums.values()) + unknown
    if not sums or not total:
        return []
    shares = [(name, size / total) for name, size in sums.most_common()]
    return [*shares, (UNKNOWN, unknown / total)] if unknown else shares


_NEEDED = {"jinja2": "Jinja2", "matplotlib.figure": "matplotlib"}
_FIELDS_SHOWN = 20
_SLICES_SHOWN = 20
_SETTINGS = ("rows", "examples", "epochs", "workers", "chunk", "admit", "base_rate", "forget")

_ROC = (
    "True positive rate against false positive rate, threshold by threshold. AUC is the area under the curve;"
    " a random order gives the dotted line."
)
_PRECISION_RECALL = (
    "Precision is the click rate of the rows above a threshold, recall their share of all clicks. A random"
    " order gives the dotted line, the click rate of all rows."
)
_RELIABILITY = (
    "Rows grouped by prediction, with about equal counts of clicks (or of rows without a click, if those are"
    " rarer). Bars are 95% confidence intervals. Predictions are right on the dotted line and too low above"
    " it."
)
_LIFT = (
    "Click rate of each tenth of the examples, divided by the click rate of all. A random order gives the"
    " dotted line."
)
_SCORES = (
    "Cumulative distribution of the predictions for rows with a click (dashed) and without. The further the"
    " dashed line is to the right of the solid one, the better the model tells them apart."
)
_LEARNING = (
    "Progressive validation: the model predicts each example before it learns from it. Each point is the mean"
    " log loss of the examples since the previous point."
)
_ONE_LABEL = "Not defined: all rows have the same label."
_NO_LEARNING = (
    "Not available: this model's manifest has no points of progressive validation. Training in memory keeps"
    " them for inputs of some thousand rows or more."
)
_SLICE_METRICS = {
    "logloss": "log loss (nats)",
    "calibration": "calibration",
    "auc": "AUC",
    "normalized_entropy": "norm. entropy",
}


@dataclass(frozen=True, slots=True)
class EvaluatedModel:
    """A model and its evaluation."""

    name: str
    """Its name for users, such as its folder."""
    facts: Mapping[str, Any]
    """The facts of `ctr evaluate --json`; for all models except the first with `against_first`."""
    manifest: Mapping[str, Any]
    weights: pa.Table
    """See `Model.weights`."""
    scales: Mapping[str, float] = field(default_factory=dict)
    """The scales of its fields and crosses."""


def require_report() -> None:
    """Raises DataError unless the packages for reports are installed."""
    require_packages("a report", _NEEDED)


def write_report(path: Path, models: Sequence[EvaluatedModel], inputs: Sequence[str]) -> None:
    """Write the page for models that were evaluated on these inputs; it replaces an earlier file.

    Raises DataError if the disk refuses.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    pages = Environment(
        loader=PackageLoader("ctr.pages", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    pages.filters |= {"number": _number, "count": _count, "percent": partial(_number, format_="{:.1%}")}
    page = pages.get_template("report.html.jinja").render(**_content(models, inputs))
    with replace_file(path, "the report") as draft:
        draft.write_text(page, encoding="utf-8")


def _content(models: Sequence[EvaluatedModel], inputs: Sequence[str]) -> dict[str, Any]:
    """The variables of the template."""
    letters = [chr(ord("A") + i) if i < 26 else str(i + 1) for i in range(len(models))]
    lettered = dict(zip(letters, models, strict=True))
    first = models[0]
    return {
        "models": lettered,
        "inputs": inputs,
        "figures": _figures(lettered),
        "slices": [_slice_table(column, models) for column in first.facts["slices"]],
        "slice_metrics": _SLICE_METRICS,
        "slices_shown": _SLICES_SHOWN,
        "settings": _settings(models),
        "mass": _mass_figures(lettered),
    }


def _figures(models: Mapping[str, EvaluatedModel]) -> list[dict[str, str | None]]:
    """Title, picture (or None) and explanation of each figure."""
    from ctr.pages import plots

    facts = {letter: each.facts for letter, each in models.items()}
    ranked = all(each["curves"]["roc"] for each in facts.values())
    curves = {
        letter: points
        for letter, each in models.items()
        if len(points := each.manifest.get("training", {}).get("learning_curve") or []) > 1
    }
    several = len(models) > 1
    return [
        {
            "title": title,
            "picture": plots.picture(draw, values, legend=several or draw is plots.scores) if ready else None,
            "words": words if ready else otherwise,
        }
        for title, draw, values, ready, words, otherwise in (
            ("ROC curve", plots.roc, facts, ranked, _ROC, _ONE_LABEL),
            ("Precision and recall", plots.precision_recall, facts, ranked, _PRECISION_RECALL, _ONE_LABEL),
            ("Reliability", plots.reliability, facts, True, _RELIABILITY, ""),
            ("Lift by decile", plots.lift, facts, ranked, _LIFT, _ONE_LABEL),
            ("Predictions", plots.scores, facts, True, _SCORES, ""),
            ("Learning curve", plots.learning_curve, curves, curves, _LEARNING, _NO_LEARNING),
        )
    ]


def _slice_table(column: str, models: Sequence[EvaluatedModel]) -> dict[str, Any]:
    """One column's values, each with its examples and the metrics of all models."""
    slices = [each.facts["slices"][column] for each in models]
    first = slices[0]
    by_value = [{metrics["value"]: metrics for metrics in each["values"]} for each in slices]
    rows = [
        ("(missing)" if value is None else value, [metrics.get(value) for metrics in by_value])
        for value in list(by_value[0])[:_SLICES_SHOWN]
    ]
    if first["others"]:
        rows.append(("(all other values)", [each["others"] for each in slices]))
    return {
        "column": column,
        "rows": rows,
        "values": len(first["values"]),
        "values_kept": first["values_kept"] if first["others"] else None,
    }


def _mass_figures(models: Mapping[str, EvaluatedModel]) -> dict[str, Any]:
    """The plot of each model's fields, or None if its features have no texts."""
    from ctr.pages import plots

    figures = {}
    for letter, each in models.items():
        shares = weight_mass(each.weights, each.scales)
        fields = [share for share in shares if share[0] != UNKNOWN]
        rest = sum(share for _, share in fields[_FIELDS_SHOWN:])
        shown = fields[:_FIELDS_SHOWN] + [("(all others)", rest)] * (rest > 0) + shares[len(fields) :]
        height = max(plots.HEIGHT, 1.0 + 0.23 * len(shown))
        figures[letter] = plots.picture(plots.mass, shown, height=height) if shares else None
    return figures


def _settings(models: Sequence[EvaluatedModel]) -> list[tuple[str, list[Any]]]:
    """Rows of a table: a setting, and its value in each model."""
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
    """A setting as text."""
    if value is None:
        return "-"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
