"""`TimeField`: columns of times, replaced by an hour, a day or an age; formats of times."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo

from pydantic import BeforeValidator

from ctr.features.spec.fields import Edges, InputField, Name, misfit

UNIX = "unix"
UNIX_MS = "unix_ms"
"""Formats without directives: seconds and milliseconds since 1970."""

_PARTS = re.compile(r"%(.?)|([^%]+)", re.DOTALL)
_NUMBERS = "YmdHMSfy"
_YEAR, _MONTH, _DAY = ("%Y", "%y"), ("%m", "%b"), ("%d",)
DIRECTIVES = f"{_NUMBERS}bz"


def parts_of(time_format: str) -> tuple[str, ...]:
    """A format's directives, such as `%Y`, and the texts between them; a ValueError says what is wrong."""
    parts: list[str] = []
    for match in _PARTS.finditer(time_format):
        letter, text = match.groups()
        if text is not None or letter == "%":
            parts.append(text or "%")
            continue
        if not letter or letter not in DIRECTIVES:
            known = " ".join(f"%{each}" for each in DIRECTIVES)
            raise ValueError(
                f"there is no directive {match[0]!r}; use {known}, or format: {UNIX} or {UNIX_MS}"
            )
        if match[0] in parts:
            raise ValueError(f"{match[0]} is there twice; leave one of them")
        parts.append(match[0])
    for same in (_YEAR, _MONTH):
        if len([part for part in parts if part in same]) > 1:
            raise ValueError(f"{' and '.join(same)} tell the same; leave one of them")
    if not parts:
        raise ValueError("it is empty; write directives such as %Y-%m-%d %H:%M:%S")
    return tuple(parts)


def is_unix(time_format: str | None) -> bool:
    """Whether times of this format are numbers."""
    return time_format in (UNIX, UNIX_MS)


def check_format(time_format: str | None, *, hour: bool, day: bool) -> None:
    """Raises `misfit` unless this is a valid format of times, with hour and day if these are needed.

    None stands for ISO 8601.
    """
    if time_format is None or is_unix(time_format):
        return
    try:
        parts = parts_of(time_format)
    except ValueError as error:
        raise misfit(("format",), f"in {time_format!r} {error}") from None
    if hour and "%H" not in parts:
        raise misfit(("format",), f"{time_format!r} tells no hour; it lacks %H")
    if day and not all(any(part in parts for part in same) for same in (_YEAR, _MONTH, _DAY)):
        raise misfit(("format",), f"{time_format!r} tells no day; it needs %Y or %y, %m or %b, and %d")


def is_number(part: str) -> bool:
    """Whether a part of a format is numeric."""
    return part[0] == "%" and part[1:] in _NUMBERS and part != "%"


def _text_of_date(value: Any) -> Any:
    """Undoes that YAML reads `2017-11-06` as a date."""
    if isinstance(value, datetime):
        return value.isoformat(" ")
    return value.isoformat() if isinstance(value, date) else value


class TimeField(InputField):
    """A column of times, each replaced by a number that is hashed like a bucket."""

    type: Literal["time"]
    transform: Literal["hour", "weekday", "hour_of_week", "day", "age_days"]
    """`hour` 0 to 23; `weekday` 0 to 6, Monday is 0; `hour_of_week` 0 to 167, from Monday 0:00; `day` of the
    month, 1 to 31; `age_days`: whole days since `since` or the time in `since_column`."""
    format: Name | None = None
    """Directives of Python's `strptime`, `unix` or `unix_ms`; None: ISO 8601."""
    zone: Name | None = None
    """The IANA name of the time zone for hours and days; None: UTC."""
    since: Annotated[Name | None, BeforeValidator(_text_of_date)] = None
    """For `age_days`: the time, in ISO 8601, from which days are counted."""
    since_column: Name | None = None
    """For `age_days`: the column with the time from which days are counted, in the same format."""
    edges: Edges = ()
    """For `age_days`: strictly increasing; the bucket is the number of edges that the days reach."""

    @property
    def numeric(self) -> bool:
        return is_unix(self.format)

    @property
    def beside(self) -> tuple[str, ...]:
        return () if self.since_column is None else (self.since_column,)

    @property
    def since_us(self) -> int:
        """`since` in microseconds since 1970, in UTC if it has no offset. Raises ValueError."""
        moment = datetime.fromisoformat(self.since or "")
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)

    def check(self) -> None:
        day = self.transform != "hour" or self.zone is not None
        check_format(self.format, hour="hour" in self.transform, day=day)
        self._check_zone()
        if self.transform == "age_days" and (self.since is None) == (self.since_column is None):
            raise misfit(
                (),
                "an age is counted from somewhere: give one of `since`, such as since: 2017-11-06, and"
                " `since_column`, a column of times",
            )
        for key in ("since", "since_column", "edges"):
            if self.transform != "age_days" and getattr(self, key):
                raise misfit((key,), f"only `transform: age_days` has {key}; set it or remove this key")
        if self.since is not None:
            try:
                _ = self.since_us
            except ValueError:
                raise misfit(
                    ("since",), f"expected a time in ISO 8601 such as 2017-11-06, got {self.since!r}"
                ) from None
        if self.since_column is not None and self.constant is not None:
            raise misfit(
                ("missing",),
                "the age of a time that stands for missing ones would depend on `since_column`; write"
                " missing: feature or skip",
            )

    def _check_zone(self) -> None:
        if self.zone is None:
            return
        if self.transform == "age_days":
            raise misfit(("zone",), "ages are the same in every time zone; remove this key")
        try:
            ZoneInfo(self.zone)
        except (KeyError, ValueError, OSError):  # unknown, not a valid file name, or a folder
            raise misfit(
                ("zone",),
                f"there is no time zone {self.zone!r}; write an IANA name such as Europe/Berlin (on a machine"
                f" without time zones, install the package tzdata)",
            ) from None
