"""The text of typed values of JSON or Python, as a text file would have it; of Parquet: `column_text`.

One rule for every kind of input: the text of a value is what Python's csv module and pandas write for it,
except that a boolean is `1` or `0`, NaN is missing, and a whole float below 1e16 is written as its digits.
`spelling_kernels` says which texts are the same value.
"""

from __future__ import annotations

import math
import re
from datetime import date

import numpy as np

BETWEEN_ELEMENTS = b"\x1f"
"""Separates the elements of a list, which share a cell: ASCII's unit separator."""
DIGITS_BELOW = 1e16  # from there on Python writes an exponent
_DECIMAL = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def text_of_value(value: object) -> str | None:
    """The text of a value of JSON or Python, empty if it is missing; None if it has no text.

    Times may be those of Python, pandas and NumPy.
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
    if isinstance(value, date):  # or `datetime`, pandas' Timestamp, its NaT
        return str(value).removeprefix("NaT")
    if isinstance(value, np.datetime64):
        return _text_of_datetime64(value)
    return None


def is_decimal(text: str) -> bool:
    """Whether the text is a decimal number."""
    return _DECIMAL.fullmatch(text) is not None


def text_of_json(value: object) -> str | None:
    """As `text_of_value`, and for a list the texts of its elements, separated by `BETWEEN_ELEMENTS`."""
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
