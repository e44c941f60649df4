from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctr.features.batches import Batch, Chunk, join_batches, localize, slice_rows, take_rows

Row = tuple[list[int], float]
"""Slots, and a label."""


def batch_of(rows: list[Row], *, bare: bool = False) -> Batch:
    slots = np.array([slot for row, _ in rows for slot in row], np.uint32)
    labels = np.array([label for _, label in rows], np.float32)
    indptr = np.array([0, *np.cumsum([len(row) for row, _ in rows])], np.int64)
    if bare:
        return Batch(indptr, slots, labels=labels)
    values = slots.astype(np.float32) / 2
    return Batch(indptr, slots, values, labels, labels + 1, (slots % 7).astype(np.uint8))


def same(one: Batch | Chunk, other: Batch | Chunk) -> None:
    for each in fields(one):
        array, wanted = getattr(one, each.name), getattr(other, each.name)
        assert (array is None) == (wanted is None), each.name
        if array is not None:
            np.testing.assert_array_equal(array, wanted)
            assert array.dtype == wanted.dtype


any_rows: Any = st.lists(
    st.tuples(st.lists(st.integers(0, 40), max_size=4), st.sampled_from([0.0, 1.0])), max_size=8
)


@pytest.mark.parametrize("bare", [False, True])
@given(rows=any_rows, data=st.data())
def test_rows_of_batches_and_chunks(bare: bool, rows: list[Row], data: Any) -> None:
    batch = batch_of(rows, bare=bare)
    order = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=12)) if rows else []
    taken = batch_of([rows[i] for i in order], bare=bare)
    same(take_rows(batch, np.array(order, np.int64)), taken)
    same(take_rows(localize(batch), np.array(order, np.int64)), localize(taken))
    start = data.draw(st.integers(0, len(rows)))
    stop = data.draw(st.integers(start, len(rows)))
    same(slice_rows(batch, start, stop), batch_of(rows[start:stop], bare=bare))
    same(slice_rows(localize(batch), start, stop), localize(batch_of(rows[start:stop], bare=bare)))
    same(join_batches([slice_rows(batch, *span) for span in ((0, start), (start, len(rows)))]), batch)


@given(rows=any_rows)
def test_joined_batches_have_what_all_have_and_ones_for_what_some_lack(rows: list[Row]) -> None:
    bare, full = batch_of(rows, bare=True), batch_of(rows)
    joined = join_batches([bare, full])
    assert joined.fields is None
    assert joined.values is not None
    assert joined.weights is not None
    np.testing.assert_array_equal(joined.values[bare.slots.size :], full.values)
    assert (joined.values[: bare.slots.size] == 1).all()
    assert (joined.weights[: len(rows)] == 1).all()
    np.testing.assert_array_equal(joined.labels, [label for _, label in rows] * 2)
