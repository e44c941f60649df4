"""`Sample`: the first rows of a raw file whose layout nobody has described yet."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice

from ctr.errors import DataError
from features.block import blocks_of
from features.inputs import InputFile
from features.readers import format_of, open_reader
from features.spec import FeatureSpec, Source
from features.text import TextFile

DELIMITERS = ("\t", ",", ";", "|")
_HEAD_LINES = 200
_LIBSVM = re.compile(r"[-+]?\d+(\.\d+)?(\s+\d+:\S+)+\s*(#.*)?")
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")


@dataclass(frozen=True, slots=True)
class Sample:
    """The texts of the first rows, column by column."""

    source: Source
    """How the file is laid out."""
    columns: dict[str, list[str]]
    """By name, the text of each row; empty where a value is missing."""

    @property
    def rows(self) -> int:
        return len(next(iter(self.columns.values())))


def read_sample(file: InputFile, rows: int) -> Sample:
    """The first `rows` rows. Raises DataError for a file that is no table, such as libsvm, or is empty."""
    source = _source_of(file)
    with closing(open_reader(file, _bare_spec(source), "ignored")) as reader:
        names = list(dict.fromkeys(reader.columns))
        columns: dict[str, list[str]] = {name: [] for name in names}
        for block in blocks_of(reader, names):
            good = [row for row in range(len(block.cells)) if block.status[row] == 0]
            for column, name in enumerate(names):
                columns[name] += (block.cells.text(row, column) for row in good)
            if len(columns[names[0]]) >= rows:
                break
    if not columns[names[0]]:
        raise DataError(f"{file}: no row can be split into its columns; is it delimited text?")
    return Sample(source, {name: texts[:rows] for name, texts in columns.items()})


def is_number(text: str) -> bool:
    """Whether it is a number in decimal digits."""
    return _NUMBER.fullmatch(text) is not None


def _bare_spec(source: Source) -> FeatureSpec:
    """A spec that says no more than how a file is laid out."""
    name = source.columns[0] if source.columns else "label"
    other = source.columns[1] if len(source.columns) > 1 else "field"
    spec = {
        "version": 1,
        "source": source.to_yaml(),
        "label": name,
        "fields": [{"name": other, "type": "category"}],
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
            f"name, such as --spec {'libsvm' if kind is None else kind.name}."
        )
    delimiter = max(DELIMITERS, key=lambda mark: _regular(head, mark))
    if not _regular(head, delimiter):
        raise DataError(
            f"{file}: no tab, comma, semicolon or | stands equally often in its lines, so it is unclear how "
            "they are split; write a spec by hand: see docs/spec.md."
        )
    quote = any(_cells(line, delimiter, True) != line.split(delimiter) for line in head)
    first, *others = (_cells(line, delimiter, quote) for line in head)
    header = len(set(first)) == len(first) and not any(is_number(name) or not name for name in first)
    if header and others and not any(map(is_number, others[0])):
        header = not all(a in column for a, column in zip(first, zip(*others, strict=False), strict=False))
    if header:
        return Source(format="delimited", delimiter=delimiter, quote=quote)
    names = tuple(f"column{i + 1}" for i in range(len(first)))
    return Source(format="delimited", delimiter=delimiter, quote=quote, header=False, columns=names)


def _first_lines(file: InputFile) -> list[str]:
    with closing(TextFile(file)) as text:
        there = text.lines
        raw = there.text(there.begin, there.end)
    return [line.decode("utf-8", "replace") for line in islice(raw.splitlines(), _HEAD_LINES)]


def _regular(lines: Sequence[str], delimiter: str) -> float:
    """How many cells each line has, if as good as all have equally many; else 0."""
    counts = [len(_cells(line, delimiter, True)) for line in lines]
    usual = max(set(counts), key=counts.count)
    return float(usual) if usual > 1 and counts.count(usual) >= 0.9 * len(counts) else 0.0


def _cells(line: str, delimiter: str, quote: bool) -> list[str]:
    if not quote:
        return line.split(delimiter)
    try:
        return next(csv.reader([line], delimiter=delimiter), [""])
    except csv.Error:
        return line.split(delimiter)
