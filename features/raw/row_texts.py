"""Raw rows as text: `read_table`; `batches_with_texts`: batches with other columns of the same rows."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ctr.errors import DataError, SpecError
from ctr.features.batches import Batch, Chunk
from ctr.features.block import Reader, blocks_of, has_columns, require_wanted
from ctr.features.dataset import DatasetSource
from ctr.features.inputs import InputFile, StandardInput, input_files
from ctr.features.raw.source import RawSource
from ctr.features.readers import RawFiles, format_of
from ctr.features.spec import FeatureSpec
from ctr.features.text import BETWEEN_ELEMENTS, Cells, RowStatus

_SPLIT = np.isin(np.arange(256), [status for status in RowStatus if status.is_split])
"""By status: whether a row has cells. In others, such as rows with too few, they may be anything."""


@dataclass(frozen=True, slots=True)
class RowTexts:
    """Consecutive rows of the input, good or bad."""

    columns: dict[str, pa.StringArray]
    """The texts of each column; null for missing values, and in rows that cannot be split."""
    good: NDArray[np.bool_]
    """bool[rows]: which rows are examples."""

    def __len__(self) -> int:
        return self.good.size

    def part(self, first: int, last: int) -> RowTexts:
        """The rows `first..last-1` of these."""
        columns = {name: texts[first:last] for name, texts in self.columns.items()}
        return RowTexts(columns, self.good[first:last])

    def of_examples(self) -> dict[str, pa.StringArray]:
        """The texts of the good rows only."""
        if self.good.all():
            return self.columns
        rows = pa.array(np.flatnonzero(self.good))
        return {name: texts.take(rows) for name, texts in self.columns.items()}


def batches_with_texts(
    source: RawSource | DatasetSource, columns: Sequence[str], rows: int
) -> Iterator[tuple[Batch | Chunk | None, RowTexts]]:
    """As `source.batches`, with the rows that were read for each batch; None for bad rows after the last.

    `source` must have been opened with these columns as its `also`. Only one iteration at a time. The texts
    of a data set are read from the files that it was built from: only its own rows, which are all good.
    """
    if isinstance(source, DatasetSource):
        yield from _beside(source, columns, rows)
        return
    places = {name: source.columns.index(name) for name in columns}
    read: list[RowTexts] = []

    def note(cells: Cells, status: NDArray[np.uint8]) -> None:
        placed = cells.kept() if columns else cells
        texts = {name: _texts(placed, _SPLIT[status], place) for name, place in places.items()}
        read.append(RowTexts(texts, status == 0))

    source.watch = note
    try:
        for batch in source.batches(rows):
            yield batch, _joined(read, columns)
            read.clear()
        if read:
            yield None, _joined(read, columns)
    finally:
        source.watch = None


def require_columns_beside(dataset: DatasetSource, columns: Sequence[str]) -> None:
    """Raises DataError unless a data set's raw files exist and have these columns."""
    for file, reader in _raw_rows(dataset, columns).readers():
        require_wanted(file, reader, columns, "which was asked for")


def _beside(dataset: DatasetSource, columns: Sequence[str], rows: int) -> Iterator[tuple[Chunk, RowTexts]]:
    blocks = _texts_of(_raw_rows(dataset, columns), columns)
    waiting: list[RowTexts] = []
    with closing(blocks):
        for chunk in dataset.batches(rows):
            missing = len(chunk) - sum(map(len, waiting))
            while missing > 0:
                waiting.append(next(blocks))
                missing -= len(waiting[-1])
            texts = _joined(waiting, columns)
            yield chunk, texts.part(0, len(chunk))
            waiting = [texts.part(len(chunk), len(texts))]
        for _ in blocks:  # no more follow; reading to the end verifies the number of rows
            pass


def _raw_rows(dataset: DatasetSource, columns: Sequence[str]) -> RawFiles:
    """The raw rows of the examples, read as for the data set."""
    files = dataset.raw_rows(f"its raw rows are needed for column {columns[0]!r}")
    return RawFiles(files, dataset.spec, "required" if dataset.manifest.has_labels else "ignored")


def _texts_of(raw: RawFiles, columns: Sequence[str]) -> Generator[RowTexts, None, None]:
    """All rows, block by block."""
    for block in raw.blocks(columns):
        cells, has_cells = block.cells.kept(), _SPLIT[block.status]
        texts = {name: _texts(cells, has_cells, place) for place, name in enumerate(columns)}
        yield RowTexts(texts, np.ones(len(cells), np.bool_))


def _joined(parts: Sequence[RowTexts], columns: Sequence[str]) -> RowTexts:
    return RowTexts(
        {name: pa.concat_arrays([part.columns[name] for part in parts]) for name in columns},
        np.concatenate([part.good for part in parts]),
    )


def _texts(cells: Cells, has_cells: NDArray[np.bool_], column: int) -> pa.StringArray:
    """A column in Arrow; bytes that are not UTF-8 become the replacement character."""
    content: Any = bytes_of(cells, has_cells, column)
    texts = content.view(pa.string())
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        values = content.to_pylist()
        return pa.array([None if t is None else t.decode("utf-8", "replace") for t in values], pa.string())
    return texts


def bytes_of(cells: Cells, has_cells: NDArray[np.bool_], column: int) -> pa.BinaryArray:
    """The texts of a column; null if the cell is empty or the row has no cells."""
    starts = cells.starts[:, column].astype(np.int64)
    lengths = np.where(has_cells, cells.ends[:, column] - starts, 0)
    ends = np.cumsum(lengths)
    offsets = np.concatenate([[0], ends]).astype(np.int32)
    content = cells.buffer[np.repeat(starts - offsets[:-1], lengths) + np.arange(offsets[-1])]
    there = np.packbits(lengths > 0, bitorder="little")
    buffers = [pa.py_buffer(each) for each in (there, offsets, content)]
    return pa.BinaryArray.from_buffers(pa.binary(), lengths.size, buffers)


def read_table(inputs: Sequence[str | Path | InputFile], spec: FeatureSpec) -> pa.Table:
    """All rows of these inputs (see `input_files`), with the columns that the spec names and the files have.

    A column holds the texts of its cells, null for missing values: strings, or bytes if some are not UTF-8.
    In JSON lines and typed files, columns that may hold lists are lists of texts. Raises DataError if a
    column that a field needs is missing, or a row cannot be split into cells; SpecError for a spec without
    fields.
    """
    if not spec.fields:
        raise SpecError(f"{spec.source.format} data carries its own features: its rows have no columns.")
    tables, names = [], set()
    for file, reader in RawFiles(input_files(inputs), spec).readers():
        tables.append(_table_of(reader, spec))
        names.add(_layout(file, spec))
    table = pa.concat_tables(tables, promote_options="default").combine_chunks()
    lists = frozenset[str]() if "delimited" in names else spec.list_columns
    return pa.table({name: _column(table[name], name in lists) for name in table.column_names})


def first_rows(source: RawSource | DatasetSource, rows: int) -> list[dict[str, Any]]:
    """The first rows that can be split, at most `rows`, as `Model.predict` takes them.

    They have the columns of the spec's features, as texts or lists of texts, without missing values. Those of
    a data set are read from the files that it was built from. Empty if these are not available, for standard
    input, and for data that carries its own features.
    """
    spec = source.spec
    if not rows or not spec.fields:
        return []
    try:
        raw = _raw_rows(source, spec.columns) if isinstance(source, DatasetSource) else source.raw
        if any(isinstance(file, StandardInput) for file in raw.files):
            return []
        with closing(raw.blocks(spec.columns)) as blocks:
            block = next((each for each in blocks if (each.status == 0).any()), None)
            if block is None:
                return []
            chosen = np.flatnonzero(block.status == 0)[:rows]
            cells = Cells(block.cells.buffer, block.cells.starts[chosen], block.cells.ends[chosen])
            every = np.ones(chosen.size, np.bool_)
            lists = frozenset[str]() if _layout(raw.files[0], spec) == "delimited" else spec.list_columns
            columns = {
                name: _column(pa.chunked_array([_texts(cells, every, place)]), name in lists).to_pylist()
                for place, name in enumerate(spec.columns)
            }
    except DataError:
        return []
    return [
        {name: values[row] for name, values in columns.items() if values[row] is not None}
        for row in range(chosen.size)
    ]


def _layout(file: InputFile, spec: FeatureSpec) -> str:
    kind = format_of(file)
    return spec.source.format if kind is None else kind.name


def _table_of(reader: Reader, spec: FeatureSpec) -> pa.Table:
    names = _columns_of(reader, spec)
    schema = pa.schema([(name, pa.binary()) for name in names])
    batches = []
    for block in blocks_of(reader, names):
        if block.status.any():
            row = int(np.flatnonzero(block.status)[0])
            problem = block.origin.misread(int(block.status[row]), int(block.column[row]))
            assert problem is not None
            raise DataError(f"{block.origin.place(row)}: {problem[0]}; fix or remove the row.")
        cells, every = block.cells.kept(), np.ones(len(block.cells), np.bool_)
        columns = [bytes_of(cells, every, j) for j in range(len(names))]
        batches.append(pa.record_batch(columns, schema=schema))
    return pa.Table.from_batches(batches, schema)


def _columns_of(reader: Reader, spec: FeatureSpec) -> list[str]:
    """The columns to read, in the file's order; columns that the first rows of JSON lines lack come last."""
    reader.require(spec.columns)
    targets = [name for name in (spec.label, spec.weight) if name is not None]
    needed = [*spec.columns, *(name for name in targets if has_columns(reader, [name]))]
    named = {*needed, *spec.source.columns, *spec.source.ignore}
    return list(dict.fromkeys([*(name for name in reader.columns if name in named), *needed]))


def _column(content: pa.ChunkedArray, is_list: bool) -> pa.ChunkedArray:
    try:
        texts = content.cast(pa.string())
    except pa.ArrowInvalid:  # not UTF-8
        texts = content
    if not is_list:
        return texts
    from pyarrow import compute  # takes 30 ms; nothing else here needs it

    return compute.split_pattern(texts, BETWEEN_ELEMENTS.decode())
