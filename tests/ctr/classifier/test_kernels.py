"""The loops over sparse matrices against NumPy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ctr.classifier.kernels import all_ones, append_to_rows

pytestmark = pytest.mark.kernel


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 4097, 9000])
def test_all_ones(kind: type[np.floating], size: int) -> None:
    assert all_ones(np.ones(size, kind))
    for at in {0, size // 2, size - 1} if size else set():
        for other in (0.0, -1.0, 1.0000001, np.nan, np.inf):
            numbers = np.ones(size, kind)
            numbers[at] = other
            assert not all_ones(numbers)


@pytest.mark.parametrize("ends", [np.int32, np.int64])
@pytest.mark.parametrize("items", [np.int32, np.int64, np.float32])
@pytest.mark.parametrize("last", [np.uint32(4_000_000_000), np.float32(1)])
def test_rows_get_one_item_more(ends: type[Any], items: type[Any], last: np.uint32 | np.float32) -> None:
    rng = np.random.default_rng(1)
    for longest in (1, 2, 50):
        lengths = rng.integers(0, longest, 40)
        indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(ends)
        everything = rng.integers(0, 1 << 20, indptr[-1]).astype(items)
        out = np.empty(everything.size + 40, type(last))
        append_to_rows(indptr, everything, last, out)
        assert np.array_equal(out, np.insert(everything.astype(type(last)), indptr[1:], last))
