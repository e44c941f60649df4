"""`Transform` against its plain reference, and the messages for bad rows."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctr.errors import DataError
from ctr.features.batches.batch import Batch
from ctr.features.batches.builder import BatchBuilder
from ctr.features.spec import load_spec, parse_spec
from ctr.features.text import RowStatus
from ctr.features.text.cells import Cells
from ctr.features.text.number_kernels import (
    GARBAGE,
    LOG_CELLS,
    MISSING,
    NUMBER,
    log_bucket,
    log_bucket_of_whole,
    log_cells,
    parse_number,
)
from ctr.features.transform.field_kernels import TILE
from ctr.features.transform.transform import Transform
from tests.reference.transform import BadRowError, transform_row

pytestmark = pytest.mark.kernel

SPEC = parse_spec(
    """
version: 1
source: {format: delimited}
label: click
weight: w
bits: 22
seed: 3
fields:
  - {name: c, type: category}
  - {name: n, type: number, transform: log}
  - {name: n missing, column: n, type: number, transform: log, missing: feature}
  - {name: e, type: number, transform: edges, edges: [-2.5, 0, 0.1, 7, 1.0e+9]}
  - {name: é, type: category, missing: feature}
  - {name: five, column: c, type: category, missing: {value: "5.0"}}
  - {name: many, column: n, type: number, transform: log, missing: {value: " 1e3"}}
  - {name: few, column: n, type: number, transform: edges, edges: [0, 7], missing: {value: "-1"}}
crosses:
  - {name: cn, of: [c, n]}
  - c * e
  - {name: three, of: [n, é, n missing]}
  - {name: all, of: [é, c, n missing, e, n, many]}
""",
    "test",
)
SPECS = [
    SPEC,
    SPEC.model_copy(update={"bits": 40, "bias": False}),
    SPEC.model_copy(update={"bits": 1, "crosses": ()}),
]


def cells_of(rows: Sequence[Sequence[bytes]], columns: int, tail: bytes = b"") -> Cells:
    lengths = np.array([len(cell) for row in rows for cell in row], np.int32)
    ends = np.cumsum(lengths, dtype=np.int32)
    return Cells(
        buffer=np.frombuffer(b"".join(cell for row in rows for cell in row) + tail, np.uint8),
        starts=(ends - lengths).reshape(len(rows), columns),
        ends=ends.reshape(len(rows), columns),
    )


def rows_of(batch: Batch) -> list[tuple[list[int], float | None, float | None]]:
    return [
        (
            batch.slots[batch.indptr[i] : batch.indptr[i + 1]].tolist(),
            None if batch.labels is None else float(batch.labels[i]),
            None if batch.weights is None else float(batch.weights[i]),
        )
        for i in range(len(batch))
    ]


def assert_as_reference(transform: Transform, rows: Sequence[Sequence[bytes]], tail: bytes = b"") -> None:
    expected, bad = [], {}
    kinds: set[float] = set()
    for i, row in enumerate(rows):
        try:
            slots, label, weight = transform_row(
                transform.spec, transform.columns, row, transform.with_label, kinds
            )
            expected.append((slots, label, None if weight is None else float(np.float32(weight))))
        except BadRowError as error:
            what, column = error.args
            bad[i] = (RowStatus[what.upper()], column)
    status, column = np.zeros(len(rows), np.uint8), np.zeros(len(rows), np.int32)
    builder = BatchBuilder(transform.layout, len(rows))
    cells = cells_of(rows, len(transform.columns), tail)
    assert transform.append(cells, status, column, builder, 0) == len(rows)
    assert {int(i): (status[i], column[i]) for i in np.flatnonzero(status)} == bad
    assert rows_of(builder.take()) == expected


ODD_NUMBERS = [
    *b"0 -0 +7 - + . .5 5. -.5e1 1e5 1E+05 1e-400 1e400 -1e308 1e 1e+ nan NaN -nan inf -inf 0x1 1_0".split(),
    *b"99999999 100000000 -99999999 -100000000 000000000000000000000001 12345678901234 1e22".split(),
    *b"1.2.3 --1 -+1 1- \xff \xc3\xa9 1234567\x00 12345:78 12345/78 9223372036854775808".split(),
    *(b"-9223372036854775809", b"", b" ", b" 1 ", b"\t2", b"1 2"),
]
NUMBERS = st.one_of(
    st.integers(-(10**9), 10**10).map(lambda v: b"%d" % v),
    st.decimals(-(10**6), 10**6, places=3).map(lambda v: str(v).encode()),
    st.sampled_from(ODD_NUMBERS),
)
# Other spellings of a category, and what looks like one and is none.
SPELLINGS = [
    *b"5.0 5.00 -5.0 0.0 -0.0 -0 5. 05.0 00.0 .0 -.0 5.0.0 10.0.0.0 1.10 5.01 +5.0 5e0 0 00 --5.0".split(),
    *b"123456.0 12345.00 1234567.0 1234.000 1.000000 x.000000 1.2.3.00 12345678901234567890.0".split(),
    *b"true True TRUE tRUE trUe truE TRue tru? true. false False FALSE fALSE falsE FALSe FalSE falsy".split(),
    *b"nan NaN NAN Nan naN nan0 NaM inf - . .. -. 0.0000000000000000000000000000000000000000000".split(),
]
TEXTS = st.one_of(
    st.sampled_from(SPELLINGS),
    st.sampled_from([b"", b"68fd1e64", b"a", b"0", b"\xff\xfe", "größe".encode()]),
    st.sampled_from([b"x" * 31, b"y" * 32, b"z" * 1000]),
    st.binary(max_size=70),
    st.binary(min_size=8, max_size=8),
)
LABELS = st.sampled_from([*b"0 1 -1 1.0 +1 0e5 -1e0 2 x nan 0.5".split(), b" 1 ", b"", b"1" * 40])
WEIGHTS = st.sampled_from([*b"1 0.5 1e-3 3 0 -1 inf 1e39 1e-60 w".split(), b""])
GOOD_ROW = [b"1", b"2", b"68fd1e64", b"5", b"7.5", b"x"]


@settings(max_examples=150)
@given(
    st.sampled_from(SPECS),
    st.lists(st.tuples(LABELS, WEIGHTS, TEXTS, NUMBERS, NUMBERS, TEXTS), max_size=8),
    st.sampled_from([b"", b"0", b"9" * 20]),
)
def test_rows_come_out_as_the_reference_says(spec, rows, tail) -> None:
    assert_as_reference(Transform(spec, with_label=True), rows, tail)


@settings(max_examples=50)
@given(st.lists(st.tuples(TEXTS, NUMBERS, NUMBERS, TEXTS), max_size=5))
def test_rows_without_label(rows) -> None:
    transform = Transform(SPEC, with_label=False)
    assert transform.columns == ("c", "n", "e", "é")
    assert_as_reference(transform, rows)


@pytest.mark.parametrize("count", [0, 1, TILE - 1, TILE, TILE + 1, 5 * TILE + 3])
def test_rows_over_several_tiles(count: int) -> None:
    rng = np.random.default_rng(count)
    pools = [
        [b"1", b"0", b"-1", b"1.0", b"0"] if count % 2 else [b"1", b"-1"],
        [b"1", b"2.5"],
        [b"", b"68fd1e64", b"80e26c9b", b"long" * 20, b"7"],
        [b"", b"-3", b"12", b"4096", b"123456789", b"0.5", b"nan"],
        [b"", b"-3", b"0", b"7", b"8", b"1e9"],
        [b"", b"12345678", b"abc"],
    ]
    rows = [[pool[rng.integers(len(pool))] for pool in pools] for _ in range(count)]
    for i in range(7, count, 13):
        rows[i][i % 6] = b"-" if i % 6 in (0, 1, 3, 4) else rows[i][i % 6]
    for spec in SPECS:
        assert_as_reference(Transform(spec, with_label=True), rows)


def test_the_criteo_spec_on_rows_of_its_kind() -> None:
    transform = Transform(load_spec("criteo"), with_label=True)
    rng = np.random.default_rng(1)
    rows = [
        [b"%d" % rng.integers(2)]
        + [b"" if rng.random() < 0.2 else b"%d" % (rng.pareto(0.5) - 1) for _ in range(13)]
        + [b"" if rng.random() < 0.1 else b"%08x" % rng.integers(2**32) for _ in range(26)]
        for _ in range(300)
    ]
    assert_as_reference(transform, rows)
    assert_as_reference(transform, rows, b"\n")


def test_every_spelling_of_a_category_is_the_references() -> None:
    rows = [
        [b"1", b"2", text, b"5", b"7.5", other] for text in SPELLINGS for other in (text, b"x", b"12345678")
    ]
    assert_as_reference(Transform(SPEC, with_label=True), rows)
    for row in rows:  # and alone in a tile
        assert_as_reference(Transform(SPEC, with_label=True), [row], b"9" * 20)


def test_a_full_builder_stops_and_the_next_one_goes_on() -> None:
    transform = Transform(SPEC, with_label=True)
    rows = [[*GOOD_ROW[:3], b"%d" % i, *GOOD_ROW[4:]] for i in range(200)]
    for i in range(0, 200, 3):
        rows[i][0] = b"bad"
    cells = cells_of(rows, 6)
    status, column = np.zeros(200, np.uint8), np.zeros(200, np.int32)
    status[[1, 70]] = RowStatus.COLUMNS
    cells.starts[1], cells.ends[1] = -5, 2**31 - 1  # not to be looked at
    builder = BatchBuilder(transform.layout, 10)
    row, batches = 0, []
    while row < 200:
        row = transform.append(cells, status, column, builder, row)
        if builder.spare_rows == 0:
            batches.append(builder.take())
    assert len(batches) == 13
    assert builder.rows == 1
    batches.append(builder.take())
    good = [row for i, row in enumerate(rows) if i % 3 and i not in (1, 70)]
    expected = rows_of(transform.apply(cells_of(good, 6)))
    assert [row for batch in batches for row in rows_of(batch)] == expected


def test_what_was_taken_is_not_written_to_again() -> None:
    transform = Transform(SPEC, with_label=True)
    first, second = [GOOD_ROW] * 4, [[b"0", b"9", b"other", b"1", b"1", b"y"]] * 4
    for count in (1, 4):
        builder = BatchBuilder(transform.layout, 4)
        status, column = np.zeros(4, np.uint8), np.zeros(4, np.int32)
        transform.append(cells_of(first[:count], 6), status, column, builder, 0)
        taken = builder.take()
        before = rows_of(taken)
        assert builder.rows == 0
        transform.append(cells_of(second, 6), status, column, builder, 0)
        assert rows_of(taken) == before
        assert rows_of(builder.take()) == rows_of(transform.apply(cells_of(second, 6)))


def test_a_transform_leaves_memory_with_its_last_reference() -> None:
    gc.disable()  # which would find one that refers to itself, some time later
    try:
        transform = Transform(load_spec("criteo"), with_label=False)
        transform.apply_rows([{}])
        reference = weakref.ref(transform)
        del transform
        assert reference() is None
    finally:
        gc.enable()


def test_a_libsvm_builder_grows_and_keeps_what_it_has() -> None:
    builder = BatchBuilder(Transform(load_spec("libsvm"), with_label=True).layout, 3)
    for i, count in enumerate((5, 100, 0)):
        builder.reserve(count)
        end = builder.features + count
        builder.slots[builder.features : end] = i + 1
        builder.values[builder.features : end] = i + 0.5
        builder.labels[i] = i % 2
        builder.indptr[i + 1] = end
        builder.rows += 1
    batch = builder.take()
    assert batch.indptr.tolist() == [0, 5, 105, 105]
    assert batch.slots.tolist() == [1] * 5 + [2] * 100
    assert batch.values is not None
    assert batch.values.tolist() == [0.5] * 5 + [1.5] * 100
    assert batch.weights is None


def test_json_rows_are_transformed_as_text_is() -> None:
    transform = Transform(SPEC, with_label=False)
    batch = transform.apply_rows(
        [{"c": "68fd1e64", "n": 5, "e": 7.5, "é": "x"}, {"n": "12", "click": 1, "w": None}, {}]
    )
    text = [[b"68fd1e64", b"5", b"7.5", b"x"], [b"", b"12", b"", b""], [b""] * 4]
    assert rows_of(batch) == rows_of(transform.apply(cells_of(text, 4)))
    assert rows_of(transform.apply_rows([])) == []
    with pytest.raises(DataError, match=r"rows\[1\]: column 'e': 'seven' is not a number"):
        transform.apply_rows([{}, {"e": "seven"}])
    own = Transform(load_spec("libsvm"), with_label=False).apply_rows([{"features": "3:1 7:0.5"}, {}])
    assert own.indptr.tolist() == [0, 3, 4]  # with the bias


@pytest.mark.parametrize(
    ("at", "value", "message"),
    [
        (0, b"2", r"rows\[0\]: column 'click': '2' is no label; it must be 0 or 1"),
        (1, b"-1", r"rows\[0\]: column 'w': '-1' is no weight"),
        (4, b"\xff", r"rows\[0\]: column 'e': '\ufffd' is not a number"),
    ],
)
def test_the_first_bad_row_is_named(at: int, value: bytes, message: str) -> None:
    row = list(GOOD_ROW)
    row[at] = value
    with pytest.raises(DataError, match=message):
        Transform(SPEC, with_label=True).apply(cells_of([row], 6))


def parsed(text: bytes) -> tuple[int, float]:
    kind, value = parse_number(np.frombuffer(text, np.uint8), np.uint64(0), np.uint64(len(text)))
    return kind, value


@given(st.integers(-(10**15) + 1, 10**15 - 1), st.integers(-22, 22))
def test_fifteen_digits_are_parsed_exactly(digits: int, exponent: int) -> None:
    text = f"{digits}e{exponent}"
    assert parsed(text.encode()) == (NUMBER, float(text))


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_any_float_is_parsed_closely(value: float) -> None:
    kind, got = parsed(repr(value).encode())
    assert kind == NUMBER
    assert math.isclose(got, value, rel_tol=1e-14, abs_tol=1e-322)


def test_numbers_beyond_all_bounds() -> None:
    assert parsed(b"9" * 400)[0] == GARBAGE
    assert parsed(b"1e99999999999999999999")[0] == GARBAGE
    assert parsed(b"1e-99999999999999999999") == (NUMBER, 0.0)
    assert parsed(b"0" * 400 + b"7") == (NUMBER, 7.0)
    assert parsed(b"." + b"0" * 400 + b"7e401") == (NUMBER, 7.0)
    assert parsed(b"0e400") == (NUMBER, 0.0)
    assert parsed(b" \t ")[0] == MISSING


def test_the_table_of_log_buckets_agrees_with_the_logarithm() -> None:
    lowest, threshold = np.empty(LOG_CELLS, np.uint16), np.empty(LOG_CELLS, np.uint32)
    log_cells(lowest, threshold)
    near = (threshold.astype(np.int64)[:, None] + np.arange(-2, 3)).ravel()
    powers = np.array([2**k + d for k in range(32) for d in (-2, -1, 0, 1)])
    random = np.random.default_rng(0).integers(0, 10**8, 20_000)
    for value in np.concatenate([np.arange(5000), near, powers, random]):
        if 0 <= value < 2**32 - 1:
            assert log_bucket_of_whole(np.uint64(value), lowest, threshold) == log_bucket(float(value)), value
