"""`check_categories`, `float_categories`: columns of numbers or times that are read as categories."""

from __future__ import annotations

import warnings
from collections.abc import Container, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ctr.errors import CtrWarning, DataError
from ctr.features.spec import FeatureSpec, TimeField, columns_of
from ctr.features.tables.column_text import is_list
from ctr.features.text import DIGITS_BELOW


def check_categories(table: pa.Table, spec: FeatureSpec, columns: Container[str] | None = None) -> None:
    """Warns of each column of numbers or times that is read as a category: a file may write its values in
    another way, such as 00007 for 7.

    Raises DataError for fractions, as for rows of JSON: the training data may have 0.50 for 0.5. `columns`:
    check only these; None: all of the spec.
    """
    types = pa.types
    for name, kind in _categories(spec, table.schema):
        if columns is not None and name not in columns:
            continue
        if types.is_floating(kind):
            _require_whole(table, name)
        if any(
            is_one(kind)
            for is_one in (types.is_integer, types.is_floating, types.is_decimal, types.is_temporal)
        ):
            warnings.warn(
                f"the table: column {name!r} has the type {kind}, but its field is a category, and categories"
                f" are texts: those in a file may be written differently (00007 for 7). Read files with"
                f" ctr.read(path, spec), or make the column text.",
                CtrWarning,
                stacklevel=2,
            )


def float_categories(path: object, schema: pa.Schema, spec: FeatureSpec) -> list[str]:
    """A warning for each column of a file that has floating-point numbers and is read as a category."""
    return [
        f"{path}: column {name!r} has the type {schema.field(name).type}, but its field is a category, and"
        " requests for predictions refuse fractions there; make the column text, or the field a number"
        for name, kind in _categories(spec, schema)
        if pa.types.is_floating(kind)
    ]


def _categories(spec: FeatureSpec, schema: pa.Schema) -> Iterator[tuple[str, pa.DataType]]:
    """Each column that is read as a category, with the type of its single values."""
    fields = [field for field in spec.fields if not field.numeric and not isinstance(field, TimeField)]
    names = [column for field in fields for column in columns_of(field)]
    names += [column for window in spec.windows for column in window.key]
    for name in dict.fromkeys(names):
        if schema.names.count(name) == 1:
            kind = schema.field(name).type
            while is_list(kind) or pa.types.is_dictionary(kind):
                kind = kind.value_type
            yield name, kind


def _require_whole(table: pa.Table, name: str) -> None:
    """Raises DataError for the first value that is a fraction, or too large for its digits to be exact."""
    first = 0
    for chunk in table[name].chunks:
        values, rows = _flat(chunk)
        numbers = values.cast(pa.float64())
        inexact = pc.or_(
            pc.not_equal(pc.floor(numbers), numbers), pc.greater_equal(pc.abs(numbers), DIGITS_BELOW)
        )
        wrong = pc.and_(inexact, pc.invert(pc.is_nan(numbers)))
        at = pc.index(wrong, True).as_py()
        if at >= 0:
            raise DataError(
                f"the table: row {first + int(rows[at]) + 1}: column {name!r}: {values[at].as_py()!r} is a"
                f" fraction, or too large to be exact, but the field is a category; give the text that the"
                f" training data has, such as by reading the file with ctr.read(path, spec)."
            )
        first += len(chunk)


def _flat(chunk: pa.Array) -> tuple[pa.Array, np.ndarray]:
    """The single values of an array, and the row of each."""
    rows = np.arange(len(chunk))
    while is_list(chunk.type) or pa.types.is_dictionary(chunk.type):
        if pa.types.is_dictionary(chunk.type):
            chunk = chunk.dictionary_decode()
            continue
        chunk = chunk.cast(pa.large_list(chunk.type.value_type))
        rows = rows[pc.list_parent_indices(chunk).to_numpy()]
        chunk = chunk.flatten()
    return chunk, rows
