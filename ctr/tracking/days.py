"""`run_of_days`: a job over several days as one run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

_METRICS = ("logloss", "calibration", "auc")


def run_of_days(days: Sequence[Mapping[str, Any]], forget: float) -> dict[str, Any]:
    """The summaries of single days, such as a job of one day has, as that of one run.

    It has the settings of the first day, but for `forget`, metrics, counts and warnings of all days, a point
    for each in `days`, and all else of the last.
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
    """Metrics of all days' rows, as far as they follow from those of each day: not AUC."""
    evaluated = [each for each in evaluated if each["weight"]]  # others have no metrics
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
