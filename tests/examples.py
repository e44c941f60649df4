"""Random examples for tests, as batches and as what the plain references take."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from ctr.features import Batch, slot_dtype
from tests.reference.ftrl import Example


def random_batch(
    rows: int,
    *,
    seed: int = 0,
    bits: int = 10,
    longest: int = 12,
    values: bool = False,
    weights: bool = False,
) -> Batch:
    """Examples of 0 to `longest` features, whose labels depend on them; slots repeat within a row too."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, longest + 1, rows)
    indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    nnz = int(indptr[-1])
    popular = rng.zipf(1.3, nnz) % (1 << bits)
    slots = popular.astype(slot_dtype(bits))
    margins = np.zeros(rows)
    np.add.at(margins, np.repeat(np.arange(rows), lengths), 2 * np.sin(popular * 12.9898))
    labels = (rng.random(rows) < 1 / (1 + np.exp(1 - margins))).astype(np.float32)
    return Batch(
        indptr,
        slots,
        rng.normal(0, 1, nnz).astype(np.float32) if values else None,
        labels,
        rng.uniform(0.2, 3, rows).astype(np.float32) if weights else None,
    )


def rows_of(batch: Batch) -> list[Example]:
    """The examples of a batch as lists of (slot, value)."""
    values = np.ones(batch.slots.size) if batch.values is None else batch.values
    pairs = list(zip(batch.slots.tolist(), values.tolist(), strict=True))
    ends = batch.indptr.tolist()
    return [pairs[a:b] for a, b in pairwise(ends)]
