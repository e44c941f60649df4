"""`RawSource` and `open_source`: batches, positions, bad rows, and inputs that cannot be used."""

from __future__ import annotations

import gc
import json
import os
import tracemalloc
import weakref
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from ctr.errors import DataError, SpecError
from ctr.features import SKIP
from ctr.features.dataset.source import DatasetSource
from ctr.features.dataset.writer import write_dataset
from ctr.features.opening import open_source
from ctr.features.raw import RawSource
from ctr.features.spec import FeatureSpec, load_spec, parse_spec
from tests.features.raw_files import ROWS, SPEC, csv_of, expected, joined, write


@pytest.mark.parametrize("rows", [1, 7, 40, 100, 1000])
def test_batches_have_the_size_asked_for_across_files(files: list[Path], rows: int) -> None:
    source = RawSource(SPEC, files)
    for _ in range(2):
        batches = list(source.batches(rows))
        assert [len(batch) for batch in batches[:-1]] == [rows] * ((len(ROWS) - 1) // rows)
        assert joined(batches) == expected(ROWS)
        assert source.fraction_read == 1
    assert source.count_rows() == len(ROWS)
    assert source.bad_rows.count == 0


@settings(max_examples=30)
@given(st.integers(0, 110), st.integers(0, 110), st.integers(1, 50))
def test_start_and_stop(tmp_path_factory: pytest.TempPathFactory, start: int, stop: int, rows: int) -> None:
    folder = tmp_path_factory.getbasetemp()
    paths = [write(folder / "a.csv", csv_of(ROWS[:33])), write(folder / "b.csv", csv_of(ROWS[33:]))]
    source = RawSource(SPEC, paths)
    assert joined(list(source.batches(rows, start, stop))) == expected(ROWS[start:stop])
    assert joined(list(source.batches(rows, start))) == expected(ROWS[start:])


def test_one_position_after_the_other_covers_bad_rows_too(tmp_path: Path) -> None:
    rows: list[tuple[object, ...]] = [*ROWS]
    for i in range(0, 100, 9):
        rows[i] = ("7", 1, "bad")
    source = RawSource(SPEC, [write(tmp_path / "a.csv", csv_of(rows))], on_bad_rows=SKIP)
    head = joined(list(source.batches(10, stop=50)))
    assert (source.bad_rows.count, source.bad_rows.end) == (6, 46)
    tail = joined(list(source.batches(10, start=50)))
    assert (source.bad_rows.count, source.bad_rows.end) == (12, 100)
    assert [source.bad_rows.count_from(start) for start in (0, 50)] == [6, 6]
    assert head + tail == expected([row for row in rows if row[2] != "bad"])
    assert source.count_rows() == 100


def test_a_sample_leaves_no_trace(files: list[Path]) -> None:
    source = RawSource(SPEC, files)
    assert joined([source.sample(45)]) == expected(ROWS[:45])
    assert joined([source.sample(1000)]) == expected(ROWS)
    assert source.bad_rows.count == 0


def test_a_source_leaves_memory_with_its_last_reference(files: list[Path]) -> None:
    gc.disable()  # which would find one that refers to itself, some time later
    try:
        source = RawSource(SPEC, files)
        assert sum(map(len, source.batches(30))) == len(ROWS)
        reference = weakref.ref(source)
        del source
        assert reference() is None
    finally:
        gc.enable()


def test_weights_are_read(tmp_path: Path) -> None:
    fields = "[{name: c, type: category}]"
    text = f"{{version: 1, source: {{format: delimited}}, label: y, weight: w, fields: {fields}}}"
    path = write(tmp_path / "a.csv", "w,y,c\n0.5,1,a\n-1,1,a\n2,0,b\n")
    (batch,) = RawSource(parse_spec(text, "t.yaml"), [path], on_bad_rows=SKIP).batches(10)
    assert batch.weights is not None
    np.testing.assert_array_equal(batch.weights, np.float32([0.5, 2]))


def test_the_fraction_read(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"{k}.csv", csv_of(ROWS * 200)) for k in range(2)]
    source = RawSource(SPEC, paths)
    seen = [source.fraction_read for _ in source.batches(1000)]
    assert seen == sorted(seen)
    assert 0 < seen[0] < 1
    assert 0.4 < seen[len(seen) // 2] <= 1
    part = [source.fraction_read for _ in source.batches(1000, start=2000, stop=6000)]
    np.testing.assert_allclose(part, [0.25, 0.5, 0.75, 1])


def test_inputs_that_cannot_be_used(tmp_path: Path) -> None:
    good = write(tmp_path / "good.csv", csv_of(ROWS))
    with pytest.raises(DataError, match=r"none\.csv: there is no such file"):
        RawSource(SPEC, [good, tmp_path / "none.csv"])
    with pytest.raises(DataError, match="There are no input files"):
        open_source([], SPEC)
    with pytest.raises(DataError, match="the file is empty"):
        RawSource(SPEC, [good, write(tmp_path / "empty.csv", "")])
    with pytest.raises(SpecError, match="Raw files need a feature spec"):
        open_source([good], None)
    write_dataset(RawSource(SPEC, [good]).batches(65_536), SPEC, tmp_path / "hashed")
    with pytest.raises(DataError, match="must be the only input"):
        open_source([good, tmp_path / "hashed"], SPEC)
    with pytest.raises(DataError, match="it is no hashed data set"):
        open_source([tmp_path], None)
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(DataError, match=r"pipe\.csv: not a regular file"):
        RawSource(SPEC, [tmp_path / "pipe.csv"])


def test_formats_are_told_by_suffix_and_fit_the_spec(tmp_path: Path) -> None:
    libsvm = load_spec("libsvm")
    pages = write(tmp_path / "pages.svm.gz", "1 3:1\n-1 4:1 5:2\n")
    (batch,) = open_source([pages], libsvm).batches(10)
    assert batch.labels is not None
    assert batch.labels.tolist() == [1, 0]
    (batch,) = open_source([write(tmp_path / "pages.txt", "1 3:1\n")], libsvm).batches(10)
    assert len(batch) == 1
    with pytest.raises(SpecError, match=r"such as libsvm"):
        open_source([pages], SPEC)
    parquet.write_table(pa.table({"y": [1]}), tmp_path / "a.parquet")
    with pytest.raises(SpecError, match=r"such as criteo"):
        open_source([tmp_path / "a.parquet"], libsvm)


def test_a_folder_is_a_hashed_data_set(tmp_path: Path, files: list[Path]) -> None:
    write_dataset(RawSource(SPEC, files).batches(64), SPEC, tmp_path / "set", block_rows=64)
    source = open_source([tmp_path / "set"], None)
    assert isinstance(source, DatasetSource)
    assert source.spec == SPEC
    assert source.count_rows() == len(ROWS)


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    lines = csv_of(ROWS).split("\n", 1)[1]
    peaks = []
    for copies in (2_000, 8_000):  # 2 MB, 8 MB
        path = write(tmp_path / "a.csv", "y,n,c\n")
        with path.open("a") as file:
            file.writelines(lines for _ in range(copies))
        RawSource(SPEC, [path]).sample(1)  # loads the kernels
        tracemalloc.start()
        for _ in RawSource(SPEC, [path]).batches(4096):
            pass
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.1 * peaks[0] < 20_000_000


DATA = Path(__file__).parents[3] / "shared" / "data"


@pytest.mark.skipif(not DATA.exists(), reason="needs the real data sets, which are not part of the project")
@pytest.mark.parametrize(
    ("name", "spec", "rows", "positives"),
    [
        ("criteo_60k.tsv.gz", "criteo", 60_000, 0.2248),
        ("avazu_10k.csv.gz", "avazu", 9_999, 0.1706),
        ("a9a.libsvm.gz", "libsvm", 32_561, 0.241),
        ("w6a_test.libsvm.gz", "libsvm", 8_595, 0.022),
    ],
)
def test_real_data(name: str, spec: str, rows: int, positives: float) -> None:
    source = RawSource(load_spec(spec), [DATA / name])
    labels = np.concatenate([batch.labels for batch in source.batches(4096) if batch.labels is not None])
    assert labels.size == source.count_rows() == rows
    assert abs(labels.mean() - positives) < 0.0006


def test_parts_read_one_after_the_other_equal_one_pass(tmp_path: Path) -> None:
    """Each goes on in the block in which the last one stopped; going back starts from the beginning."""
    paths = [tmp_path / "a.tsv", tmp_path / "b.tsv"]
    for path in paths:
        path.write_text("".join(f"{i % 2},{path.name}{i}\n" for i in range(5_000)))
    spec = parse_spec(
        "version: 1\nsource: {format: delimited, delimiter: ',', header: false, columns: [y, c]}\n"
        "label: y\nbits: 20\nfields: [{name: c, type: category}]\n",
        "test",
    )
    whole = np.concatenate([batch.slots for batch in RawSource(spec, paths).batches(1_000)])
    source = RawSource(spec, paths)
    cuts = [0, 1, 700, 700, 4_999, 5_000, 5_001, 9_000, 10_000]
    for order in (cuts, [0, 3_000, 10_000], [0, 500], [9_000, 10_000]):
        found = [batch.slots for start, stop in pairwise(order) for batch in source.batches(333, start, stop)]
        np.testing.assert_array_equal(
            np.concatenate([np.empty(0, np.uint32), *found]), whole[2 * order[0] : 2 * order[-1]]
        )


def numbers_spec(transform: str) -> FeatureSpec:
    return parse_spec(
        "{version: 1, source: {format: delimited}, label: y,"
        f" fields: [{{name: rate, column: n, type: number, transform: {transform}}}]}}",
        "test.yaml",
    )


@pytest.mark.parametrize(
    ("transform", "values", "warning"),
    [
        (
            "log",
            [i / 1000 for i in range(1000)],
            "100.0% of the 1,000 distinct values in the first 1,001 rows are",
        ),
        ("log", [i / 1000 for i in range(990)] + [1, 2, 3, 4], "99.6% of the 994 distinct values"),
        ("log", [*range(1000)], None),
        ("log", [0, 1] * 50, None),
        ("log", ["", 7, 7.0, "nan"] * 9, None),
        ("edges, edges: [0.1, 0.5]", [i / 1000 for i in range(1000)], None),
        (
            "edges, edges: [5]",
            [i / 1000 for i in range(1000)],
            "choose edges between its values, which lie from 0 to",
        ),
    ],
)
def test_a_field_whose_values_are_one_bucket_is_warned_of(
    tmp_path: Path, transform: str, values: list[object], warning: str | None
) -> None:
    path = write(
        tmp_path / "a.csv", csv_of([(i % 2, value, "c") for i, value in enumerate(values)] + [("torn",)])
    )
    spec = numbers_spec(transform)
    found = RawSource(spec, [path]).warnings()
    assert len(found) == (warning is not None)
    if warning is not None:
        assert warning in found[0]
        assert found[0].startswith("field 'rate': ")
    parquet.write_table(pa.table({"y": [0, 1], "n": [0.25, 0.5]}), tmp_path / "b.parquet")
    assert len(RawSource(numbers_spec("log"), [tmp_path / "b.parquet"]).warnings()) == 1
    assert RawSource(load_spec("libsvm"), [write(tmp_path / "c.svm", "1 3:1\n")]).warnings() == []


def json_lines(path: Path, rows: Iterable[dict[str, object]]) -> Path:
    return write(path, "".join(json.dumps(row) + "\n" for row in rows))


def test_a_column_that_no_row_has(tmp_path: Path) -> None:
    spec = parse_spec(
        "version: 1\nsource: {format: jsonl}\nlabel: y\nfields:\n"
        "  - {name: site, column: publisher_site, type: category}\n  - {name: hour, type: category}\n",
        "my.yaml",
    )
    rows = [{"y": k % 2, "publisher-site": "a", "hour": k} for k in range(500)]
    log = json_lines(tmp_path / "log.jsonl", rows)
    (warning,) = RawSource(spec, [log]).warnings()
    assert warning == (
        "column 'publisher_site', which the feature spec needs, has no value in the first 500 rows; did"
        " you mean 'publisher-site'?"
    )
    odd = json_lines(tmp_path / "odd.jsonl", [{"y": 1, "a": 2, "b": 3, "hour": 1}])
    (warning,) = RawSource(spec, [odd]).warnings()
    assert warning.endswith("has no value in the first row; they have 'y', 'a', 'b', 'hour'")
    other = write(tmp_path / "other.jsonl", "y,hour\n1,2\n")
    assert RawSource(spec, [other]).warnings()[0].endswith("; they have no column that can be read")
    late = json_lines(tmp_path / "late.jsonl", [*rows, {"y": 1, "publisher_site": "b"}])
    null = json_lines(tmp_path / "null.jsonl", [{"y": 1, "publisher_site": None, "hour": None}])
    for files in ([late], [log, late], [null], [log, null]):
        assert RawSource(spec, files).warnings() == []


@pytest.mark.parametrize(
    ("tags", "keys", "delimiter"),
    [
        (["a|b", "a", "", "b|c"], "", "|"),
        (["a, b", "c, d", "e"], "", ","),
        (["red shoes", "blue shoes", "hats"], "", " "),
        (["a;b", "c", "d"], "", None),
        (["a|b", "a", "b|c"], ", delimiter: ' '", None),
        (["", ""], "", None),
    ],
)
def test_a_list_whose_cells_are_taken_whole_is_warned_of(
    tmp_path: Path, tags: list[str], keys: str, delimiter: str | None
) -> None:
    def spec_of(form: str) -> FeatureSpec:
        fields = f"[{{name: tags, type: list{keys}}}]"
        return parse_spec(f"{{version: 1, source: {form}, label: y, fields: {fields}}}", "s.yaml")

    rows = [(k % 2, tag) for k, tag in enumerate(tags)]
    log = write(
        tmp_path / "log.tsv", "".join(f"{y}\t{tag}\n" for y, tag in [("y", "tags"), *rows, (1, "a\tb")])
    )
    found = RawSource(spec_of('{format: delimited, delimiter: "\\t", header: true}'), [log]).warnings()
    share = f"{2 / sum(map(bool, tags)):.0%}" if any(tags) else ""
    assert found == (
        [
            f"field 'tags': it has no delimiter, so a cell is one element, but {share} of the cells in the"
            f' first {len(rows) + 1} rows contain {delimiter!r}; add delimiter: "{delimiter}"'
        ]
        if delimiter
        else []
    )
    lines = json_lines(tmp_path / "log.jsonl", ({"y": y, "tags": [tag]} for y, tag in rows))
    assert not any(tags) or RawSource(spec_of("{format: jsonl}"), [lines]).warnings() == []
