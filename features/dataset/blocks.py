"""A block of a hashed data set as it is stored: its columns, writing and reading."""

from __future__ import annotations

import mmap
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ctr.arrays import arrow_array
from ctr.features.batches import Chunk, FieldIds, field_id_dtype, slot_dtype
from ctr.features.dataset import kernels
from ctr.features.dataset.manifest import FORMAT_VERSION, DatasetManifest


def block_schema(bits: int, block_rows: int, version: int = FORMAT_VERSION) -> pa.Schema:
    """The columns of a block: each holds, in its only row, one array of the block's `Chunk`.

    Field ids are stored as templates and each row's template number: see `FieldTemplates`. Lists are large,
    as a block may have more than 2**31 features.
    """
    template_numbers = pa.uint16() if block_rows <= 1 << 16 else pa.uint32()
    templates = [
        pa.field("row_templates", pa.large_list(template_numbers)),
        pa.field("templates", pa.large_list(pa.uint8())),
    ]
    return pa.schema(
        [
            pa.field("indptr", pa.large_list(pa.int64()), nullable=False),
            pa.field("slots", pa.large_list(pa.from_numpy_dtype(slot_dtype(bits))), nullable=False),
            pa.field("indices", pa.large_list(pa.uint32()), nullable=False),
            pa.field("values", pa.large_list(pa.float32())),
            pa.field("labels", pa.large_list(pa.float32())),
            pa.field("weights", pa.large_list(pa.float32())),
            *(templates if version > 1 else ()),
        ]
    )


def block_of(chunk: Chunk, schema: pa.Schema) -> pa.RecordBatch:
    """A chunk as a block with the columns of `schema`."""
    arrays = {field.name: getattr(chunk, field.name, None) for field in schema}
    if chunk.fields is not None:
        arrays |= templates_of(chunk.indptr, chunk.fields)._asdict()
    return pa.record_batch([_one_list(arrays[field.name], field.type) for field in schema], schema=schema)


def _one_list(array: Any, type_: pa.DataType) -> pa.Array:
    """A column of one row, which holds `array`, or null for None."""
    if array is None:
        return pa.nulls(1, type_)
    values = arrow_array(array, type_.value_type)
    offsets = np.array([0, array.size], np.int64)
    return pa.Array.from_buffers(type_, 1, [None, pa.py_buffer(offsets)], children=[values])


class StoredBlocks:
    """The blocks of one memory-mapped part."""

    def __init__(self, mapped: mmap.mmap, manifest: DatasetManifest, with_fields: bool) -> None:
        self._mapped, self._manifest, self._with_fields = mapped, manifest, with_fields
        buffer = pa.py_buffer(mapped)
        self._address = buffer.address
        self._file = pa.ipc.open_file(buffer)
        if self._file.schema != block_schema(manifest.bits, manifest.block_rows, manifest.format_version):
            raise ValueError("its columns are not those of this format")

    def read(self, number: int, rows: int) -> Chunk:
        """A block as views of the map, checked so that kernels stay within its arrays."""
        record = self._file.get_batch(number)
        record.validate()
        arrays: dict[str, Any] = {
            f.name: self._view(record.column(f.name), f.nullable) for f in record.schema
        }
        stored = {name: arrays.pop(name, None) for name in FieldTemplates._fields}
        chunk = Chunk(**arrays)
        per_row = [a for a in (chunk.labels, chunk.weights) if a is not None]
        if (
            len(chunk) != rows
            or any(a.size != rows for a in per_row)
            or (chunk.values is not None and chunk.values.size != chunk.indices.size)
            or not kernels.is_sound(chunk.indptr, chunk.slots, chunk.indices, (1 << self._manifest.bits) - 1)
        ):
            raise ValueError(f"the arrays of block {number} do not fit together")
        if not self._with_fields or self._manifest.fields is None:
            return chunk
        if stored["templates"] is None:
            raise ValueError("it has no field ids")
        fields = fields_of(chunk.indptr, FieldTemplates(**stored), len(self._manifest.fields))
        return replace(chunk, fields=fields)

    def _view(self, column: pa.LargeListArray, nullable: bool) -> NDArray[Any] | None:
        """The array in a column. Arrow's own view of it would be read-only."""
        if len(column) != 1:
            raise ValueError(f"a block has {len(column)} rows instead of 1")
        if column.null_count:
            if not nullable:
                raise ValueError("a column is empty")
            return None
        values = column.values
        dtype = np.dtype(values.type.to_pandas_dtype())
        if len(values) == 0:
            return np.empty(0, dtype)
        offset = values.buffers()[1].address - self._address
        if offset % dtype.itemsize:
            raise ValueError("a column is not aligned")
        return np.frombuffer(self._mapped, dtype, len(values), offset)


class FieldTemplates(NamedTuple):
    """The field ids of `n` rows: a few templates, and the number of each row's template.

    Rows of a log have the same fields in the same order, except for missing values and lists of different
    lengths: 60,000 rows of Criteo have 33 templates, and the field ids take 2 of their 173 bytes per row.
    """

    row_templates: NDArray[Any] | None
    """uint16|uint32[n]: the number of each row's template; None: there is only one template."""
    templates: NDArray[np.uint8]
    """The field ids of the templates, one after the other in the order of their first rows, compressed
    with zstd."""


def templates_of(indptr: NDArray[np.int64], fields: FieldIds) -> FieldTemplates:
    """The templates of rows with these field ids."""
    rows = indptr.size - 1
    numbers = np.empty(rows, np.uint16 if rows <= 1 << 16 else np.uint32)
    first_rows = np.empty(rows, np.int64)
    table = np.zeros(2 << rows.bit_length(), np.uint32)
    count = kernels.number_templates(indptr, fields, fields.view(np.uint8), table, first_rows, numbers)
    distinct = [fields[indptr[row] : indptr[row + 1]] for row in first_rows[:count].tolist()]
    ids = np.concatenate([np.empty(0, fields.dtype), *distinct])
    compressed = pa.Codec("zstd").compress(ids, asbytes=True)
    return FieldTemplates(None if count <= 1 else numbers, np.frombuffer(compressed, np.uint8))


def fields_of(indptr: NDArray[np.int64], stored: FieldTemplates, names: int) -> FieldIds:
    """The field ids of rows; `names`: the number of fields and crosses.

    Raises ValueError if templates and rows do not fit together.
    """
    with pa.input_stream(pa.py_buffer(stored.templates), compression="zstd") as stream:
        templates = np.frombuffer(stream.read(), field_id_dtype(names))
    rows = indptr.size - 1
    numbers = stored.row_templates
    if numbers is None:
        numbers = np.zeros(rows, np.uint16)
    fields = np.empty(int(indptr[-1]), templates.dtype)
    fits = numbers.size == rows and templates.max(initial=0) <= names
    if not fits or not kernels.follow_templates(
        indptr, numbers, templates, np.empty(rows + 1, np.int64), fields
    ):
        raise ValueError("its field ids do not fit its rows")
    return fields
