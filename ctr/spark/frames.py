"""`transform` and `predict`: features or predictions for each row of a DataFrame.

No row becomes a Python object: Spark and Python exchange Arrow batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from ctr.errors import DataError, SpecError, named
from ctr.features import FeatureSpec, batch_of, spec_of
from ctr.features.spec import learnt_of, spec_files, spec_of_files
from ctr.features.transform import Transform
from ctr.spark.model_files import distribute, load_distributed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from ctr.features import Batch
    from ctr.model import Model

Batches = Iterator[pa.RecordBatch]
_HASHED = ("label", "weight", "slots", "values")
_HASHED_TYPES = "label float, weight float, slots array<bigint>, values array<float>"
_PREDICTED, _EXPLAINED = "probability", "explanation"
_EXPLANATION = pa.list_(pa.struct([("feature", pa.string()), ("contribution", pa.float32())]))


def transform(df: DataFrame, spec: FeatureSpec | str | Path, *, keep: Sequence[str] = ()) -> DataFrame:
    """The hashed features of each row, as `Pipeline.transform` computes them for a table.

    The columns are `label` (float, 0 or 1; null if `df` has no label), `weight` (float; null: 1), `slots`
    (array<bigint>, the bias first), `values` (array<float>, of the slots; null: all are 1), and the columns
    of `df` in `keep`. `spec`: as for `ctr.train`; it must not have windows, and must be fitted
    (`ctr.spark.fit`) if it learns from data.

    Raises SpecError, and DataError for a missing column. An invalid value fails the Spark job with a message
    that names the column.
    """
    spec = spec_of(spec)
    require_features(spec)
    if learnt_of(spec) is None:
        name = next(field.name for field in spec.fields if field.learns)
        raise SpecError(f"field {name!r}: its transform learns from data first: ctr.spark.fit(df, spec).")
    label, weight = spec.label_column, spec.weight
    with_label = label is not None and label in df.columns
    needed = Transform(spec, with_label=with_label).columns
    require_columns(df, [*needed, *keep])
    if clash := sorted(set(keep) & set(_HASHED)):
        raise DataError(
            f"{named('keep')}: {clash[0]!r} is a column of the result; rename it in the DataFrame."
        )
    files = spec_files(spec)
    with_weight = weight is not None and with_label

    def hashed(batches: Batches) -> Batches:
        hashing = Transform(spec_of_files(files, "the spec"), with_label=with_label)
        for rows in batches:
            batch = batch_of(pa.table(rows), hashing)
            columns = [*_columns(batch, with_weight=with_weight), *(rows.column(name) for name in keep)]
            yield pa.record_batch(columns, names=[*_HASHED, *keep])

    kept = [f"{_quoted(name)} {df.schema[name].dataType.simpleString()}" for name in keep]
    return mapped(df, [*dict.fromkeys([*needed, *keep])], hashed, ", ".join([_HASHED_TYPES, *kept]))


def predict(df: DataFrame, model: Model | str | Path, *, explain: int = 0) -> DataFrame:
    """`df` with the column `probability` (float), as `Model.predict` computes it for a table.

    `model`: a model, or its folder; it is sent to every machine once, and mapped into the memory of Python
    processes. `explain`: number of contributions to each prediction, the largest first, in the column
    `explanation` (array<struct<feature: string, contribution: float>>); this takes far longer.

    Raises ModelError, SpecError for a model with windows, whose predictions depend on other rows, and
    DataError for a missing column.
    """
    from ctr.model import Model, load_model

    if not isinstance(model, Model):
        model = load_model(Path(model))
    require_features(model.spec)
    require_columns(df, model.transform.columns)
    added = [_PREDICTED, *([_EXPLAINED] if explain else [])]
    if clash := sorted(set(df.columns) & set(added)):
        raise DataError(f"the DataFrame already has a column {clash[0]!r}; rename or drop it.")
    name = distribute(df.sparkSession, model)

    def predicted(batches: Batches) -> Batches:
        loaded = load_distributed(name)
        for rows in batches:
            columns = [*rows.columns, pa.array(loaded.predict(pa.table(rows)))]
            if explain:
                columns.append(_explanations(loaded, rows, explain))
            yield pa.record_batch(columns, names=[*rows.schema.names, *added])

    types = [f"{_quoted(field.name)} {field.dataType.simpleString()}" for field in df.schema.fields]
    types.append(f"{_PREDICTED} float")
    if explain:
        types.append(f"{_EXPLAINED} array<struct<feature: string, contribution: float>>")
    return mapped(df, df.columns, predicted, ", ".join(types))


def mapped(
    df: DataFrame, columns: Sequence[str], function: Callable[[Batches], Batches], types: str
) -> DataFrame:
    """The result of `function` for these columns of a DataFrame."""
    import warnings

    from ctr.engines import leave_out_of_collections

    def run(batches: Batches) -> Batches:
        yield from function(batches)
        leave_out_of_collections()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of pandas, which is not used for rows
        return df.select(*map(_quoted, columns)).mapInArrow(run, types)


def _columns(batch: Batch, *, with_weight: bool) -> list[pa.Array]:
    """The columns of a transformed batch, in the order of `_HASHED`."""
    rows, offsets = len(batch), pa.array(batch.indptr, pa.int32())
    weights = batch.weights if with_weight else None
    values = pa.nulls(rows, pa.list_(pa.float32()))
    if batch.values is not None:
        values = pa.ListArray.from_arrays(offsets, pa.array(batch.values))
    return [
        pa.nulls(rows, pa.float32()) if batch.labels is None else pa.array(batch.labels),
        pa.nulls(rows, pa.float32()) if weights is None else pa.array(weights),
        pa.ListArray.from_arrays(offsets, pa.array(batch.slots.astype("int64"))),
        values,
    ]


def _explanations(model: Model, rows: pa.RecordBatch, most: int) -> pa.Array:
    explanations = model.explain(pa.table(rows), rows.num_rows) if rows.num_rows else []
    assert isinstance(explanations, list)
    return pa.array(
        [
            [
                {"feature": part.feature, "contribution": part.contribution}
                for part in explanation.contributions[:most]
            ]
            for explanation in explanations
        ],
        _EXPLANATION,
    )


def require_features(spec: FeatureSpec) -> None:
    """Raise SpecError for a spec that does not suit a DataFrame."""
    if not spec.fields:
        raise SpecError(f"{spec.source.format} features have no columns, so a DataFrame cannot hold them.")
    if spec.windows:
        raise SpecError(
            f"window {spec.windows[0].name!r}: its features depend on earlier rows, and a DataFrame has no"
            " order; build a data set with `ctr features build`, or remove the windows."
        )


def require_columns(df: DataFrame, columns: Sequence[str]) -> None:
    """Raise DataError for a missing column."""
    known = set(df.columns)
    if absent := [name for name in columns if name not in known]:
        raise DataError(f"the DataFrame has no column {absent[0]!r}; it has {', '.join(df.columns)}.")


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
