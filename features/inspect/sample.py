"""`Sample`: the first rows of raw files, read without a spec, and their layout."""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import pyarrow as pa

from ctr.errors import DataError, named
from ctr.features.block import Reader, UnfitColumnError, blocks_of
from ctr.features.inputs import InputFile
from ctr.features.readers import RawFiles, format_of
from ctr.features.spec import FeatureSpec, Source
from ctr.features.text import TextFile, is_decimal

DELIMITERS = ("\t", ",", ";", "|")
_HEAD_LINES = 200
_FEW = 0.02  # of the values of a column in JSON lines
_LIBSVM = re.compile(r"[-+]?\d+(\.\d+)?(\s+\d+:\S+)+\s*(#.*)?")


@dataclass(frozen=True, slots=True)
class Sample:
    """The texts of the first rows, by column."""

    source: Source
    """The layout of the file."""
    columns: dict[str, list[str]]
    """By name, the text of each row; empty for a missing value."""
    lists: frozenset[str] = frozenset()
    """Columns whose values are lists, with separated elements in the text."""
    unread: Sequence[str] = ()
    """Other columns, of types that no field reads, such as objects."""
    odd: Mapping[str, int] = field(default_factory=dict)
    """By column of plain values, in how many of the first rows of JSON lines it has a list or an object."""
    floats: Collection[str] = ()
    """Columns of floating-point numbers: by type, or in JSON lines, with fractions that are not texts."""

    @property
    def rows(self) -> int:
        return len(next(iter(self.columns.values())))


@dataclass(slots=True)
class _Shapes:
    """What is known of columns: lists, columns that cannot be read, exceptions, and floats."""

    lists: set[str] = field(default_factory=set)
    unread: set[str] = field(default_factory=set)
    odd: dict[str, int] = field(default_factory=dict)
    floats: set[str] = field(default_factory=set)

    def add(self, column: str, *, lists: bool) -> None:
        """Adds the column of an `UnfitColumnError`; one that does not fit as a list either cannot be read."""
        (self.lists if lists and column not in self.lists else self.unread).add(column)


def read_sample(files: Sequence[InputFile], rows: int) -> Sample:
    """The first `rows` rows, with the layout of the first file.

    Raises DataError for a file that is empty, or is not a table, such as libsvm.
    """
    source = _source_of(files[0])
    shapes = _shapes_of_json(files[0]) if source.format == "jsonl" else _Shapes()
    while True:
        try:
            columns = _first_rows(files, source, shapes, rows)
        except UnfitColumnError as error:
            shapes.add(error.column, lists=error.lists)
        else:
            break
    if not any(columns.values()):
        raise DataError(
            f"{files[0]}: no row can be split into columns that a field can read; is it"
            f" {'delimited text' if source.format == 'delimited' else 'a table of plain values'}?"
        )
    lists = frozenset(shapes.lists - shapes.unread)
    return Sample(source, columns, lists, sorted(shapes.unread), shapes.odd, shapes.floats)


def _first_rows(
    files: Sequence[InputFile], source: Source, shapes: _Shapes, rows: int
) -> dict[str, list[str]]:
    """The texts of the columns that can be read."""
    columns: dict[str, list[str]] = {}
    spec = _bare_spec(source, shapes.lists)
    for _, reader in RawFiles(files, spec).readers():
        if source.format in ("parquet", "arrow"):
            shapes.floats.update(_float_columns(reader))
        columns = columns or {name: [] for name in reader.columns if name and name not in shapes.unread}
        if not columns or _take_rows(reader, columns, rows):
            break
    return {name: texts[:rows] for name, texts in columns.items()}


def _float_columns(reader: Reader) -> list[str]:
    """The columns of floating-point numbers in a file with types."""
    from ctr.features.tables import ArrowReader, ParquetReader

    if not isinstance(reader, ArrowReader | ParquetReader):
        return []
    return [field.name for field in reader.schema if pa.types.is_floating(field.type)]


def _take_rows(reader: Reader, columns: dict[str, list[str]], rows: int) -> bool:
    """Adds the rows of one file; returns whether there are enough now."""
    for block in blocks_of(reader, list(columns)):
        good = [row for row in range(len(block.cells)) if block.status[row] == 0]
        for column, texts in enumerate(columns.values()):
            texts.extend(block.cells.text(row, column) for row in good)
        if any(len(texts) >= rows for texts in columns.values()):
            return True
    return False


def _shapes_of_json(file: InputFile) -> _Shapes:
    """From the first rows; lines that are not JSON, and the few unlike the others, are left to the reader."""
    kinds: dict[str, Counter[str]] = {}
    shapes = _Shapes()
    for line in _first_lines(file, as_json=True):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        for name, value in row.items() if isinstance(row, dict) else ():
            if isinstance(value, float) and not value.is_integer():
                shapes.floats.add(name)
            if value is not None:
                kinds.setdefault(name, Counter())[_kind(value)] += 1
    for name, counts in kinds.items():
        few = _FEW * counts.total()
        if counts["nested"] > few:
            shapes.unread.add(name)
        elif counts["list"] > few:
            shapes.lists.add(name)
        else:
            shapes.odd[name] = counts["nested"] + counts["list"]
    return shapes


def _kind(value: Any) -> str:
    """Whether a JSON value is `plain`, a `list`, or `nested`, which no field reads."""
    elements = value if isinstance(value, list) else [value]
    if any(isinstance(each, dict | list) for each in elements):
        return "nested"
    return "list" if isinstance(value, list) else "plain"


def _bare_spec(source: Source, lists: Collection[str]) -> FeatureSpec:
    """A spec with only the layout of a file, and its columns of lists."""
    name = source.columns[0] if source.columns else "label"
    other = source.columns[1] if len(source.columns) > 1 else "field"
    fields = [{"name": each, "type": "list"} for each in lists] or [{"name": other, "type": "category"}]
    spec = {
        "version": 1,
        "source": source.to_yaml(),
        "label": "\n" if lists else name,  # not the name of any column
        "fields": fields,
    }
    return FeatureSpec.model_validate(spec)


def _source_of(file: InputFile) -> Source:
    kind = format_of(file)
    if kind is not None and not kind.fields:
        return Source(format=kind.name)
    head = [] if kind is not None else _first_lines(file)
    if kind is not None or _LIBSVM.fullmatch(head[0]):
        raise DataError(
            f"{file}: rows that carry their own features need no spec of fields; take the shipped one by its "
            f"name, such as {named('spec', 'libsvm' if kind is None else kind.name)}."
        )
    ways = [(delimiter, quote) for delimiter in DELIMITERS for quote in (True, False)]
    delimiter, quote = max(ways, key=lambda way: _regular(_split(head, *way)))
    rows = _split(head, delimiter, quote)
    if not _regular(rows):
        raise DataError(
            f"{file}: no tab, comma, semicolon or | stands equally often in its lines, so it is unclear how "
            "they are split; write a spec by hand: see docs/spec.md."
        )
    first, *others = rows
    repeated = next((name for name in first if first.count(name) > 1), None)
    header = not any(is_decimal(name) for name in first) and all(first[1:])  # pandas gives the index no name
    if header and others and not any(map(is_decimal, others[0])):
        columns = zip(*others, strict=False)
        header = repeated is None and not all(a in column for a, column in zip(first, columns, strict=False))
    if header and repeated is not None:
        raise DataError(
            f"{file}: there are {first.count(repeated)} columns {repeated!r}; rename all but one."
        )
    layout: dict[str, Any] = {"format": "delimited", "delimiter": delimiter, "header": header}
    if quote and rows != _split(head, delimiter, False):
        layout["quote"] = True
    if not header:
        layout["columns"] = tuple(f"column{i + 1}" for i in range(len(first)))
    return Source.model_validate(layout)


def _first_lines(file: InputFile, *, as_json: bool = False) -> list[str]:
    with closing(TextFile(file, json=as_json)) as text:
        there = text.lines
        raw = there.text(there.begin, there.end)
    return [line.decode("utf-8", "replace") for line in islice(raw.splitlines(), _HEAD_LINES)]


def _regular(rows: Sequence[Sequence[str]]) -> float:
    """The number of cells per row, if nearly all rows have the same number; otherwise 0."""
    counts = [len(row) for row in rows]
    usual = max(set(counts), key=counts.count)
    return float(usual) if usual > 1 and counts.count(usual) >= 0.9 * len(counts) else 0.0


def _split(lines: Sequence[str], delimiter: str, quote: bool) -> list[list[str]]:
    """The cells of each row; a quoted cell may span lines."""
    if quote:
        with suppress(csv.Error):
            return list(csv.reader([f"{line}\n" for line in lines], delimiter=delimiter))
    return [line.split(delimiter) for line in lines]
