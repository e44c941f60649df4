"""Typed values as text: what a value of JSON or Python is in a text file; of Parquet: `column_text`.

One rule for every kind of input: a value is the text that Python's csv module and pandas write for it, except
that a boolean is `1` or `0`, NaN is missing, and a whole float below 1e16 is its digits. What texts are one
value is said in `spelling_kernels`.
"""

from __future__ import annotations

import math
import re
from datetime import date

import numpy as np

BETWEEN_ELEMENTS = b"\x1f"
"""Between the elements of a list, which all stand in one cell: ASCII's unit separator."""
DIGITS_BELOW = 1e16  # from there on Python writes an exponent
_DECIMAL = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def text_of_value(value: object) -> str | None:
    """The text of a value of JSON or Python, empty if it is missing; None for what has no text.

    Times are those of Python, pandas and NumPy.
    """
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
    if isinstance(value, date):  # as are `datetime`, pandas' Timestamp and its NaT
        return str(value).removeprefix("NaT")
    if isinstance(value, np.datetime64):
        return _text_of_datetime64(value)
    return None


def is_decimal(text: str) -> bool:
    """Whether it is a number in decimal digits."""
    return _DECIMAL.fullmatch(text) is not None


def text_of_json(value: object) -> str | None:
    """The same of a list, too: its elements' texts with `BETWEEN_ELEMENTS`."""
    if not isinstance(value, list):
        return text_of_value(value)
    texts = [text_of_value(element) for element in value]
    return None if None in texts else BETWEEN_ELEMENTS.decode().join(text or "" for text in texts)


def _text_of_float(value: float) -> str:
    if math.isnan(value):
        return ""
    if value.is_integer() and abs(value) < DIGITS_BELOW:
        return str(int(value))
    return repr(value)


def _text_of_datetime64(value: np.datetime64) -> str:
    """A fraction of a second has 6 digits, or 9 if it needs them, as in `column_text`."""
    if np.isnat(value):
        return ""
    if np.datetime_data(value.dtype)[0] in "YMWD":
        return str(value.astype("datetime64[D]"))
    micros = value.astype("datetime64[us]")
    nanoseconds = int((value - micros).astype("timedelta64[ns]").astype(np.int64))
    text = str(micros.item())
    if not nanoseconds:
        return text
    return f"{text}{'' if '.' in text else '.000000'}{nanoseconds:03}"
