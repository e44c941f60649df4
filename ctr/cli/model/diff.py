"""`ctr model diff`: the differences between two models."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ctr.cli.model.info import measured
from ctr.cli.reporting import Report
from ctr.cli.tables import metric_lines, table
from ctr.errors import DataError

if TYPE_CHECKING:
    from ctr.model import Model
    from ctr.settings import Values
    from ctr.weights import WeightDifference

_ROWS = 10
_LONGEST = 80  # characters of a feature in a line


def diff(
    report: Report,
    first: Annotated[Path, typer.Argument(metavar="A", help="Folder of the first model.")],
    second: Annotated[Path, typer.Argument(metavar="B", help="Folder of the second model.")],
    rows: Annotated[int, typer.Option(min=1, max=100_000, help="How many weights of each kind.")] = _ROWS,
    values: Values = None,
) -> None:
    """Show the differences between two models: settings, spec, metrics, and the weights that changed most.

    Weights are matched by slot. If the models hash to different slots (other bits or another seed), weights
    are matched by the texts of their features, as in `ctr model top`.

    Example: `ctr model diff monday tuesday`
    """
    from ctr.model import load_model
    from ctr.weights import difference, same_slots, spec_changes

    a, b = load_model(first), load_model(second)
    by_slot = same_slots(a.spec, b.spec)
    weights = a.weights(values), b.weights(values)
    settings, changes = _settings(a, b), spec_changes(a.spec, b.spec)
    lines = table([("", str(first), str(second)), ("model", a.id, b.id), *settings], "<<<")
    lines += [f"spec: {line}" for line in changes] or ["spec: the same"]
    metrics = {
        f"{path}, {name}": summary
        for path, model in ((first, a), (second, b))
        for name, summary in measured(model).items()
    }
    lines += metric_lines(metrics) if metrics else []
    facts: dict[str, Any] = {
        "models": [a.id, b.id],
        "settings": {name: [one, other] for name, one, other in settings},
        "spec": changes,
        "metrics": [model.manifest.get("metrics", {}) for model in (a, b)],
        "weights": None,
    }
    try:
        differences = difference(*weights, by_slot=by_slot)
    except DataError as error:
        lines.append(f"weights: {error}")
    else:
        facts["weights"] = differences.to_json(rows)
        lines += _weight_lines(differences, facts["weights"], first, second)
    report(lines, facts)


def _settings(a: Model, b: Model) -> list[tuple[str, str, str]]:
    """Name and both values of each setting that differs."""
    one, other = ({**model.manifest["optimizer"], **model.manifest.get("training", {})} for model in (a, b))
    names = [
        name
        for name in {**one, **other}
        if one.get(name) != other.get(name) and not (_is_record(one.get(name)) or _is_record(other.get(name)))
    ]
    return [(name.replace("_", " "), _value(one.get(name)), _value(other.get(name))) for name in names]


def _is_record(value: object) -> bool:
    """Whether a value is not a setting but a record of training, such as its learning curve."""
    return isinstance(value, list) and not all(isinstance(item, str) for item in value)


def _value(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(_value, value))
    return "-" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _weight_lines(
    differences: WeightDifference, facts: dict[str, Any], first: Path, second: Path
) -> list[str]:
    correlation = facts["correlation"]
    lines = [
        f"weights, compared by {differences.compared_by}: {facts['in_both']:,} in both, "
        f"{facts['lost']:,} only in {first}, {facts['gained']:,} only in {second}; "
        f"correlation {'-' if correlation is None else f'{correlation:.4f}'}"
    ]
    if any(differences.left_out):
        lines.append("({:,} and {:,} more have unknown features)".format(*differences.left_out))
    for head, kind in (
        ("largest changes", "largest_changes"),
        (f"only in {second}", "largest_gained"),
        (f"only in {first}", "largest_lost"),
    ):
        if changed := [each for each in facts[kind] if each["change"]]:
            lines += [head, *(f"  {line}" for line in _rows(changed))]
        elif facts[kind]:
            lines.append("no weight has changed")
    return lines


def _rows(weights: list[dict[str, Any]]) -> list[str]:
    cells = [("before", "after", "change", "feature")]
    for each in weights:
        before, after = ("" if each[k] is None else f"{each[k]:+.4f}" for k in ("before", "after"))
        text = each["feature"] or f"slot {each['slot']:,}"
        text = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
        cells.append((before, after, f"{each['change']:+.4f}", text))
    return table(cells, ">>><")
