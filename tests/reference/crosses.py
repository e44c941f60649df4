"""Crosses as docs/spec.md states them, in plain Python with the `xxhash` package."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations, groupby, product

import xxhash

Feature = tuple[int, float]
"""Hash and value."""


def cross(
    name: str, of: Sequence[str], features: Mapping[str, Sequence[Feature]], seed: int
) -> list[Feature]:
    """The features of a cross, from those of its fields."""
    choices = []
    for part, run in groupby(of):
        times = len(list(run))
        chosen = (sorted(some) for some in combinations(features[part], times))
        choices.append([some for some in chosen if len({hashed for hashed, _ in some}) == times])
    own_seed = xxhash.xxh64_intdigest(name.encode(), seed)
    found = []
    for one in product(*choices):
        parts = [feature for some in one for feature in some]
        data = b"".join(hashed.to_bytes(8, "little") for hashed, _ in parts)
        found.append((xxhash.xxh64_intdigest(data, own_seed), math.prod(value for _, value in parts)))
    return found
