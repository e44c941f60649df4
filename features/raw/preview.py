"""What the first rows show: the kind of labels, and problems of columns and fields, as warnings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, suppress
from difflib import get_close_matches

import numpy as np
from numpy.typing import NDArray

from ctr.errors import DataError
from ctr.features.batches import BatchBuilder
from ctr.features.block import Block, TextRows, blocks_of
from ctr.features.columns import Arrays, Column, Columns
from ctr.features.readers import RawFiles, format_of, open_reader
from ctr.features.spec import ListField, NumberField, column_of
from ctr.features.steps import buckets_of
from ctr.features.text import count_unquoted
from ctr.features.transform import Transform

PREVIEW_ROWS = 65_536
_NEEDED = "which the feature spec needs"
_ENOUGH_LABELS = 100
_ONE_BUCKET = 0.99
_DELIMITERS = "|,; "
"""Possible delimiters of lists; the least likely to occur in an element first."""
_QUOTE = ord('"')


def kind_of_labels(transform: Transform, blocks: Iterator[Block]) -> int:
    """The label of rows without a click, 0 or -1, in the majority of good rows; 1 if there is no majority.

    Rows that are bad for other reasons do not count, and a single row of the other kind decides nothing.
    """
    counts = {0: 0, -1: 0}
    for block in _first_rows(blocks):
        before = block.status.copy()
        for kind in counts:
            builder = BatchBuilder(transform.layout, before.size, np.array([kind], np.int8))
            transform.append(block.cells, block.status, block.column, builder, 0)
            counts[kind] += int(np.count_nonzero(builder.labels[: builder.rows] == 0))
            block.status[:] = before
        if max(counts.values()) >= _ENOUGH_LABELS:
            break
    if counts[0] == counts[-1]:
        return 1
    return 0 if counts[0] > counts[-1] else -1


def absent_columns(raw: RawFiles, columns: Sequence[str], why: str = _NEEDED) -> list[str]:
    """A warning for each of `columns` that has no value in the first rows of JSON lines.

    In these, a misspelt column looks like one without values; other files list their columns.
    """
    absent, names, rows = list(dict.fromkeys(columns)), dict[str, None](), 0
    with suppress(DataError):  # the job itself reports it
        for _, reader in raw.readers():
            names |= dict.fromkeys(reader.columns)
            absent = [name for name in absent if name not in names]
            if not absent or rows >= PREVIEW_ROWS:
                break
            for block in _first_rows(blocks_of(reader, absent), PREVIEW_ROWS - rows):
                rows += len(block.cells)
                there = (block.cells.ends > block.cells.starts)[block.status == 0].any(axis=0)
                names |= dict.fromkeys(name for name, is_there in zip(absent, there, strict=True) if is_there)
            absent = [name for name in absent if name not in names]
    return absence_warnings(absent if rows else (), list(names), rows, why)


def absence_warnings(absent: Iterable[str], names: Sequence[str], rows: int, why: str = _NEEDED) -> list[str]:
    """A warning for each column that has no value in the first `rows` rows; `names`: those that have some."""
    warnings = []
    for name in absent:
        near = get_close_matches(name, names, 1)
        others = ", ".join(map(repr, names[:8])) or "no column that can be read"
        hint = f"did you mean {near[0]!r}?" if near else f"they have {others}"
        warnings.append(
            f"column {name!r}, {why}, has no value in the first"
            f" {'row' if rows == 1 else f'{rows:,} rows'}; {hint}"
        )
    return warnings


def typed_categories(raw: RawFiles) -> list[str]:
    """A warning for each column of floats that a category reads, in the first file that has one."""
    with suppress(DataError):  # the job itself reports it
        for file in raw.files:
            if (kind := format_of(file)) is None or kind.name not in ("parquet", "arrow"):
                continue
            from ctr.features.tables import ArrowReader, ParquetReader, float_categories

            with closing(open_reader(file, raw.spec, "ignored")) as reader:
                if isinstance(reader, ArrowReader | ParquetReader) and (
                    warnings := float_categories(file, reader.schema, raw.spec)
                ):
                    return warnings
    return []


def field_warnings(transform: Transform, blocks: Iterator[Block]) -> list[str]:
    """A warning for each number field that puts more than 99% of its distinct values into one bucket.

    Also for each list without a delimiter in delimited text whose cells mostly seem to have one.
    """
    from ctr.features.lines import DelimitedRows

    spec, rows = transform.spec, 0
    numbers = [(field, [np.empty(0)]) for field in spec.fields if type(field) is NumberField]
    whole = [field for field in spec.fields if type(field) is ListField and field.delimiter is None]
    cells = np.zeros(len(whole), np.int64)
    having = np.zeros((len(whole), len(_DELIMITERS)), np.int64)
    for block in _first_rows(blocks) if numbers or whole else ():
        rows += len(block.cells)
        columns = Columns(block.cells, block.status, slice(None), transform.columns)
        for number, values in numbers:
            parsed = columns[column_of(number)].numbers
            values.append(parsed.values[parsed.present])
        if isinstance(block.origin, DelimitedRows):  # lists of JSON and Parquet have separate elements
            for i, field in enumerate(whole):
                column = columns[column_of(field)]
                cells[i] += np.count_nonzero(column.lengths)
                having[i] += _cells_with_each(_DELIMITERS, column)
    warnings: list[str] = []
    for number, values in numbers:
        distinct = np.unique(np.concatenate(values))
        warnings += _bucket_warning(number, distinct, transform.learnt(number), rows)
    for field, of, have in zip(whole, cells, having, strict=True):
        likely = np.flatnonzero(2 * have > of)
        if likely.size:
            warnings.append(
                f"field {field.name!r}: it has no delimiter, so a cell is one element, but"
                f" {have[likely[0]] / of:.0%} of the cells in the first {rows:,} rows contain"
                f' {_DELIMITERS[likely[0]]!r}; add delimiter: "{_DELIMITERS[likely[0]]}"'
            )
    return warnings


def _bucket_warning(
    field: NumberField, values: NDArray[np.float64], learnt: Arrays, rows: int
) -> Iterator[str]:
    if values.size < 2:
        return
    remedy = "give it transform: quantiles, or edges between its values"
    if field.transform == "edges":
        between = " after its steps" if field.steps else f", which lie from {values[0]:g} to {values[-1]:g}"
        remedy = f"choose edges between its values{between}"
    elif field.transform == "width":
        remedy = "choose a smaller width"
    buckets = buckets_of(field, values, np.ones(values.size, np.bool_), learnt)
    share = np.unique(buckets, return_counts=True)[1].max() / values.size
    if share > _ONE_BUCKET:
        yield (
            f"field {field.name!r}: {share:.1%} of the {values.size:,} distinct values in the first {rows:,}"
            f" rows are one bucket of transform: {field.transform}, so they are one feature; {remedy}"
        )


def quoted_cells(transform: Transform, blocks: Iterator[Block]) -> list[str]:
    """A warning if quotes around cells of delimited text are read as text."""
    from ctr.features.lines import DelimitedRows

    if transform.spec.source.quote:
        return []
    first, cells, rows = "", 0, 0
    for block in _first_rows(blocks):
        if not isinstance(block.origin, DelimitedRows):
            return []
        rows += len(block.cells)
        quoted = _quoted(block, block.origin, ord(transform.spec.source.delimiter))
        if quoted.size and not first:
            row, column = quoted[0].tolist()
            first = f"{block.origin.place(row)}: column {transform.columns[column]!r}"
        cells += len(quoted)
    if not cells:
        return []
    several = f" (the first of {cells:,} such cells in the first {rows:,} rows)" if cells > 1 else ""
    return [
        f"{first} begins and ends with a quote{several}, but quotes count as text here: set quote: true in"
        " the spec's source to read what is inside them"
    ]


def _quoted(block: Block, rows: TextRows, delimiter: int) -> NDArray[np.intp]:
    """intp[k, 2]: row and column of the cells that begin and end with a quote."""
    cells = block.cells
    begin, end = int(rows.starts[0]), int(rows.ends[-1])
    if count_unquoted(cells.buffer, begin, end, delimiter) >= 0:
        return np.empty((0, 2), np.intp)
    sound = block.status == 0
    starts, ends = (np.where(sound[:, None], each, begin) for each in (cells.starts, cells.ends))
    both = (cells.buffer[starts] == _QUOTE) & (cells.buffer[ends - 1] == _QUOTE) & (ends - starts > 1)
    return np.argwhere(both)


def _cells_with_each(characters: str, column: Column) -> list[int]:
    """How many values of the column contain each of these characters."""
    there = column.lengths > 0
    if not there.any():
        return [0] * len(characters)
    buffer, starts, ends, _ = column.text
    starts, ends = starts[there], ends[there]
    begin = int(starts.min())
    part = buffer[begin : int(ends.max())]
    before = np.zeros(part.size + 1, np.int32)
    counts = []
    for character in characters:
        np.cumsum(part == ord(character), out=before[1:])
        counts.append(int(np.count_nonzero(before[ends - begin] > before[starts - begin])))
    return counts


def _first_rows(blocks: Iterator[Block], least: int = PREVIEW_ROWS) -> Iterator[Block]:
    """Blocks until they have `least` rows, or a file cannot be read, which the job itself reports."""
    rows = 0
    while rows < least:
        try:
            block = next(blocks)
        except (StopIteration, DataError):
            return
        yield block
        rows += block.status.size
