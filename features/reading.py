"""`read_table`: raw files as an Arrow table, with the texts that a spec's fields would read."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ctr.errors import DataError, SpecError
from ctr.features.block import Reader, blocks_of
from ctr.features.inputs import InputFile, input_files
from ctr.features.readers import format_of, open_reader
from ctr.features.row_texts import bytes_of
from ctr.features.spec import FeatureSpec, columns_of
from ctr.features.text import BETWEEN_ELEMENTS


def read_table(inputs: Sequence[str | Path | InputFile], spec: FeatureSpec) -> pa.Table:
    """All rows of these inputs (see `input_files`), with the columns that the spec names and the files have.

    A column holds the texts of its cells, null where a value is missing: strings, or bytes where some are not
    UTF-8. Of JSON lines and typed files, columns that may hold lists are lists of them. Raises DataError for
    a column that a field needs and that is not there, and for a row that cannot be split into cells;
    SpecError for a spec without fields.
    """
    if not spec.fields:
        raise SpecError(f"{spec.source.format} data carries its own features: its rows have no columns.")
    tables, names = [], set()
    for file in input_files(inputs):
        with closing(open_reader(file, spec, "ignored")) as reader:
            tables.append(_texts_of(reader, spec))
        kind = format_of(file)
        names.add(spec.source.format if kind is None else kind.name)
    table = pa.concat_tables(tables, promote_options="default").combine_chunks()
    lists = frozenset[str]() if "delimited" in names else spec.list_columns
    return pa.table({name: _column(table[name], name in lists) for name in table.column_names})


def _texts_of(reader: Reader, spec: FeatureSpec) -> pa.Table:
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
    """What of the file is read, in its order; columns of JSON lines that its first rows lack come last."""
    needed = [column for field in spec.all_fields for column in columns_of(field)]
    needed += [column for window in spec.windows for column in (window.time, *window.key)]
    reader.require(list(dict.fromkeys(needed)))
    needed += [name for name in (spec.label, spec.weight) if name is not None and _has(reader, name)]
    named = {*needed, *spec.source.columns, *spec.source.ignore}
    return list(dict.fromkeys([*(name for name in reader.columns if name in named), *needed]))


def _has(reader: Reader, name: str) -> bool:
    try:
        reader.require([name])
    except DataError:
        return False
    return True


def _column(found: pa.ChunkedArray, is_list: bool) -> pa.ChunkedArray:
    try:
        texts = found.cast(pa.string())
    except pa.ArrowInvalid:  # not UTF-8
        texts = found
    return pc.split_pattern(texts, BETWEEN_ELEMENTS.decode()) if is_list else texts
