"""Typed values as text: what a value of JSON is in a text file; of Parquet: `column_text`.

One rule for every kind of input: a value is the text that Python's csv module and pandas write for it, except
that a boolean is `1` or `0`, NaN is missing, and a whole float below 1e16 is its digits. What texts are one
value is said in `text_kernels`.
"""

from __future__ import annotations

import math

DIGITS_BELOW = 1e16  # from there on Python writes an exponent


def text_of_value(value: object) -> str | None:
    """The text of a value of JSON, empty if it is missing; None for what has no text."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float) and not math.isinf(value):
        return _text_of_float(value)
    return None


def _text_of_float(value: float) -> str:
    if math.isnan(value):
        return ""
    if value.is_integer() and abs(value) < DIGITS_BELOW:
        return str(int(value))
    return repr(value)
