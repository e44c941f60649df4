"""Tracked jobs as JSON files in a folder; summaries of days as one run; differences between runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import orjson

from ctr.errors import DataError
from ctr.outputs import replace_file, require_no_part, require_writable

_FORMAT: Final = "ctr run"
_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Run:
    """A tracked job."""

    name: str
    """The name of its file without the suffix: when it ended, and the model's id."""
    summary: Mapping[str, Any]
    """The output of `ctr train --json`, with `created`, `inputs` and `holdout_inputs`."""

    @property
    def metrics(self) -> Mapping[str, Any]:
        """The metrics of the validation set or, without one, of progressive validation or of training."""
        parts = (self.summary.get(part) for part in ("holdout", "progressive", "training"))
        return next(part for part in parts if part)


class RunFolder:
    """Stores each summary in a file of its own."""

    def __init__(self, folder: Path) -> None:
        """Create the folder. Raises DataError if it is not writable, or is a model or a data set."""
        require_no_part(folder / "run.json")
        require_writable(folder / "run.json")
        self._folder = folder

    def keep(self, summary: Mapping[str, Any]) -> str:
        """Write the file, completely or not at all; returns its path."""
        now = datetime.now(UTC)
        run = {"format": _FORMAT, "format_version": _VERSION, "created": now.isoformat(), **summary}
        # With microseconds, as several jobs may train the same model.
        file = self._folder / f"{now:%Y%m%d-%H%M%S-%f}-{summary['model']}.json"
        try:
            with replace_file(file) as draft:
                draft.write_bytes(orjson.dumps(run, option=orjson.OPT_INDENT_2))
        except OSError as error:
            raise DataError(f"{file}: the run could not be written ({error}).") from error
        return str(file)


def read_runs(folder: Path) -> list[Run]:
    """The runs in the folder, oldest first.

    Raises DataError if there is no such folder, or if a JSON file is not a run of this version.
    """
    if not folder.is_dir():
        raise DataError(f"{folder}: there is no such folder; `ctr train … --track {folder}` makes one.")
    return [_read(file) for file in sorted(folder.glob("[!.]*.json"))]


def _read(file: Path) -> Run:
    try:
        summary = orjson.loads(file.read_bytes())
        kind, version = summary["format"], summary["format_version"]
        if (kind, version) == (_FORMAT, _VERSION):
            run = Run(file.stem, summary)
            # Every list shows these.
            _ = summary["created"], summary["settings"].items(), run.metrics["logloss"]
            return run
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{file}: is not a run, or damaged; move it elsewhere.") from error
    raise DataError(
        f"{file}: is a {kind!r} of version {version}, not a {_FORMAT!r} of {_VERSION}; move it elsewhere."
    )


_METRICS = ("logloss", "calibration", "auc")


def run_of_days(days: Sequence[Mapping[str, Any]], forget: float) -> dict[str, Any]:
    """The summary of one run over several days, from the summaries of a job per day.

    It has the settings of the first day, except for `forget`; metrics, counts and warnings of all days; a
    point per day in `days`; and everything else from the last day.
    """
    first, last = days[0], days[-1]
    examples = sum(day["examples"] for day in days)
    seconds = sum(day["seconds"] for day in days)
    evaluated = [day for day in days if day["holdout"] is not None]
    points = [
        {"input": day["inputs"][0], "model": day["model"], "examples": day["examples"]}
        | {part: day[part] for part in ("progressive", "holdout")}
        for day in days
    ]
    progressive = _together([day["progressive"] for day in days])
    measured = {} if progressive is None else {name: progressive[name] for name in _METRICS}
    return {
        **last,
        **measured,
        **{name: sum(day[name] for day in days) for name in ("bad_rows", "holdout_bad_rows")},
        "warnings": list(dict.fromkeys(text for day in days for text in day["warnings"])),
        "settings": {**first["settings"], "forget": forget},
        "inputs": [path for day in days for path in day["inputs"]],
        "holdout_inputs": [path for day in evaluated for path in day["holdout_inputs"]],
        "examples": examples,
        "rows": sum(day["rows"] for day in days),
        "seconds": seconds,
        "examples_per_second": examples / max(seconds, 1e-9),
        "progressive": progressive,
        "training": None,
        "holdout": _together([day["holdout"] for day in evaluated]),
        "holdout_by_pass": [],
        "days": points,
    }


def _together(evaluated: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Metrics of all days' rows, computed from those of each day, except AUC, which cannot be."""
    evaluated = [each for each in evaluated if each["weight"]]  # days without rows have no metrics
    weight = sum(each["weight"] for each in evaluated)
    if not weight:
        return None

    def mean(name: str) -> float:
        return float(sum(each[name] * each["weight"] for each in evaluated) / weight)

    rate, predicted, loss = mean("base_rate"), mean("mean_prediction"), mean("logloss")
    base = -sum(share * math.log(share) for share in (rate, 1 - rate) if share > 0)
    return {
        "examples": sum(each["examples"] for each in evaluated),
        "weight": weight,
        "positives": sum(each["positives"] for each in evaluated),
        "logloss": loss,
        "base_logloss": base,
        "normalized_entropy": loss / base if base else None,
        "auc": None,
        "calibration": predicted / rate if rate else None,
        "mean_prediction": predicted,
        "base_rate": rate,
    }


def flat(entries: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested entries by their path, joined with dots."""
    flattened: dict[str, Any] = {}
    for key, value in entries.items():
        flattened |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
    return flattened


def differing(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """The keys with different values in these flat entries, in the order of their occurrence."""
    keys = dict.fromkeys(key for run in runs for key in run)
    return [key for key in keys if any(run.get(key) != runs[0].get(key) for run in runs)]
