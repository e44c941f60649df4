"""The registry of formats: what it takes to add one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from ctr.errors import DataError, SpecError
from ctr.features.block import Block, rows_per_block
from ctr.features.raw import RawSource
from ctr.features.spec import FORMATS, Format, load_spec, parse_spec
from ctr.features.text import Cells

SPEC = (
    "{version: 1, source: {format: FORMAT}, label: y, fields: [{name: a, type: category},"
    " {name: n, type: number, transform: log}]}"
)


class FixedRows:
    """The rows of a file in which every cell has 4 bytes: a reader as small as one can be."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._data = np.frombuffer(path.read_bytes(), np.uint8)
        self.fraction = 0.0
        self.columns = ("y", "a", "n")

    def close(self) -> None: ...

    def require(self, columns: Sequence[str]) -> None:
        if set(columns) - {"y", "a", "n"}:
            raise DataError(f"{self._path}: there are only the columns y, a and n.")

    def count_rows(self) -> int:
        return self._data.size // 12

    def pieces(self, columns: Sequence[str]) -> Iterator[FixedPiece]:
        for first in range(0, self.count_rows(), 3_000):
            last = min(first + 3_000, self.count_rows())
            self.fraction = last / self.count_rows()
            yield FixedPiece(self._path, self._data, first, last - first, columns)


@dataclass
class FixedPiece:
    path: Path
    data: NDArray[np.uint8]
    first: int
    rows: int
    columns: Sequence[str]

    def blocks(self) -> Iterator[Block]:
        size = rows_per_block(len(self.columns))
        for first in range(self.first, self.first + self.rows, size):
            rows = np.arange(first, min(first + size, self.first + self.rows), dtype=np.int32)
            places = np.array(["yan".index(name) for name in self.columns], np.int32)
            starts = 12 * rows[:, None] + 4 * places
            ends = starts + np.where(self.data[starts + 3] == ord("_"), 1, 4).astype(np.int32)
            yield Block(
                Cells(self.data, starts, ends),
                np.zeros(rows.size, np.uint8),
                np.zeros(rows.size, np.int32),
                FixedPlaces(self.path, first),
            )


class FixedPlaces:
    def __init__(self, path: Path, first: int) -> None:
        self._path, self._first = path, first

    def place(self, row: int) -> str:
        return f"{self._path}: record {self._first + row}"

    def raw(self, row: int) -> bytes:
        return b""

    def misread(self, status: int, column: int) -> tuple[str, str] | None:
        return None


@pytest.fixture
def fixed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        FORMATS,
        "fixed",
        Format(
            "fixed",
            lambda file, spec, labels: FixedRows(Path(file.location)),
            suffixes=(".fix",),
            begins=(b"1___",),
        ),
    )


@pytest.mark.usefixtures("fixed")
def test_a_format_is_one_entry(tmp_path: Path) -> None:
    cells = [["1", "aaaa", "1234"], ["0", "bbbb", "5"], ["1", "cc d", "0012"]] * 2000
    records = tmp_path / "clicks.bin"  # known by its first bytes
    records.write_bytes("".join(cell.ljust(4, "_") for row in cells for cell in row).encode())
    text = tmp_path / "clicks.csv"
    text.write_text("\n".join(["y,a,n", *(",".join(row) for row in cells)]))
    spec = parse_spec(SPEC.replace("FORMAT", "delimited"), "delimited.yaml")
    expected = next(RawSource(spec, [text]).batches(10_000))
    for same in (spec, parse_spec(SPEC.replace("FORMAT", "fixed, ignore: [id]"), "fixed.yaml")):
        source = RawSource(same, [records])
        found = next(source.batches(10_000))
        assert source.count_rows() == len(found) == len(cells)
        np.testing.assert_array_equal(found.slots, expected.slots)
        np.testing.assert_array_equal(found.labels, expected.labels)
        assert parse_spec(same.to_yaml(), "again") == same
    named = tmp_path / "named.fix"
    named.write_bytes(b"0___aaaa12x4")
    with pytest.raises(DataError, match=r"named\.fix: record 0: column 'n': '12x4' is not a number"):
        list(RawSource(spec, [named]).batches(10))
    with pytest.raises(SpecError, match=r"named\.fix: a file of format fixed does not go with .* libsvm"):
        RawSource(load_spec("libsvm"), [named])
    with pytest.raises(SpecError, match="only delimited text has it, not format fixed"):
        parse_spec(SPEC.replace("FORMAT", "fixed, header: false"), "fixed.yaml")


def test_a_format_that_is_not_there() -> None:
    with pytest.raises(
        SpecError,
        match=r"source\.format: expected 'csv', 'tsv', 'delimited', 'parquet', 'arrow', 'jsonl', 'libsvm' or",
    ):
        parse_spec(SPEC.replace("FORMAT", "fixed"), "fixed.yaml")
