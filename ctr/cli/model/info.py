"""`ctr model info`: describes a model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ctr.cli.reporting import Report
from ctr.cli.tables import metric_lines, size, some, table
from ctr.outputs import printable

if TYPE_CHECKING:
    from ctr.features import FeatureSpec
    from ctr.metrics import MetricSummary
    from ctr.model import Model

ModelArgument = Annotated[Path, typer.Argument(metavar="MODEL", help="Folder of a trained model.")]

_MODELS_SHOWN = 5

_PARTS = {
    "features.yaml": "spec",
    "learnt.safetensors": "what its spec has learnt",
    "examples.json": "example rows",
    "dictionary.arrow": "dictionary",
    "weights.safetensors": "weights",
    "calibration.safetensors": "calibration",
    "state.safetensors": "state to train on from",
}
"""Names of the files; the others belong to windows."""


def info(report: Report, model: ModelArgument) -> None:
    """Describe a model: spec, settings, metrics, and the files of its folder.

    Example: `ctr model info model`
    """
    from ctr.model import load_model

    loaded = load_model(model)
    facts = _facts(loaded, model)
    report(_lines(loaded, facts), facts)


def _facts(model: Model, folder: Path) -> dict[str, Any]:
    """The facts that the command shows."""
    spec, w = model.spec, model.linear.weights
    files = {name: (folder / name).stat().st_size for name in sorted(model.manifest["sha256"])}
    return {
        "model": model.id,
        "folder": printable(folder),
        "fields": [each.name for each in spec.all_fields],
        "crosses": [each.name for each in spec.crosses],
        "scales": spec.scales,
        "slots": 1 << spec.bits,
        "smallest_weight": float(w.min()) if w.size else None,
        "largest_weight": float(w.max()) if w.size else None,
        "dictionary_features": None if (names := model.dictionary_table()) is None else names.num_rows,
        "files": files,
        "bytes": sum(files.values()),
        "manifest": model.manifest,
    }


def _lines(model: Model, facts: dict[str, Any]) -> list[str]:
    manifest, spec = model.manifest, model.spec
    rows = [
        ("model", f"{model.id}, made {manifest['created'].replace('T', ' ')}"),
        ("transform", f"{spec.fingerprint[:12]}: {_transform(spec)}"),
        ("fields", ", ".join(facts["fields"])),
        *([("crosses", ", ".join(facts["crosses"]))] if spec.crosses else []),
        *([("scales", ", ".join(f"{k} {v:g}" for k, v in spec.scales.items()))] if spec.scales else []),
        ("optimizer", _settings(manifest["optimizer"])),
        *_training(manifest.get("training", {})),
        ("weights", _weights(model, facts)),
        *([("calibrated", _calibration(manifest["calibrated"]))] if model.calibration else []),
        ("carries", _carries(facts)),
    ]
    lines = table(rows, "<<")
    measurements = measured(model)
    return lines + (metric_lines(measurements) if measurements else [])


def measured(model: Model) -> dict[str, MetricSummary]:
    """The metrics of the manifest, by the rows they were measured on."""
    from ctr.metrics import MetricSummary

    words = {
        "progressive": "progressive validation",
        "holdout": "hold-out",
        "holdout_uncalibrated": "hold-out, not calibrated",
    }
    measurements = model.manifest.get("metrics", {})
    return {words.get(name, name): MetricSummary.from_json(metrics) for name, metrics in measurements.items()}


def _transform(spec: FeatureSpec) -> str:
    parts = [f"2**{spec.bits} slots", some(len(spec.all_fields), "field"), some(len(spec.crosses), "cross")]
    if spec.windows:
        parts.append(some(len(spec.windows), "window"))
    return ", ".join([*parts, "a bias" if spec.bias else "no bias"])


def _settings(entry: dict[str, Any]) -> str:
    others = [f"{name} {value:g}" for name, value in entry.items() if isinstance(value, int | float)]
    return f"{entry['name']}: {', '.join(each for each in others if not each.startswith('passes '))}"


def _training(entry: dict[str, Any]) -> list[tuple[str, str]]:
    if not entry:
        return []
    inputs = entry["inputs"]
    names = ", ".join(inputs[:3]) + (f" and {len(inputs) - 3:,} more" if len(inputs) > 3 else "")
    facts = [
        f"{entry['examples']:,} examples",
        f"{some(entry['epochs'], 'pass')} over {entry['rows']:,} rows",
    ]
    facts.append(some(entry["workers"], "worker"))
    if entry["chunk"] is not None:  # the writer of a stream cuts its chunks
        facts.append(f"chunks of {entry['chunk']:,}")
    if entry.get("warm_start") is not None:
        facts.append(f"on top of {entry['warm_start']}")
    if entry["interrupted"]:
        facts.append("stopped early")
    return [("trained on", names), ("", ", ".join(facts)), *_lineage(entry.get("lineage", []))]


def _lineage(models: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
    """The models it was trained from, oldest first; the newest of many."""
    shown = [
        f"{model['id']} ({', '.join(model['inputs'][:1])}, {model['rows'] or 0:,} rows)"
        for model in models[-_MODELS_SHOWN:]
    ]
    hidden = len(models) - len(shown)
    return [("lineage", ", ".join([f"{hidden:,} more"] * (hidden > 0) + shown))] if shown else []


def _weights(model: Model, facts: dict[str, Any]) -> str:
    count = model.linear.weights.size
    text = f"{count:,} of {facts['slots']:,} are not 0"
    if count:
        text += f", from {facts['smallest_weight']:+.4f} to {facts['largest_weight']:+.4f}"
    return text


def _calibration(entry: dict[str, Any]) -> str:
    others = [
        f"{name.replace('_', ' ')} {' '.join(value) if isinstance(value, list) else value}"
        for name, value in entry.items()
        if name != "method" and (name != "slope" or entry["method"] == "platt")
    ]
    return ", ".join([entry["method"], *others])


def _carries(facts: dict[str, Any]) -> str:
    """The parts of the folder and their sizes."""
    parts: dict[str, int] = {}
    for name, count in facts["files"].items():
        part = _PARTS.get(name, "windows")
        parts[part] = parts.get(part, 0) + count
    if (features := facts["dictionary_features"]) is not None:
        parts = {
            f"dictionary of {features:,} features" if part == "dictionary" else part: count
            for part, count in parts.items()
        }
    sizes = [f"{part} {size(count)}" for part, count in sorted(parts.items(), key=lambda item: -item[1])]
    return f"{', '.join(sizes)}; {size(facts['bytes'])} in total"
