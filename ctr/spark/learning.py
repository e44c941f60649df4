"""`fit`: what a spec learns from a DataFrame, partition by partition."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from ctr.errors import DataError
from ctr.features import FeatureSpec, spec_of
from ctr.features.block import Piece
from ctr.features.raw import FirstPass
from ctr.features.spec import learnt_of
from ctr.features.tables import TableReader
from ctr.spark.frames import mapped, require_columns, require_features

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_PART = "partition long, learnt binary"


def fit(df: DataFrame, spec: FeatureSpec | str | Path) -> FeatureSpec:
    """`spec` with what its fields learn from all rows of `df` (quantiles, scaling, counts of values).

    The result equals that of `ctr.features.fit` on the same rows in the order of the partitions. To learn
    quantiles, `df` is computed twice. Raises SpecError, and DataError for a missing column or if `df` has
    other rows the second time.
    """
    spec = spec_of(spec)
    require_features(spec)
    if learnt_of(spec) is not None:
        return spec
    first = FirstPass(spec)
    require_columns(df, first.columns)
    if not first.reads_rows:
        return first.fitted()
    parts = _learnt(df, spec, first, {})
    if any(part.counts for part in parts.values()):
        before, again = Counter[str](), {}
        for number in sorted(parts):
            counts = parts[number].counts
            again[number] = first.after({name: before[name] for name in counts})
            before.update(counts)
        for number, exact in _learnt(df, spec, first, again).items():
            if exact.counts != parts[number].counts:
                raise DataError(
                    "the DataFrame had other rows when it was computed again; write it to Parquet, and read"
                    " it from there."
                )
            parts[number].replace(exact)
    whole, *others = (parts[number] for number in sorted(parts))
    for part in others:
        whole.merge(part)
    return whole.fitted()


def _learnt(
    df: DataFrame, spec: FeatureSpec, first: FirstPass, of_parts: Mapping[int, FirstPass]
) -> dict[int, FirstPass]:
    """By partition: a copy of `of_parts`, or of `first`, that has learnt from the partition."""

    def learn(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        number = context.partitionId()
        learning = of_parts.get(number, first)

        def pieces(names: Sequence[str]) -> Iterator[Piece]:
            for rows in batches:
                yield from TableReader(pa.table(rows), spec).pieces(names)

        learning.take_in(pieces)
        yield pa.record_batch(
            {"partition": [number], "learnt": pa.array([pickle.dumps(learning)], pa.binary())}
        )

    rows = mapped(df, first.columns, learn, _PART).collect()
    return {row.partition: pickle.loads(row.learnt) for row in rows}
