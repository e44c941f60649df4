"""`RawSource` and `open_source`: batches, positions, bad rows, and inputs that cannot be used."""

from __future__ import annotations

import gzip
import json
import os
import tracemalloc
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from ctr.errors import DataError, SpecError
from features.batches.batch import Batch
from features.dataset.source import DatasetSource
from features.dataset.writer import write_dataset
from features.opening import open_source
from features.source import RawSource
from features.spec import FeatureSpec, load_spec, parse_spec
from features.transform.transform import Transform

SPEC = parse_spec(
    """
version: 1
source: {format: delimited, header: true}
label: y
fields: [{name: n, type: number, transform: log}, {name: c, type: category}]
""",
    "test.yaml",
)
ROWS = [(i % 2, i * i, f"v{i % 7}") for i in range(100)]


def csv_of(rows: list[tuple[object, ...]], header: str = "y,n,c") -> str:
    return "".join(line + "\n" for line in [header, *(",".join(map(str, row)) for row in rows)])


def write(path: Path, text: str) -> Path:
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def joined(batches: list[Batch]) -> list[tuple[float | None, list[int]]]:
    """Label and slots of every row."""
    rows = []
    for batch in batches:
        for i in range(len(batch)):
            slots = batch.slots[batch.indptr[i] : batch.indptr[i + 1]].tolist()
            rows.append((None if batch.labels is None else float(batch.labels[i]), slots))
    return rows


def expected(rows: list[tuple[object, ...]]) -> list[tuple[float | None, list[int]]]:
    """What serving makes of the same rows, with their labels."""
    batch = Transform(SPEC, with_label=False).apply_rows([{"n": n, "c": c} for _, n, c in rows])
    return [(float(str(row[0])), slots) for row, (_, slots) in zip(rows, joined([batch]), strict=True)]


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """`ROWS` in three files: plain, compressed with other columns, and Parquet."""
    a = write(tmp_path / "a.csv", csv_of(ROWS[:40]))
    b = write(tmp_path / "b.csv.gz", csv_of([(c, "x", y, n) for y, n, c in ROWS[40:70]], "c,extra,y,n"))
    y, n, c = zip(*ROWS[70:], strict=True)
    parquet.write_table(pa.table({"c": c, "n": np.array(n, np.float64), "y": y}), tmp_path / "c.parquet")
    return [a, b, tmp_path / "c.parquet"]


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
    source = RawSource(SPEC, [write(tmp_path / "a.csv", csv_of(rows))], on_bad_rows="skip")
    head = joined(list(source.batches(10, stop=50)))
    assert (source.bad_rows.count, source.bad_rows.end) == (6, 46)
    tail = joined(list(source.batches(10, start=50)))
    assert (source.bad_rows.count, source.bad_rows.end) == (12, 100)
    assert [source.bad_rows.count_from(start) for start in (0, 50)] == [6, 6]
    assert head + tail == expected([row for row in rows if row[2] != "bad"])
    assert source.count_rows() == 100


BAD = "y,n,c\n1,2,ok\n2,2,label\n1,2\n0,x,number\n,1,none\n0,,ok\n"


def test_the_first_bad_row_fails(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", BAD)
    with pytest.raises(DataError) as error:
        list(RawSource(SPEC, [path]).batches(10))
    message = str(error.value)
    assert message.startswith(f"{path}:3: column 'y': '2' is ")
    assert message.endswith("fix the row or use --on-bad-rows skip or quarantine.")


def test_bad_rows_are_skipped_and_counted(tmp_path: Path) -> None:
    paths = [write(tmp_path / "a.csv", BAD), write(tmp_path / "b.csv", BAD)]
    source = RawSource(SPEC, paths, on_bad_rows="skip")
    following = source.bad_rows.follow()
    for _ in range(2):
        assert joined(list(source.batches(10))) == 2 * expected([(1, 2, "ok"), (0, None, "ok")])
        assert np.concatenate(list(following)).tolist() == [1, 2, 3, 4, 7, 8, 9, 10]
        assert source.bad_rows.count == 8
        examples = source.bad_rows.examples
        assert [example.split(": ")[0] for example in examples] == [
            *(f"{paths[0]}:{line}" for line in (3, 4, 5, 6)),
            f"{paths[1]}:3",
        ]
        assert examples[1].endswith("found 2 columns, expected 3")


def test_a_pass_that_stops_early_forgets_no_bad_row(tmp_path: Path) -> None:
    source = RawSource(SPEC, [write(tmp_path / "a.csv", BAD)], on_bad_rows="skip")
    for _ in source.batches(1):
        pass
    (example, *_) = source.bad_rows.examples
    second = source.batches(1)
    next(second)
    assert source.bad_rows.count == 4
    assert source.bad_rows.examples[0] == example


def test_quarantine_keeps_each_bad_row_once(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", BAD)
    kept = write(tmp_path / "kept.csv", "from an earlier job\n")
    source = RawSource(SPEC, [path], on_bad_rows="quarantine", quarantine=kept)
    source.sample(1)
    assert kept.read_text() == "from an earlier job\n"
    for start, stop in [(3, None), (0, 3), (0, None)]:
        list(source.batches(10, start, stop))
    assert kept.read_text() == "0,x,number\n,1,none\n2,2,label\n1,2\n"
    assert sorted(tmp_path.iterdir()) == [path, kept]


@pytest.mark.parametrize("old", ["from an earlier job\n", None])
def test_without_bad_rows_no_quarantine_is_made_or_emptied(tmp_path: Path, old: str | None) -> None:
    path = write(tmp_path / "a.csv", csv_of(ROWS))
    kept = tmp_path / "kept.csv"
    if old is not None:
        kept.write_text(old)
    list(RawSource(SPEC, [path], on_bad_rows="quarantine", quarantine=kept).batches(10))
    assert (kept.read_text() if kept.exists() else None) == old


def test_an_old_quarantine_stays_until_the_pass_ends(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", BAD + csv_of(ROWS, "3,3,three"))
    kept = write(tmp_path / "kept.csv", "from an earlier job\n")
    batches = RawSource(SPEC, [path], on_bad_rows="quarantine", quarantine=kept).batches(2)
    next(batches)
    assert kept.read_text() == "from an earlier job\n"
    batches.close()  # type: ignore[attr-defined]
    assert kept.read_text() == "2,2,label\n1,2\n0,x,number\n,1,none\n"
    assert sorted(tmp_path.iterdir()) == [path, kept]


def test_what_was_quarantined_before_a_failure_is_kept(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", BAD)
    torn = write(tmp_path / "b.csv.gz", csv_of(ROWS * 100))
    kept = tmp_path / "kept.csv"
    source = RawSource(SPEC, [path, torn], on_bad_rows="quarantine", quarantine=kept)
    torn.write_bytes(torn.read_bytes()[:-20])
    with pytest.raises(DataError, match="cannot be read to its end"):
        list(source.batches(10))
    assert kept.read_text() == "2,2,label\n1,2\n0,x,number\n,1,none\n"


def test_quarantine_of_parquet_is_json(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"y": [1, 5], "n": [1, 2], "c": ["a", "b"]}), tmp_path / "a.parquet")
    kept = tmp_path / "kept.jsonl"
    source = RawSource(SPEC, [tmp_path / "a.parquet"], on_bad_rows="quarantine", quarantine=kept)
    list(source.batches(10))
    assert json.loads(kept.read_text()) == {"y": "5", "n": "2", "c": "b"}


def test_a_quarantine_that_cannot_be_written(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", BAD)
    source = RawSource(SPEC, [path], on_bad_rows="quarantine", quarantine=tmp_path / "none" / "kept.csv")
    with pytest.raises(DataError, match="bad rows cannot be kept there"):
        list(source.batches(10))
    with pytest.raises(ValueError, match="if and only if"):
        RawSource(SPEC, [path], on_bad_rows="quarantine")


def test_only_bad_rows_make_no_batch(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "y,n,c\n5,1,a\n5,1,a\n")
    source = RawSource(SPEC, [path], on_bad_rows="skip")
    assert list(source.batches(10)) == []
    assert source.bad_rows.count == 2
    assert len(source.sample(5)) == 0


def test_a_sample_leaves_no_trace(files: list[Path]) -> None:
    source = RawSource(SPEC, files)
    assert joined([source.sample(45)]) == expected(ROWS[:45])
    assert joined([source.sample(1000)]) == expected(ROWS)
    assert source.bad_rows.count == 0


def test_ignored_labels_may_be_absent_or_anything(tmp_path: Path, files: list[Path]) -> None:
    bare = write(tmp_path / "bare.csv", csv_of([(n, c) for _, n, c in ROWS], "n,c"))
    odd = write(tmp_path / "odd.csv", csv_of([(("", "?", 7, -1)[i % 4], *ROWS[i][1:]) for i in range(100)]))
    _, n, c = zip(*ROWS, strict=True)
    table = pa.table({"c": c, "n": n, "y": [[None]] * 100})  # a label that could not even be read
    parquet.write_table(table, tmp_path / "odd.parquet")
    unlabelled = [(None, slots) for _, slots in expected(ROWS)]
    for paths in ([bare], files, [odd], [tmp_path / "odd.parquet"], [*files[:2], files[2]]):
        assert joined(list(RawSource(SPEC, paths, labels="ignored").batches(30))) == unlabelled
    source = RawSource(SPEC, [*files, bare, odd], labels="ignored")
    assert joined(list(source.batches(30))) == 3 * unlabelled
    with pytest.raises(DataError, match=r"bare\.csv: there is no column 'y'"):
        RawSource(SPEC, [*files, bare])


HEADERLESS = parse_spec(
    "{version: 1, source: {format: delimited, header: false, columns: [y, n, c]}, label: y,"
    " fields: [{name: c, type: category}]}",
    "t.yaml",
)


def test_headerless_files_without_label(tmp_path: Path) -> None:
    (batch,) = RawSource(HEADERLESS, [write(tmp_path / "a.csv", "1,a\n2,b\n")], labels="ignored").batches(10)
    assert batch.labels is None
    assert len(batch) == 2


def test_a_short_first_row_does_not_hide_the_label_column(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "1,a\n" + "?,2,b\n" * 10)
    source = RawSource(HEADERLESS, [path], labels="ignored", on_bad_rows="skip")
    (batch,) = source.batches(20)
    assert len(batch) == 10
    assert source.bad_rows.examples == (f"{path}:1: found 2 columns, expected 3",)
    (only_b,) = np.unique(batch.slots[batch.slots > 0])
    whole = RawSource(HEADERLESS, [write(tmp_path / "b.csv", "0,2,b\n")])
    assert only_b in next(whole.batches(1)).slots


@pytest.mark.parametrize(
    ("lines", "line", "kinds"),
    [("0 1 1 -1", 4, ("-1", "0 or 1")), ("1 -1 1 -1.0 0", 5, ("0", "-1 or 1"))],
)
@pytest.mark.parametrize("suffix", ["csv", "svm", "parquet"])
def test_labels_of_two_kinds_are_not_mixed(
    tmp_path: Path, lines: str, line: int, kinds: tuple[str, str], suffix: str
) -> None:
    labels, path = lines.split(), tmp_path / f"a.{suffix}"
    if suffix == "parquet":
        size = len(labels)
        parquet.write_table(pa.table({"y": labels, "n": [1] * size, "c": ["x"] * size}), path)
    elif suffix == "svm":
        write(path, "".join(f"{label} 3:1\n" for label in labels))
    else:
        write(path, csv_of([(label, 1, "x") for label in labels]))
        line += 1
    source = RawSource(load_spec("libsvm") if suffix == "svm" else SPEC, [path], on_bad_rows="skip")
    for _ in range(2):
        assert sum(map(len, source.batches(2))) == len(labels) - 1
        (example,) = source.bad_rows.examples
        assert example.startswith(f"{path}: row {line}: " if suffix == "parquet" else f"{path}:{line}: ")
        assert repr(kinds[0]) in example
        assert f"other rows have {kinds[1]}; write all labels one way" in example


def test_labels_are_of_one_kind_over_all_files_and_passes(tmp_path: Path) -> None:
    plain = write(tmp_path / "a.csv", csv_of(ROWS))
    minus = write(tmp_path / "b.csv", csv_of([(2 * y - 1, n, c) for y, n, c in ROWS]))
    assert joined(list(RawSource(SPEC, [minus]).batches(30))) == expected(ROWS)
    with pytest.raises(
        DataError, match=rf"{minus}:2: column 'y': '-1' is a label of -1 or 1, but other rows"
    ):
        list(RawSource(SPEC, [plain, minus]).batches(30))
    source = RawSource(SPEC, [plain, minus], on_bad_rows="skip")
    list(source.batches(30, start=100))
    assert source.bad_rows.count == 0
    list(source.batches(30))
    assert source.bad_rows.count == 50
    assert "'0' is a label of 0 or 1" in source.bad_rows.examples[0]


def test_many_bad_rows_take_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("y,n,c\n" + "2,1,a\n" * 60_000)
    source = RawSource(SPEC, [path], on_bad_rows="skip")
    source.sample(1)
    tracemalloc.start()
    list(source.batches(4096))
    kept = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert source.bad_rows.count == 60_000
    assert kept < 150_000


def test_weights_are_read(tmp_path: Path) -> None:
    fields = "[{name: c, type: category}]"
    text = f"{{version: 1, source: {{format: delimited}}, label: y, weight: w, fields: {fields}}}"
    path = write(tmp_path / "a.csv", "w,y,c\n0.5,1,a\n-1,1,a\n2,0,b\n")
    (batch,) = RawSource(parse_spec(text, "t.yaml"), [path], on_bad_rows="skip").batches(10)
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
    with pytest.raises(DataError, match="must be the only input"):
        open_source([good, tmp_path], SPEC)
    with pytest.raises(DataError, match=str(tmp_path)):
        open_source([tmp_path], SPEC)
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
    for copies in (2_000, 20_000):  # 2 MB, 20 MB
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


@pytest.mark.parametrize("kind", ["csv", "parquet", "svm"])
@pytest.mark.parametrize("first", ["-1", "0"])
def test_one_odd_label_at_the_start_does_not_make_bad_rows_of_the_others(
    tmp_path: Path, kind: str, first: str
) -> None:
    other = "0" if first == "-1" else "-1"
    labels = [first, *["1", other, other] * 1_000]
    path = tmp_path / f"a.{kind}"
    if kind == "parquet":
        size = len(labels)
        parquet.write_table(pa.table({"y": labels, "n": [1] * size, "c": ["x"] * size}), path)
    elif kind == "svm":
        write(path, "".join(f"{label} 3:1\n" for label in labels))
    else:
        write(path, csv_of([(label, 1, "x") for label in labels]))
    source = RawSource(load_spec("libsvm") if kind == "svm" else SPEC, [path], on_bad_rows="skip")
    assert source.sample(3_000).labels.mean() == pytest.approx(1 / 3)
    (batch,) = source.batches(3_000)
    assert batch.labels.tolist() == [1, 0, 0] * 1_000
    assert (source.bad_rows.count, source.bad_rows.end) == (1, 1)


def test_rows_that_are_bad_anyway_have_no_say_in_the_kind_of_labels(tmp_path: Path) -> None:
    rows: list[tuple[object, ...]] = [(-1, "x", "bad")] * 20 + [(i % 2, i, "c") for i in range(30)]
    source = RawSource(SPEC, [write(tmp_path / "a.csv", csv_of(rows))], on_bad_rows="skip")
    (batch,) = source.batches(100)
    assert batch.labels.tolist() == [0, 1] * 15


def test_too_many_bad_rows_end_a_pass_with_the_counts_by_reason(tmp_path: Path) -> None:
    rows: list[tuple[object, ...]] = [*ROWS] * 20
    for i in range(0, 120, 10):
        rows[i] = (1, "x", "bad") if i % 20 else (7, 1, "bad")
    path = write(tmp_path / "a.csv", csv_of(rows) + "1,2\n" * 10)
    for allowed in (None, 0.011):
        source = RawSource(SPEC, [path], on_bad_rows="skip", max_bad_fraction=allowed)
        assert sum(map(len, source.batches(100))) == 1_988
    source = RawSource(SPEC, [path], on_bad_rows="skip", max_bad_fraction=0.01)
    with pytest.raises(DataError) as error:
        list(source.batches(100))
    assert str(error.value).startswith(
        "22 of the 2,010 rows read are bad (1.1%), more than --max-bad-fraction 0.01 allows: 10 with 2"
        " columns instead of 3, 6 with column 'y': no label (0 or 1, or -1 or 1), 6 with column 'n': not a"
        f" number; such as {path}:2: column 'y': '7' is no label"
    )
    with pytest.raises(DataError, match="10 of the 10 rows read are bad"):
        list(source.batches(100, start=2_000))
    assert sum(map(len, source.batches(100, start=60, stop=1_900))) == 1_834  # 6 bad rows are always allowed


@pytest.mark.parametrize(
    ("bad", "rows", "allowed"), [(1, 10, True), (10, 20, True), (3, 4, False), (11, 99, False)]
)
def test_a_few_bad_rows_of_few_are_allowed(tmp_path: Path, bad: int, rows: int, allowed: bool) -> None:
    text = csv_of([*ROWS[: rows - bad], *[("?", 1, "x")] * bad])
    source = RawSource(SPEC, [write(tmp_path / "a.csv", text)], on_bad_rows="skip", max_bad_fraction=0.01)
    if allowed:
        assert sum(map(len, source.batches(100))) == rows - bad
    else:
        with pytest.raises(DataError, match=f"{bad} of the {rows} rows read are bad"):
            list(source.batches(100))


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
