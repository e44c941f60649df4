"""Coded cells become what the same cells become one by one, which the reference checks."""

from __future__ import annotations

import numpy as np
import pytest

from ctr.features.batches.batch import Batch
from ctr.features.batches.builder import BatchBuilder
from ctr.features.spec import parse_spec
from ctr.features.text.cells import Cells, CodedCells, CodedColumns, Texts
from ctr.features.transform.transform import Transform

pytestmark = pytest.mark.kernel
ROWS = 150  # more than two tiles
SPEC = """
version: 1
source: {format: parquet}
label: y
weight: w
bias: true
bits: 20
fields:
  - {name: a, type: category}
  - {name: b, type: category, missing: feature}
  - {name: lower, column: b, type: category, lower: true}
  - {name: n, type: number, transform: log}
  - {name: edges, column: n, type: number, transform: edges, edges: [0, 2.5], missing: {value: "3"}}
"""


def texts_of(texts: list[bytes]) -> Texts:
    ends = np.cumsum([len(text) for text in texts], dtype=np.int32)
    return Texts(np.frombuffer(b"".join(texts), np.uint8), np.append(np.int32(0), ends[:-1]), ends)


def batch_of(transform: Transform, cells: Cells, bad: list[int]) -> tuple[Batch, list[int], list[int]]:
    builder = BatchBuilder(transform.layout, ROWS)
    status, column = np.zeros(ROWS, np.uint8), np.zeros(ROWS, np.int32)
    status[bad] = 7
    assert transform.append(cells, status, column, builder, 0) == ROWS
    return builder.take(), status.tolist(), column.tolist()


@pytest.mark.parametrize("bits", [20, 40])
@pytest.mark.parametrize("crosses", ["", "crosses: [a * b, a * n * lower]\n"])
@pytest.mark.parametrize("with_fields", [False, True])
@pytest.mark.parametrize("bad", [[], [0, 63, 64, 70, 149], list(range(64))])
@pytest.mark.parametrize("coded", [["a"], ["b", "n"], ["a", "b", "n"]])
def test_coded_cells_become_what_they_become_one_by_one(
    bits: int, crosses: str, with_fields: bool, bad: list[int], coded: list[str]
) -> None:
    rng = np.random.default_rng(3)
    spec = parse_spec(SPEC.replace("bits: 20", f"bits: {bits}") + crosses, "test.yaml")
    transform = Transform(spec, with_label=True, with_fields=with_fields)
    pools = {
        "y": [b"0", b"1", b"1", b"x"],
        "w": [b"1", b"2.5", b"0.5", b"-1"],
        "a": [b"8bytes..", b"5.0", b"x" * 40, b""],
        "b": [b"Ab", b"aB", b"nan", b""],
        "n": [b"2", b"-7", b"123456789", b""],
    }
    codes = {name: rng.integers(0, len(pool), ROWS).astype(np.int32) for name, pool in pools.items()}
    plain = [name for name in transform.columns if name not in coded]
    cells = [[pools[name][codes[name][i]] for name in plain] for i in range(ROWS)]
    others = texts_of([text for row in cells for text in row])
    shape = ROWS, len(plain)
    columns = CodedColumns(
        {transform.columns.index(name): texts_of(pools[name]) for name in coded},
        np.array([codes[name] for name in coded]),
        others.buffer,
    )
    rows = Cells(others.buffer, others.starts.reshape(shape), others.ends.reshape(shape))
    by_value = CodedCells(rows, columns, 0)
    got, *problems = batch_of(transform, by_value, bad)
    expected, *expected_problems = batch_of(transform, by_value.kept(), bad)
    assert problems == expected_problems
    for name in ("indptr", "slots", "fields", "labels", "weights"):
        assert np.array_equal(getattr(got, name), getattr(expected, name)), name
    assert len(got) > 20
