"""The kernels of coded fields are as plain Python."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from ctr.features.transform.coded_kernels import CodedSlots, slots_of, write_coded_rows
from ctr.features.transform.field_kernels import TILE
from tests.reference import coded as reference

pytestmark = pytest.mark.kernel
ROWS = 150  # more than two tiles


@pytest.mark.parametrize(("bits", "dtype"), [(20, np.uint32), (40, np.uint64)])
def test_slots_of_texts(bits: int, dtype: type) -> None:
    hashes = np.array([0, 1, 1 << bits, (1 << 64) - 1, 12345678901234567], np.uint64)
    present = np.array([True, True, True, True, False])
    found = np.empty(5, dtype)
    slots_of(hashes, present, np.uint64((1 << bits) - 1), found)
    assert found.tolist() == reference.slots_of_texts(hashes.tolist(), present.tolist(), bits)


@pytest.mark.parametrize("dtype", [np.uint32, np.uint64])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("with_fields", [False, True])
@pytest.mark.parametrize("bad", [[], [0, 63, 64, 70, 149], list(range(64))])
def test_rows_are_written_from_the_tables_of_their_fields(
    dtype: type, bias: bool, with_fields: bool, bad: list[int]
) -> None:
    rng = np.random.default_rng(3)
    tables = [rng.integers(0, 6, size) for size in (3, 1, 8)]  # 0: no feature
    codes = np.array([rng.integers(0, table.size, ROWS + 5) for table in tables], np.int32)
    status = np.zeros(ROWS, np.uint8)
    status[bad] = 7
    coded = CodedSlots(
        codes=codes,
        first=5,
        columns=np.arange(3),
        starts=np.array([0, 3, 4], np.uint64),
        slots=np.concatenate(tables).astype(dtype),
        tile=np.empty((3, TILE), dtype),
    )
    no_text = np.empty(0, np.uint8)
    no_text.flags.writeable = False
    no_places, no_floats = np.empty(0, np.int32), np.empty(0, np.float32)
    indptr, slots = np.zeros(ROWS + 1, np.int64), np.empty(4 * ROWS, dtype)
    fields = np.empty(slots.size if with_fields else 0, np.uint8)
    expected = reference.rows(tables, codes[:, 5:].tolist(), status.tolist(), bias=bias)
    row, rows = write_coded_rows(
        no_text, no_places, no_places, 0, 0, ROWS, status, np.zeros(ROWS, np.int32), (-1, -1, -1, -1), bias,
        coded, np.empty(TILE, np.int64), np.empty(TILE, np.uint64), indptr, slots, fields, no_floats,
        np.zeros(1, np.int8), no_floats, 0,
    )  # fmt: skip
    assert (row, rows) == (ROWS, len(expected))
    assert [slots[a:b].tolist() for a, b in pairwise(indptr[: rows + 1])] == expected
    if with_fields:
        ids = reference.rows(tables, codes[:, 5:].tolist(), status.tolist(), bias=bias, fields=True)
        assert [fields[a:b].tolist() for a, b in pairwise(indptr[: rows + 1])] == ids
