"""Field ids of a block as it is stored: a few templates, and for each row, which of these it follows.

Rows of a log have the same fields in the same order, but for values that are missing and lists of several
lengths: 60,000 rows of Criteo follow 33 templates, and the field ids take 2 of their 173 bytes per row.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ctr.features.batches import FieldIds, field_id_dtype
from ctr.features.dataset import kernels


class FieldTemplates(NamedTuple):
    """The field ids of `n` rows."""

    row_templates: NDArray[Any] | None
    """uint16|uint32[n]: the number of each row's template; None: all follow the only one."""
    templates: NDArray[np.uint8]
    """The field ids of the templates, one after the other in the order in which rows first follow them,
    compressed with zstd."""


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
    """The field ids of rows, where there are so many fields and crosses.

    Raises ValueError where templates and rows do not fit together.
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
