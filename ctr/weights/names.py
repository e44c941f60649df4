"""The texts of features without a dictionary: their values in raw rows, or their fields."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import compute

from ctr.errors import DataError
from ctr.features import SKIP, DatasetSource, FeatureSpec, RawSource, input_files, is_dataset, open_source
from ctr.features.block import has_columns
from ctr.features.readable import Dictionary
from ctr.features.readers import open_reader
from ctr.features.spec import column_of, columns_of

_ROWS = 8_192
MOST = 1_000_000
"""The most features that get names; if there are more, the most frequent ones."""


def names_of_values(spec: FeatureSpec, inputs: Sequence[str], most_rows: int | None = None) -> pa.Table:
    """The features of raw rows, hashed by `spec`: columns `slot`, `feature` and `count`, as in a dictionary.

    `most_rows`: reads only about this many rows, from the start.

    `count` is null, as the frequency in these rows says nothing about the training data. Rows need no label,
    and may lack columns; the fields of these, and their crosses, then have no names. Features of windows have
    no names. Bad rows are skipped. A hashed data set no longer has values, so the text of its features is the
    name of their field or cross. Raises DataError if all columns of the fields are missing, if there is no
    good row, or if the input cannot be read.
    """
    if "-" in inputs:
        raise DataError("values cannot come from standard input, as they are read twice: give a file.")
    if any(is_dataset(each) for each in inputs):
        return _names_of_fields(spec, inputs)
    if not spec.fields:
        raise DataError(
            f"{spec.source.format} data carries its own features, so there are no fields to name them by."
        )
    spec = _of_columns(spec, inputs)
    source = RawSource(spec, inputs, on_bad_rows=SKIP, labels="ignored")
    texts = Dictionary(spec, source.columns, MOST)
    source.watch = texts.add
    rows = 0
    for batch in source.batches(_ROWS):
        rows += len(batch)
        if most_rows is not None and rows >= most_rows:
            break
    if not rows:
        bad = "; ".join(source.bad_rows.examples[:1])
        raise DataError(
            f"{inputs[0]}: there is no row whose values could be hashed{f' ({bad})' if bad else ''}."
        )
    features = texts.table().select(["slot", "feature"])
    return features.append_column("count", pa.nulls(features.num_rows, pa.int64()))


def with_names(dictionary: pa.Table | None, others: pa.Table | None) -> pa.Table | None:
    """The features of a dictionary, followed by those of `others` that it lacks.

    A mere name of a field is left out if the dictionary has a text for the slot.
    """
    if dictionary is None or others is None:
        return others if dictionary is None else dictionary
    columns = ["slot", "feature", "count"]
    has_value = compute.match_substring(others["feature"], "=")
    new = [
        some.select(columns).join(dictionary.select(keys), keys, join_type="left anti").sort_by("slot")
        for some, keys in (
            (others.filter(has_value), ["slot", "feature"]),
            (others.filter(compute.invert(has_value)), ["slot"]),
        )
    ]
    return pa.concat_tables([dictionary.select(columns), *new])


def _names_of_fields(spec: FeatureSpec, inputs: Sequence[str]) -> pa.Table:
    """`names_of_values` of a hashed data set; a slot that several fields share has a row for each."""
    open_source(inputs, spec, labels="ignored")  # checks that it was hashed with this spec
    source = DatasetSource(inputs[0], labels="ignored", with_fields=True)
    slots, ids = np.empty(0, np.uint64), np.empty(0, np.uint16)
    for chunk in source.chunks():
        assert chunk.fields is not None
        indices, fields = chunk.indices, chunk.fields
        while indices.size:  # once, and again for slots of several fields
            field_of_slot = np.zeros(chunk.slots.size, np.uint16)
            field_of_slot[indices] = fields
            used = np.flatnonzero(field_of_slot)
            slots, ids = _distinct(
                np.concatenate([slots, chunk.slots[used].astype(np.uint64)]),
                np.concatenate([ids, field_of_slot[used]]),
            )
            others = field_of_slot[indices] != fields
            indices, fields = indices[others], fields[others]
    texts = pa.array(spec.names).take(pa.array(ids.astype(np.int64) - 1))
    return pa.table({"slot": pa.array(slots), "feature": texts, "count": pa.nulls(slots.size, pa.int64())})


def _distinct(slots: NDArray[np.uint64], ids: NDArray[np.uint16]) -> Any:
    """The distinct pairs, by slot. Slots have at most 40 bits, so a pair fits into 64."""
    pairs = np.unique(slots << np.uint64(16) | ids)
    return pairs >> np.uint64(16), (pairs & np.uint64(0xFFFF)).astype(np.uint16)


def _of_columns(spec: FeatureSpec, inputs: Sequence[str]) -> FeatureSpec:
    """`spec` with only the fields whose columns the first file has, and their crosses."""
    with closing(open_reader(input_files(inputs)[0], spec, "ignored")) as reader:
        fields = tuple(field for field in spec.fields if has_columns(reader, columns_of(field)))
    if not fields:
        columns = ", ".join(repr(column_of(field)) for field in spec.fields[:8])
        raise DataError(f"{inputs[0]}: it has none of the columns that the model's fields read: {columns}.")
    return spec.of_fields(fields)
