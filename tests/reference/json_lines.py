"""Lines of JSON, split by Python's json module."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence

from ctr.features.text.value_text import text_of_json, text_of_value


def cells_of_line(line: bytes, columns: Sequence[str], several: Collection[str]) -> list[str] | None:
    """The text of each column, None if the line is bad."""
    try:
        row = json.loads(line.decode(), parse_constant=_constant)
    except (ValueError, RecursionError):
        return None
    if not isinstance(row, dict):
        return None
    texts = [
        text_of_json(row.get(name)) if name in several else text_of_value(row.get(name)) for name in columns
    ]
    if None in texts or any(0xD800 <= ord(c) < 0xE000 for text in texts for c in text or ""):
        return None  # half of a pair is no text
    return [text or "" for text in texts]


def _constant(word: str) -> float:
    if word != "NaN":
        raise ValueError(word)
    return float("nan")
