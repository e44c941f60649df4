"""`transform` and `predict`: a column of features or predictions for each row of a DataFrame.

No row becomes a Python object: Spark hands Arrow batches to Python, and takes them from it.
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
    """The hashed features of each row, as `Pipeline.transform` makes them of a table.

    The columns are `label` (float, 0 or 1; null where `df` has no such column), `weight` (float; null: 1),
    `slots` (array<bigint>, the bias first), `values` (array<float>, of these; null: all are 1), and those of
    `df` that `keep` names. `spec` as for `ctr.train`. It must not have windows, and one that learns from
    data has to be fitted (`ctr.spark.fit`).

    Raises SpecError, and DataError for a column that is not there. A value that is wrong fails the Spark job,
    with a message that names the column.
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
        of_spec = Transform(spec_of_files(files, "the spec"), with_label=with_label)
        for rows in batches:
            batch = batch_of(pa.table(rows), of_spec)
            columns = [*_columns(batch, with_weight=with_weight), *(rows.column(name) for name in keep)]
            yield pa.record_batch(columns, names=[*_HASHED, *keep])

    kept = [f"{_quoted(name)} {df.schema[name].dataType.simpleString()}" for name in keep]
    return mapped(df, [*dict.fromkeys([*needed, *keep])], hashed, ", ".join([_HASHED_TYPES, *kept]))


def predict(df: DataFrame, model: Model | str | Path, *, explain: int = 0) -> DataFrame:
    """`df` with the column `probability` (float), as `Model.predict` tells it of a table.

    `model`: one in memory, or its folder; it is sent to every machine once, and mapped into the memory of
    its Python processes. `explain`: so many contributions to each prediction, the largest first, as the
    column `explanation` (array<struct<feature: string, contribution: float>>); it takes far longer.

    Raises ModelError, SpecError for a model with windows, whose predictions depend on other rows, and
    DataError for a column that is not there.
    """
    from ctr.model import Model, load_model

    if not isinstance(model, Model):
        model = load_model(Path(model))
    require_features(model.spec)
    require_columns(df, model.transform.columns)
    added = [_PREDICTED, *([_EXPLAINED] if explain else [])]
    if clash := sorted(set(df.columns) & set(added)):
        raise DataError(f"the DataFrame has a column {clash[0]!r} already; rename or drop it.")
    name = distribute(df.sparkSession, model)

    def predicted(batches: Batches) -> Batches:
        of_name = load_distributed(name)
        for rows in batches:
            columns = [*rows.columns, pa.array(of_name.predict(pa.table(rows)))]
            if explain:
                columns.append(_explanations(of_name, rows, explain))
            yield pa.record_batch(columns, names=[*rows.schema.names, *added])

    types = [f"{_quoted(each.name)} {each.dataType.simpleString()}" for each in df.schema.fields]
    types.append(f"{_PREDICTED} float")
    if explain:
        types.append(f"{_EXPLAINED} array<struct<feature: string, contribution: float>>")
    return mapped(df, df.columns, predicted, ", ".join(types))


def mapped(
    df: DataFrame, columns: Sequence[str], function: Callable[[Batches], Batches], types: str
) -> DataFrame:
    """What `function` makes of these columns of a DataFrame."""
    import warnings

    from ctr.engines import leave_out_of_collections

    def run(batches: Batches) -> Batches:
        yield from function(batches)
        leave_out_of_collections()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of pandas, which no row goes through
        return df.select(*map(_quoted, columns)).mapInArrow(run, types)


def _columns(batch: Batch, *, with_weight: bool) -> list[pa.Array]:
    """Those of a transformed batch, in the order of `_HASHED`."""
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
    explained = model.explain(pa.table(rows), rows.num_rows) if rows.num_rows else []
    assert isinstance(explained, list)
    return pa.array(
        [
            [
                {"feature": each.feature, "contribution": each.contribution}
                for each in of_row.contributions[:most]
            ]
            for of_row in explained
        ],
        _EXPLANATION,
    )


def require_features(spec: FeatureSpec) -> None:
    """Raise SpecError for a spec by which the columns of a DataFrame have no features."""
    if not spec.fields:
        raise SpecError(f"{spec.source.format} features have no columns, so a DataFrame cannot give any.")
    if spec.windows:
        raise SpecError(
            f"window {spec.windows[0].name!r}: its features depend on earlier rows, and a DataFrame has no"
            " order; build a data set with `ctr features build`, or remove the windows."
        )


def require_columns(df: DataFrame, columns: Sequence[str]) -> None:
    """Raise DataError for a column that is not there."""
    known = set(df.columns)
    if absent := [name for name in columns if name not in known]:
        raise DataError(f"the DataFrame has no column {absent[0]!r}; it has {', '.join(df.columns)}.")


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
