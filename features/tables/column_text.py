"""`text_of_column`: a column of Parquet or Arrow as text, by the rules of `ctr.features.text.value_text`.

`json_columns`: tables whose cells have the same texts when they are sent as JSON.
"""

from __future__ import annotations

from datetime import time, timedelta, timezone
from math import isfinite
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ctr.features.text import BETWEEN_ELEMENTS, DIGITS_BELOW

_PLAIN = (1e-4, 1e10)  # neither Python nor Arrow writes fractions in this range with an exponent


def text_of_column(column: pa.Array) -> pa.Array:
    """A column as large_string or large_binary; missing values are null.

    A float32 or float16 becomes the shortest decimal that gives it back. A timestamp has a fraction of a
    second only if that is not 0 (6 digits, or 9 if needed), and an offset if it has a time zone. Raises
    ArrowException for types that have no text.
    """
    kind, types = column.type, pa.types
    if types.is_dictionary(kind):
        if kind.value_type in (pa.string_view(), pa.binary_view()):  # Arrow cannot decode these
            texts = column.dictionary.cast(pa.large_binary())
            return texts.take(column.indices)
        return text_of_column(column.dictionary_decode())
    if is_list(kind):
        return _text_of_lists(column)
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        return column.cast(pa.large_binary())
    if types.is_boolean(kind):
        return column.cast(pa.uint8()).cast(pa.large_string())
    if types.is_floating(kind):
        return _text_of_floats(column)
    if types.is_timestamp(kind):
        return _text_of_timestamps(column)
    if types.is_time(kind):
        return _text_of_times(column)
    if types.is_duration(kind):
        raise pa.ArrowNotImplementedError("a duration has no text")
    return column.cast(pa.large_string())


def json_columns(table: pa.Table) -> dict[str, list[Any]]:
    """The values of each column for a request in JSON, which predicts the same as the table.

    Floats remain numbers, as categories refuse fractions; other values are texts. Raises ArrowException for
    types that have no text, for texts that are not UTF-8, and for two columns of one name.
    """
    if len(set(table.column_names)) < table.num_columns:
        raise pa.ArrowInvalid("two columns have the same name")
    return {
        name: [value for chunk in column.chunks for value in _json_values(chunk)]
        for name, column in zip(table.column_names, table.columns, strict=True)
    }


def _json_values(column: pa.Array) -> list[Any]:
    kind = column.type
    if is_list(kind) and not is_list(kind.value_type):
        elements = iter(_json_values(column.flatten()))
        lengths = pc.list_value_length(column).to_pylist()
        return [None if length is None else [next(elements) for _ in range(length)] for length in lengths]
    texts: list[Any] = text_of_column(column).cast(pa.large_string()).to_pylist()
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if not pa.types.is_floating(kind):
        return texts
    return [float(text) if text is not None and isfinite(float(text)) else text for text in texts]


def is_list(kind: pa.DataType) -> bool:
    """Whether values of this type are lists."""
    types = pa.types
    lists = (types.is_list, types.is_large_list, types.is_fixed_size_list)
    views = (types.is_list_view, types.is_large_list_view)
    return any(is_one(kind) for is_one in (*lists, *views))


def _text_of_lists(column: pa.Array) -> pa.Array:
    """The texts of the lists' elements, separated by `BETWEEN_ELEMENTS`; missing elements are empty."""
    if is_list(column.type.value_type):
        raise pa.ArrowNotImplementedError("a list of lists has no text")
    texts = text_of_column(column.flatten()).cast(pa.binary()).fill_null(b"")
    lengths = pc.fill_null(pc.list_value_length(column), 0)
    offsets = pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(lengths).cast(pa.int64())])
    lists = pa.ListArray.from_arrays(offsets.cast(pa.int32()), texts)  # Arrow does not join large lists
    return pc.binary_join(lists, BETWEEN_ELEMENTS).cast(pa.large_binary())


def _text_of_floats(column: pa.Array) -> pa.Array:
    if pa.types.is_float16(column.type):
        column = column.cast(pa.float32())
    if pa.types.is_float32(column.type):  # 0.1 for the float32 0.10000000149
        column = column.cast(pa.string()).cast(pa.float64())
    size, nothing = pc.abs(column), pa.scalar(None, pa.float64())
    column = pc.if_else(pc.is_nan(column), nothing, column)
    whole = pc.and_(pc.equal(pc.floor(column), column), pc.less(size, DIGITS_BELOW))
    texts = pc.if_else(whole, column, nothing).cast(pa.int64()).cast(pa.large_string())
    if pc.all(whole, skip_nulls=True).as_py():
        return texts
    plain = pc.and_(pc.greater_equal(size, _PLAIN[0]), pc.less(size, _PLAIN[1]))
    texts = pc.if_else(whole, texts, pc.if_else(plain, column, nothing).cast(pa.large_string()))
    others = pc.and_(pc.invert(pc.or_(whole, plain)), pc.is_valid(column))
    if not pc.any(others).as_py():
        return texts
    written = [repr(value) for value in column.filter(others).to_pylist()]
    return pc.replace_with_mask(texts, others, pa.array(written, pa.large_string()))


def _text_of_timestamps(column: pa.Array) -> pa.Array:
    unit, zone = column.type.unit, column.type.tz
    local = column if zone is None else pc.local_timestamp(column)
    seconds = pc.floor_temporal(local, unit="second").cast(pa.timestamp("s"))
    texts = seconds.cast(pa.large_string())
    if unit != "s":
        fraction = pc.subtract(local, seconds.cast(local.type)).cast(pa.duration("ns")).cast(pa.int64())
        texts = _joined(texts, _text_of_fractions(fraction))
    if zone is None:
        return texts
    instant = pc.floor_temporal(column, unit="second").cast(pa.timestamp("s", zone)).cast(pa.int64())
    ahead = pc.subtract(seconds.cast(pa.int64()), instant).dictionary_encode()
    offsets = pa.array([_offset(s) for s in ahead.dictionary.to_pylist()], pa.large_string())
    return _joined(texts, offsets.take(ahead.indices))


def _text_of_times(column: pa.Array) -> pa.Array:
    """Times of day. An invalid one, such as 86,400 s, has Arrow's text, which is no other time's text."""
    nanoseconds = column.cast(pa.time64("ns")).cast(pa.int64())
    seconds = pc.divide(nanoseconds, 10**9)
    texts = seconds.cast(pa.int32()).cast(pa.time32("s")).cast(pa.large_string())
    return _joined(texts, _text_of_fractions(pc.subtract(nanoseconds, pc.multiply(seconds, 10**9))))


def _text_of_fractions(nanoseconds: pa.Array) -> pa.Array:
    """Empty for 0, else a point and 6 digits, or 9 if 6 are too few."""
    micros = pc.divide(nanoseconds, 1000)
    is_whole = pc.equal(pc.multiply(micros, 1000), nanoseconds)
    six = pc.utf8_lpad(micros.cast(pa.large_string()), 6, "0")
    nine = pc.utf8_lpad(nanoseconds.cast(pa.large_string()), 9, "0")
    digits = _joined(pa.scalar(".", pa.large_string()), pc.if_else(is_whole, six, nine))
    return pc.if_else(pc.equal(nanoseconds, 0), pa.scalar("", pa.large_string()), digits)


def _joined(*texts: Any) -> pa.Array:
    return pc.binary_join_element_wise(*texts, pa.scalar("", pa.large_string()))


def _offset(seconds: int | None) -> Any:
    """An offset as Python writes it: `+01:00`, with seconds only for the odd offsets of old times."""
    if seconds is None:
        return None
    midnight = time(tzinfo=timezone(timedelta(seconds=seconds)))
    return midnight.isoformat().removeprefix("00:00:00")
