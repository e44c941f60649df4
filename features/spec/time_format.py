"""The formats of times: those of Python's `strptime`, as far as they are numbers and English months."""

from __future__ import annotations

import re

from ctr.features.spec.fields import misfit
from ctr.features.spec.yaml_text import Place

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


def is_unix(time_format: str | None) -> bool:
    """Whether times of this format are numbers."""
    return time_format in (UNIX, UNIX_MS)


def check_format(place: Place, time_format: str | None, *, hour: bool, day: bool) -> None:
    """Raise `misfit` unless this is a format of times, with their hour and day where these are needed.

    None stands for ISO 8601.
    """
    if time_format is None or is_unix(time_format):
        return
    try:
        parts = parts_of(time_format)
    except ValueError as error:
        raise misfit((*place, "format"), f"in {time_format!r} {error}") from None
    if hour and "%H" not in parts:
        raise misfit((*place, "format"), f"{time_format!r} tells no hour; it lacks %H")
    if day and not tells_day(parts):
        raise misfit((*place, "format"), f"{time_format!r} tells no day; it needs %Y or %y, %m or %b, and %d")


def is_number(part: str) -> bool:
    """Whether a part of a format is a number."""
    return part[0] == "%" and part[1:] in _NUMBERS and part != "%"
