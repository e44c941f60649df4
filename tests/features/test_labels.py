"""Labels that are of two kinds, ignored, or not there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from ctr.errors import DataError
from ctr.features import SKIP
from ctr.features.inspect import draft_spec
from ctr.features.raw import RawSource
from ctr.features.spec import load_spec, parse_spec
from tests.features.raw_files import ROWS, SPEC, csv_of, expected, joined, write


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
    source = RawSource(HEADERLESS, [path], labels="ignored", on_bad_rows=SKIP)
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
    source = RawSource(load_spec("libsvm") if suffix == "svm" else SPEC, [path], on_bad_rows=SKIP)
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
    source = RawSource(SPEC, [plain, minus], on_bad_rows=SKIP)
    list(source.batches(30, start=100))
    assert source.bad_rows.count == 0
    list(source.batches(30))
    assert source.bad_rows.count == 50
    assert "'0' is a label of 0 or 1" in source.bad_rows.examples[0]


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
    source = RawSource(load_spec("libsvm") if kind == "svm" else SPEC, [path], on_bad_rows=SKIP)
    assert source.sample(3_000).labels.mean() == pytest.approx(1 / 3)
    (batch,) = source.batches(3_000)
    assert batch.labels.tolist() == [1, 0, 0] * 1_000
    assert (source.bad_rows.count, source.bad_rows.end) == (1, 1)


def test_rows_that_are_bad_anyway_have_no_say_in_the_kind_of_labels(tmp_path: Path) -> None:
    rows: list[tuple[object, ...]] = [(-1, "x", "bad")] * 20 + [(i % 2, i, "c") for i in range(30)]
    source = RawSource(SPEC, [write(tmp_path / "a.csv", csv_of(rows))], on_bad_rows=SKIP)
    (batch,) = source.batches(100)
    assert batch.labels.tolist() == [0, 1] * 15


@pytest.mark.parametrize("spelt", ["True False", "true false", "TRUE FALSE"])
def test_booleans_as_text_are_labels(tmp_path: Path, spelt: str) -> None:
    click, none = spelt.split()
    rows = [(click if y == 1 else none, n, c) for y, n, c in ROWS]
    path = write(tmp_path / "a.csv", csv_of(rows))
    assert joined(list(RawSource(SPEC, [path]).batches(30))) == expected(ROWS)
    assert draft_spec(path).count("label: y") == 1
    odd = write(tmp_path / "b.csv", csv_of([("yes", 1, "x"), *rows]))
    with pytest.raises(DataError, match="'yes' is no label"):
        list(RawSource(SPEC, [odd]).batches(30))
