"""`Marks`: a set of slots, told of one by one or as bitmaps."""

from __future__ import annotations

import numpy as np
import pytest

from ctr.ps.client.presence import Marks
from ctr.ps.partitions import slot_dtype


@pytest.mark.parametrize(
    ("bits", "size"), [(4, 1), (4, 4), (6, 8), (10, 128), (20, 512), (33, 8), (33, 32), (33, 64), (33, 8192)]
)
def test_a_bitmap_marks_what_its_slots_would(bits: int, size: int) -> None:
    """With more than 2**30 slots, neighbours share a bit; of small ranges, several share a byte."""
    rng = np.random.default_rng(size)
    by_slot, by_bitmap = Marks(bits), Marks(bits)
    for part in rng.choice((1 << bits) // size, 3, replace=False).tolist():
        chosen = rng.random(size) < 0.2
        slots = (np.flatnonzero(chosen) + part * size).astype(slot_dtype(bits))
        by_slot.add(slots)
        by_bitmap.add_bitmap(part * size, size, np.packbits(chosen, bitorder="little"))
        assert not by_bitmap.lacks(slots).any()
    assert np.array_equal(by_bitmap._bits, by_slot._bits)
