"""What differs between runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def flat(entries: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested entries by their path, joined by points."""
    flattened: dict[str, Any] = {}
    for key, value in entries.items():
        flattened |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
    return flattened


def differing(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """The keys, in the order in which they occur, for which these flat entries have different values."""
    keys = dict.fromkeys(key for run in runs for key in run)
    return [key for key in keys if any(run.get(key) != runs[0].get(key) for run in runs)]
