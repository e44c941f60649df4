"""The formats of times: those of Python's `strptime`, as far as they are numbers and English months."""

from __future__ import annotations

import re

UNIX = "unix"
UNIX_MS = "unix_ms"
"""Formats without directives: seconds and milliseconds since 1970."""

_PARTS = re.compile(r"%(.?)|([^%]+)", re.DOTALL)
_NUMBERS = "YmdHMSfy"
_YEAR, _MONTH, _DAY = ("%Y", "%y"), ("%m", "%b"), ("%d",)
DIRECTIVES = f"{_NUMBERS}bz"


def parts_of(time_format: str) -> tuple[str, ...]:
    """A format's directives, such as `%Y`, and the text between them; ValueError says what is wrong."""
    parts: list[str] = []
    for found in _PARTS.finditer(time_format):
        letter, text = found.groups()
        if text is not None or letter == "%":
            parts.append(text or "%")
            continue
        if not letter or letter not in DIRECTIVES:
            known = " ".join(f"%{each}" for each in DIRECTIVES)
            raise ValueError(
                f"there is no directive {found[0]!r}; use {known}, or format: {UNIX} or {UNIX_MS}"
            )
        if found[0] in parts:
            raise ValueError(f"{found[0]} is there twice; leave one of them")
        parts.append(found[0])
    for same in (_YEAR, _MONTH):
        if len([part for part in parts if part in same]) > 1:
            raise ValueError(f"{' and '.join(same)} tell the same; leave one of them")
    if not parts:
        raise ValueError("it is empty; write directives such as %Y-%m-%d %H:%M:%S")
    return tuple(parts)


def tells_day(parts: tuple[str, ...]) -> bool:
    """Whether times of a format with these parts have year, month and day."""
    return all(any(part in parts for part in same) for same in (_YEAR, _MONTH, _DAY))


def is_number(part: str) -> bool:
    """Whether a part of a format is a number."""
    return part[0] == "%" and part[1:] in _NUMBERS and part != "%"
