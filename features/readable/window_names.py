"""`window_names`: the features that windows can give, each with a readable text."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pyarrow as pa

from ctr.features.spec import FeatureSpec, Window, WindowField
from ctr.features.steps import log_bounds
from ctr.features.text import hash_bytes
from ctr.features.transform import seed_of

_UNITS = {
    "count": "rows of",
    "clicks": "clicks of",
    "rate": "clicks per row of",
    "since_last": "s since the last row of",
}


def window_names(spec: FeatureSpec, most_rows: float) -> pa.Table | None:
    """All buckets of the spec's window features, such as `ip.count.1h=[3, 5) rows of ip`; None: no windows.

    Buckets of more rows or clicks than `most_rows` are left out: one that cannot occur would be one more text
    of a slot that it shares. Columns are `slot`, `feature` and `count`, as in a dictionary; `count` is null,
    as no rows are read. Crosses with features of windows are not among them.
    """
    if not spec.windows:
        return None
    slots, texts = [], []
    for window in spec.windows:
        for field in window.fields:
            seed = seed_of(field.name, spec)
            for bucket, low, high in _buckets(window, field, most_rows):
                hashed = hash_bytes(bucket.to_bytes(8, "little"), seed)
                slots.append(max(hashed & ((1 << spec.bits) - 1), 1))
                unit = f"{_UNITS[field.kind]} {', '.join(window.key)}"
                texts.append(f"{field.name}=[{low:.6g}, {high:.6g}) {unit}")
    types = (pa.uint64(), pa.string(), pa.int64())
    columns = (slots, texts, [None] * len(slots))
    names = ["slot", "feature", "count"]
    return pa.table([pa.array(each, type_) for each, type_ in zip(columns, types, strict=True)], names)


def _buckets(window: Window, field: WindowField, most_rows: float) -> Iterator[tuple[int, float, float]]:
    """The number of each, and from where to where it goes: see `write_features`."""
    if field.kind == "rate":
        bounds = [0.0, *window.rate_edges, math.inf]
        yield from ((k, bounds[k], bounds[k + 1]) for k in range(len(bounds) - 1))
        return
    decays = field.span is not None and field.span.startswith("half_")
    whole = field.kind != "since_last" and not decays
    scale = 10.0 if decays else 1.0
    most = window.expires / 1e6 if field.kind == "since_last" else most_rows * scale
    for bucket in range(3 + int(math.log(max(most, 1.0)) ** 2)):
        low, high = (bucket, bucket + 1) if bucket < 2 else log_bounds(bucket)
        if whole:  # of some buckets no whole number is in
            low, high = math.ceil(low), math.ceil(high)
        if low < high:
            yield bucket, low / scale, high / scale
