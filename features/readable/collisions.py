"""`Collisions`: how many features of each field share a slot in a sample of rows; expected numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctr.features.readable.naming import Naming, slots_of
from ctr.features.spec import FeatureSpec
from ctr.features.text import Cells

FEW = 0.01
"""If a smaller share of features collides, more bits are useless."""


def share_colliding(features: int, bits: int) -> float:
    """The probability that one of `features` features shares its slot with another."""
    return -math.expm1(max(features - 1, 0) * math.log1p(-(2.0**-bits))) if bits else float(features > 1)


def bits_for(features: int) -> int:
    """The fewest bits with which less than 1% of `features` features are expected to share a slot."""
    return next(bits for bits in range(1, 65) if share_colliding(features, bits) < FEW)


@dataclass(frozen=True, slots=True)
class FieldCollisions:
    """Figures of one field or cross, or of all together."""

    name: str
    features: int
    """The number of distinct features in the sample."""
    expected: float
    """How many of them are expected to share a slot with another feature of the sample."""
    actual: int
    """How many of them do."""


@dataclass(frozen=True, slots=True)
class Collisions:
    """The features of a sample of rows, by field, and how many share a slot."""

    rows: int
    bits: int
    all_fields: FieldCollisions
    bits_wanted: int
    """The bits with which less than 1% of the sample's features are expected to share a slot."""
    fields: tuple[FieldCollisions, ...]

    def to_json(self) -> dict[str, Any]:
        """The fields by name, as JSON values."""
        return asdict(self)


class CollisionCounter:
    """Collects the distinct features of rows; its memory grows with their number."""

    def __init__(self, spec: FeatureSpec, columns: Sequence[str]) -> None:
        """For cells of these columns. Raises SpecError as `Transform` does."""
        self._bits = spec.bits
        self._naming = Naming(spec, columns)
        self._rows = 0
        self._hashes = [np.empty(0, np.uint64) for _ in self._naming.names]

    def add(self, cells: Cells, status: NDArray[np.uint8]) -> None:
        """Adds the rows whose `status` is 0."""
        rows = self._naming.of(cells, status)
        self._rows += len(rows)
        self._hashes = [
            np.union1d(seen, new.hashes) for seen, new in zip(self._hashes, rows.features, strict=True)
        ]

    def collisions(self) -> Collisions:
        """The features of the rows so far, and how many share a slot."""
        slots = [slots_of(hashes, self._bits) for hashes in self._hashes]
        used, counts = np.unique(np.concatenate(slots), return_counts=True)
        shared = used[counts > 1]
        features = sum(hashes.size for hashes in self._hashes)
        share = share_colliding(features, self._bits)
        fields = tuple(
            FieldCollisions(name, own.size, share * own.size, int(np.isin(own, shared).sum()))
            for name, own in zip(self._naming.names, slots, strict=True)
        )
        return Collisions(
            rows=self._rows,
            bits=self._bits,
            all_fields=FieldCollisions(
                "all fields", features, share * features, sum(field.actual for field in fields)
            ),
            bits_wanted=bits_for(features),
            fields=fields,
        )
