"""Times as docs/spec.md states them, with Python's datetime and zoneinfo."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from zoneinfo import ZoneInfo

from ctr.features.spec import TimeField

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_OFFSET = r"(?P<z>[zZ]|[+-]\d\d(?::\d\d(?::\d\d)?|\d\d(?:\d\d)?)?)"
_ISO = re.compile(
    r"(?P<Y>\d{4})-(?P<m>\d\d)-(?P<d>\d\d)"
    rf"(?:[ tT](?P<H>\d\d)(?::(?P<M>\d\d)(?::(?P<S>\d\d)(?:[.,](?P<f>\d+))?)?)?{_OFFSET}?)?",
    re.ASCII,
)
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_PATTERNS = {"Y": r"\d{4}", "b": "[a-zA-Z]{3}", "f": r"\d+", "z": None}


def micros(text: str, time_format: str | None) -> int | None:
    """Microseconds since 1970, None when missing. Raises ValueError."""
    text = text.strip(" \t")
    if text.lower() in ("", "nan", "nat"):
        return None
    if time_format in ("unix", "unix_ms"):
        value = Fraction(text) * (10**6 if time_format == "unix" else 1_000)
        found = round(value)
        _ = _EPOCH + timedelta(microseconds=found)  # beyond the years 1 to 9999 it raises
        return found
    pattern = _ISO if time_format is None else re.compile(_pattern_of(time_format), re.ASCII)
    match = pattern.fullmatch(text)
    if match is None:
        raise ValueError(text)
    return _micros_of({key: value for key, value in match.groupdict().items() if value})


def _pattern_of(time_format: str) -> str:
    parts = re.findall(r"%[%a-zA-Z]|[^%]", time_format)
    numbers = [part[0] == "%" and part[1:] in "YymdHMSf" and len(part) == 2 for part in parts]
    found = ""
    for i, part in enumerate(parts):
        if part == "%%" or part[0] != "%":
            found += re.escape(part[-1])
            continue
        among = any(numbers[max(i - 1, 0) : i]) or any(numbers[i + 1 : i + 2])
        plain = r"\d{2}" if among else r"\d{1,2}"
        found += _OFFSET if part == "%z" else f"(?P<{part[1]}>{_PATTERNS.get(part[1], plain)})"
    return found


def _micros_of(found: dict[str, str]) -> int:
    year = int(found.get("Y", 1970))
    if "y" in found:
        year = int(found["y"]) + (1900 if int(found["y"]) >= 69 else 2000)
    month = 1 + _MONTHS.index(found["b"].lower()) if "b" in found else int(found.get("m", 1))
    clock = [int(found.get(key, 0)) for key in "HMS"]
    moment = datetime(year, month, int(found.get("d", 1)), *clock, tzinfo=UTC)
    digits = re.findall(r"\d\d", found.get("z", ""))
    ahead = sum(int(two) * unit for two, unit in zip(digits, (3600, 60, 1), strict=False))
    if digits and (int(digits[0]) > 23 or any(int(two) > 59 for two in digits[1:])):
        raise ValueError(found["z"])
    moved = (moment - _EPOCH) // timedelta(seconds=1) - (-ahead if found.get("z", "")[:1] == "-" else ahead)
    return moved * 10**6 + int(found.get("f", "0")[:6].ljust(6, "0"))


def bucket(field: TimeField, time_us: int, since_us: int | None = None) -> int:
    if field.transform == "age_days":
        if field.since is not None:
            since_us = micros(field.since, None)
        days = (time_us - since_us) // 86_400_000_000
        return sum(edge <= days for edge in field.edges) if field.edges else days
    local = (_EPOCH + timedelta(microseconds=time_us)).astimezone(ZoneInfo(field.zone or "UTC"))
    return {
        "hour": local.hour,
        "weekday": local.weekday(),
        "hour_of_week": local.weekday() * 24 + local.hour,
        "day": local.day,
    }[field.transform]
