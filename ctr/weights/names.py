"""The texts of features: of candidate values, where a model has no dictionary, or one without them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

import pyarrow as pa

from ctr.errors import DataError
from ctr.features import FeatureSpec, RawSource, input_files, is_dataset
from ctr.features.block import Reader
from ctr.features.readable import Dictionary
from ctr.features.readers import open_reader
from ctr.features.spec import column_of, columns_of

_ROWS = 8_192
MOST = 1_000_000
"""Features that are named; of more values, the most frequent."""


def names_of_values(spec: FeatureSpec, inputs: Sequence[str], most_rows: int | None = None) -> pa.Table:
    """The features of raw rows, hashed by `spec`: columns `slot`, `feature` and `count`, as in a dictionary.

    With `most_rows`, about so many of the first rows are read.

    `count` is null: how often these rows have a feature says nothing of the data of training. Rows need no
    label, and may lack columns: their fields, and crosses with these, then have no names. Features of windows
    have none at all. Bad rows are left out. Raises DataError when no field's column is there, when no row is
    good, and as reading does.
    """
    if "-" in inputs:
        raise DataError("values cannot come from standard input, as they are read twice: give a file.")
    if any(is_dataset(each) for each in inputs):
        raise DataError(f"{inputs[0]}: a hashed data set has no values any more; give raw rows.")
    if not spec.fields:
        raise DataError(
            f"{spec.source.format} data carries its own features: there are no fields to name any of."
        )
    spec = _of_columns(spec, inputs)
    source = RawSource(spec, inputs, on_bad_rows="skip", labels="ignored")
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
    found = texts.table()
    return pa.table(
        {
            "slot": found["slot"],
            "feature": found["feature"],
            "count": pa.nulls(found.num_rows, pa.int64()),
        }
    )


def with_names(known: pa.Table | None, others: pa.Table | None) -> pa.Table | None:
    """The features of a dictionary, and behind them those of `others` that it does not have."""
    if known is None or others is None:
        return others if known is None else known
    columns = ["slot", "feature", "count"]
    new = others.select(columns).join(
        known.select(["slot", "feature"]), ["slot", "feature"], join_type="left anti"
    )
    return pa.concat_tables([known.select(columns), new.sort_by("slot")])


def _of_columns(spec: FeatureSpec, inputs: Sequence[str]) -> FeatureSpec:
    """`spec` with those fields alone whose columns the first file has, and the crosses of these."""
    with closing(open_reader(input_files(inputs)[0], spec, "ignored")) as reader:
        fields = tuple(field for field in spec.fields if _has(reader, columns_of(field)))
    if not fields:
        wanted = ", ".join(repr(column_of(field)) for field in spec.fields[:8])
        raise DataError(f"{inputs[0]}: it has none of the columns that the model's fields read: {wanted}.")
    return spec.of_fields(fields)


def _has(reader: Reader, columns: Sequence[str]) -> bool:
    try:
        reader.require(columns)
    except DataError:
        return False
    return True
