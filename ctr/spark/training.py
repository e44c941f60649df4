"""`train`: trains on a DataFrame or on files, with workers that are tasks of Spark."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ctr.errors import DataError, SettingError, SpecError, named
from ctr.features import spec_of
from ctr.jobs import remove_staged, require_stageable, staging_place
from ctr.python_api import train as train_files
from ctr.settings import TrainJob
from ctr.spark.frames import require_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from ctr.features import FeatureSpec
    from ctr.model import Model

_ROWS = "rows.parquet"
_SALT = 1  # of the hashes that give rows their order


def train(
    data: DataFrame | str | Path | list[str | Path],
    spec: FeatureSpec | str | Path | None = None,
    *,
    store: str,
    staging: str | Path | None = None,
    order_by: Sequence[str] = (),
    **settings: Any,
) -> Model:
    """Train a model as `ctr.train` does, with its workers on the executors of Spark.

    `data`: a hashed data set, raw files, or a DataFrame. Workers train on a hashed data set on shared
    storage, never on a DataFrame, whose rows may differ when they are computed again: it is written to
    `staging` once, as Parquet, and made a data set there. These files are removed afterwards, unless
    `keep_staging=True`. `store` and `settings`: see `ctr.train`.

    A model learns badly from rows that are sorted by label, as those of `DataFrame.randomSplit` are. So the
    rows of a DataFrame are ordered by their hashes, or by the columns `order_by`, such as a time.

    Raises SettingError, EngineError, and the errors of `ctr.train`.
    """
    settings = {**TrainJob.checked(settings), "engine": "spark", "store": store}
    if staging is not None:
        settings["staging"] = TrainJob.value("staging", str(staging), named("staging"))
    if isinstance(data, str | Path | list):
        if order_by:
            raise SettingError(f"{named('order_by')} is for DataFrames; the rows of files have their order.")
        return train_files(data, spec, **settings)
    if staging is None:
        raise DataError("a DataFrame is written to shared storage before it is trained on: give staging=DIR.")
    rows = staging_place(settings["staging"], _ROWS)
    _require_trainable(data, spec, rows, settings)
    # Apache Spark's own client of S3 has another scheme than everybody else's.
    uri = rows.resolve().as_uri() if isinstance(rows, Path) else re.sub("^s3://", "s3a://", rows)
    try:
        _ordered(data, order_by).write.parquet(uri)
        return train_files(str(rows), spec, **settings)
    finally:
        if not settings.get("keep_staging"):
            remove_staged(rows)


def _require_trainable(
    data: DataFrame, spec: FeatureSpec | str | Path | None, rows: Path | str, settings: dict[str, Any]
) -> None:
    """Raise what training would, if it is known before the rows are computed and written."""
    from ctr.engines import open_engine
    from ctr.jobs.splits import require_reach

    wanted = None if spec is None else spec_of(spec)
    if settings.get("settings") is None:  # a file may have more of them, and a spec
        values = {**settings, "inputs": [rows], "spec": wanted}
        if settings.get("holdout") is not None:
            values["holdout"] = [rows]  # it may be a table
        job = TrainJob(**{"model": Path("model"), **values}, saved="model" in settings)
        wanted = require_stageable(job)
    if wanted is not None:
        if not wanted.fields:
            raise SpecError(f"{wanted.source.format} features have no columns, so a DataFrame has none.")
        also = [name for name in (wanted.label_column, wanted.weight) if name is not None]
        require_columns(data, [*also, *wanted.columns])
    with closing(open_engine("spark", settings.get("master"))) as engine:
        require_reach(engine, settings["staging"], settings["store"])


def _ordered(data: DataFrame, columns: Sequence[str]) -> DataFrame:
    """The rows in a deterministic order, so that a repeated task of Spark puts them in the same places."""
    from pyspark.sql.functions import lit, xxhash64
    from pyspark.sql.types import MapType

    if absent := [name for name in columns if name not in data.columns]:
        raise DataError(f"{named('order_by')}: the DataFrame has no column {absent[0]!r}.")
    if columns:
        return data.orderBy(*columns)
    hashed = [field.name for field in data.schema.fields if not isinstance(field.dataType, MapType)]
    return data.orderBy(xxhash64(lit(_SALT), *(data[name] for name in hashed)))
