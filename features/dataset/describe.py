"""`describe`: figures of a hashed data set, and how many of its features share a slot."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ctr.features.batches import localize_kernels
from ctr.features.dataset import kernels as dataset_kernels
from ctr.features.dataset.source import DatasetSource
from ctr.features.readable import bits_for

_EXACT_BITS = 30  # a bitmap of 128 MiB


@dataclass(frozen=True, slots=True)
class Description:
    """Figures of a hashed data set."""

    rows: int
    positives: int
    base_rate: float | None
    """Share of positives; None without labels."""
    features: int
    """Of all rows together, including the bias."""
    features_per_example: float
    bits: int
    slots_total: int
    slots_used: int
    """Distinct slots that occur: exact up to 30 bits, estimated above."""
    distinct_features: int | None
    """The expected number of features for this many used slots; None if every slot is used."""
    collisions: int | None
    """The expected number of features that share a slot with an earlier one."""
    bits_wanted: int | None
    """The fewest bits at which less than 1% of these features are expected to share a slot."""
    parts: int
    """The number of its Arrow files."""
    bytes: int
    spec_fingerprint: str
    created: str

    def to_json(self) -> dict[str, Any]:
        """The fields by name, as JSON values; `parts` is called `shards`, as in the manifest."""
        facts = asdict(self)
        return facts | {"shards": facts.pop("parts")}

    def lines(self) -> list[str]:
        """The figures as text, one per line."""
        distinct, collisions = (
            f"unknown: all slots are used, so `bits: {self.bits}` is too few"
            if number is None
            else f"about {number:,}"
            for number in (self.distinct_features, self.collisions)
        )
        if self.collisions and self.distinct_features:
            collisions += f" ({self.collisions / self.distinct_features:.2%} of the distinct features)"
        pairs = {
            "rows": f"{self.rows:,}",
            "positives": (
                "no labels" if self.base_rate is None else f"{self.positives:,} ({self.base_rate:.2%})"
            ),
            "features": f"{self.features:,} ({self.features_per_example:.1f} per example)",
            "slots used": (
                f"{self.slots_used:,} of 2**{self.bits} = {self.slots_total:,}"
                f" ({self.slots_used / self.slots_total:.2%})"
            ),
            "distinct features": distinct,
            "collisions expected": collisions,
            "bits for below 1%": "unknown" if self.bits_wanted is None else f"{self.bits_wanted}",
            "files": f"{self.parts:,} of {self.bytes / 1e6:,.1f} MB in all",
            "spec fingerprint": self.spec_fingerprint,
            "created": self.created,
        }
        return [f"{name:<20} {text}" for name, text in pairs.items()]


def describe(path: str | Path) -> Description:
    """Reads the hashed data set at `path` once, comparing all checksums, and describes it.

    On average, `d` features hashed to `M` slots use `s = M (1 - (1 - 1/M)**d)` of them; this is solved for
    `d`, and `d - s` collisions are expected. Above 30 bits, `s` is estimated by linear counting (Whang et al.
    1990) on a bitmap of 2**30 bits. Raises DataError as `DatasetSource` does with `verify`.
    """
    source = DatasetSource(path, labels="ignored", verify=True)
    manifest = source.manifest
    used = _slots_used(source)
    total = 1 << manifest.bits
    distinct = expected_features(used, total)
    return Description(
        rows=manifest.rows,
        positives=manifest.positives,
        base_rate=manifest.positives / manifest.rows if manifest.has_labels else None,
        features=manifest.features,
        features_per_example=manifest.features / manifest.rows,
        bits=manifest.bits,
        slots_total=total,
        slots_used=used,
        distinct_features=distinct,
        collisions=None if distinct is None else distinct - used,
        bits_wanted=None if distinct is None else bits_for(distinct),
        parts=len(manifest.parts),
        bytes=manifest.bytes,
        spec_fingerprint=manifest.spec_fingerprint,
        created=manifest.created,
    )


def expected_features(used: int, total: int) -> int | None:
    """The expected number of distinct features for `used` of `total` slots; None if all are used."""
    if used >= total:
        return None
    return max(used, round(math.log1p(-used / total) / math.log1p(-1 / total)))


def _slots_used(source: DatasetSource) -> int:
    bits = source.manifest.bits
    marks = np.zeros(max(1 << min(bits, _EXACT_BITS) >> 6, 1), np.uint64)
    exact = bits <= _EXACT_BITS
    mark = localize_kernels.mark if exact else dataset_kernels.mark_hashed
    for chunk in source.chunks():
        mark(chunk.slots, marks)
    marked = localize_kernels.count_marks(marks)
    if exact:
        return marked
    size = marks.size * 64
    free = max(size - marked, 1)
    return round(-size * math.log(free / size))
