"""Readable texts for the features of a value; a bucket's text is the range of its numbers."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence

from ctr.features.columns import Arrays, Column
from ctr.features.spec import IndexField, LinearField, NamedField, NumberField, TimeField
from ctr.features.steps.numbers import buckets_of
from ctr.features.steps.times import buckets_of_times

_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_LARGEST_LOG = math.log(sys.float_info.max)


def texts_of_number(field: NumberField, text: str, learnt: Arrays) -> Sequence[str]:
    """The range of the number's bucket, in terms of numbers after the field's steps."""
    values, present, _ = Column.of(text).numbers
    if not present[0]:
        return []
    bucket = int(buckets_of(field, values, present, learnt)[0])
    low, high = float(bucket), float(bucket + 1)
    if field.transform in ("edges", "quantiles"):
        edges = field.edges if field.transform == "edges" else learnt["edges"].tolist()
        low, high = [-math.inf, *edges, math.inf][bucket : bucket + 2]
    elif field.transform == "width":
        low, high = low * (field.width or 1.0), high * (field.width or 1.0)
    elif bucket >= 2:  # of log
        low, high = log_bounds(bucket)
    return [f"[{low:.6g}, {high:.6g})"]


def log_bounds(bucket: int) -> tuple[float, float]:
    """The range of a bucket of `log_bucket`, which must be at least 2."""
    end = math.sqrt(bucket - 1)
    high = math.exp(end) if end < _LARGEST_LOG else math.inf
    return max(math.exp(math.sqrt(bucket - 2)), 2.0), high


def texts_of_linear(field: LinearField, text: str, learnt: Arrays) -> Sequence[str]:
    """One feature for all numbers."""
    return ["(number)"]


def texts_of_times(field: TimeField, text: str, learnt: Arrays, since: str = "") -> Sequence[str]:
    """The hour, the day or the age; an age may count from a time in another column, `since`."""
    column = Column.of(text)
    if field.since_column is not None:
        column.beside = {field.since_column: Column.of(since)}
    words, present, _ = buckets_of_times(field, column, 0, learnt)
    if not present[0]:
        return []
    bucket = int(words[0].astype("int64"))
    if field.transform == "hour_of_week":
        return [f"{_WEEKDAYS[bucket // 24]} {bucket % 24}:00"]
    if field.edges:
        low, high = [-math.inf, *field.edges, math.inf][bucket : bucket + 2]
        return [f"[{low:.6g}, {high:.6g}) days"]
    of_kind = {"hour": f"{bucket}:00", "age_days": f"{bucket:,} days", "day": str(bucket)}
    return [of_kind.get(field.transform) or _WEEKDAYS[bucket]]


def texts_of_indices(field: IndexField, text: str, learnt: Arrays) -> Sequence[str]:
    """The indices."""
    parts = [token.partition(":") for token in text.split()]
    return [index for index, _, value in parts if float(value) != 0]


def texts_of_named(field: NamedField, text: str, learnt: Arrays) -> Sequence[str]:
    """Namespace and name."""
    texts = []
    for part in text.split("|")[1:]:
        first, *others = part.split() if part[:1].strip() else ["", *part.split()]
        space, _, scale = first.partition(":")
        for name, _, value in (token.partition(":") for token in others):
            if float(scale or 1) * float(value or 1):
                texts.append(f"{space}^{name}")
    return texts
