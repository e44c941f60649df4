"""`fit`: what a spec learns from a DataFrame, partition by partition."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
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

_PARTS = "partition long, counts string, learnt binary"
_MERGED_AT_ONCE = 16
"""By one task or the driver. A part has 0.3 MB for quantiles, and 12 MB per million values that it counts."""


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
    before: dict[int, Mapping[str, int]] | None = None
    expected = None
    if first.counts:  # each part of a quantile sketch depends on how many numbers come before its own
        with _learnt(df, spec, first.after(first.counts), first.columns) as parts:
            expected, before, total = _counts(parts), {}, Counter[str]()
        for partition, counts in expected.items():
            before[partition] = Counter(total)
            total.update(counts)
    with _learnt(df, spec, first, first.columns, before) as parts:
        counts_again = _counts(parts)
        if expected not in (None, counts_again):
            raise DataError(
                "the DataFrame had other rows when it was computed again; write it to Parquet, and read it"
                " from there."
            )
        return _merged(parts, len(counts_again)).fitted()


@contextmanager
def _learnt(
    df: DataFrame,
    spec: FeatureSpec,
    first: FirstPass,
    columns: Sequence[str],
    before: Mapping[int, Mapping[str, int]] | None = None,
) -> Iterator[DataFrame]:
    """For each partition of `df`, what `first` learns from it, and its `FirstPass.counts`; kept by Spark.

    Spark may distribute rows otherwise if it needs other `columns`. `before`: by partition, how many values
    each field has before its rows, for an exact result.
    """

    def learn(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        partition = context.partitionId()
        if before is not None:
            first.replace(first.after(before.get(partition, {})))

        def pieces(names: Sequence[str]) -> Iterator[Piece]:
            for rows in batches:
                yield from TableReader(pa.table(rows), spec).pieces(names)

        first.take_in(pieces)
        yield _part(partition, json.dumps(first.counts), first)

    parts = mapped(df, columns, learn, _PARTS).persist()
    try:
        yield parts
    finally:
        parts.unpersist()


def _counts(parts: DataFrame) -> dict[int, Mapping[str, int]]:
    """`FirstPass.counts` by partition, ascending."""
    rows = parts.select("partition", "counts").collect()
    return {row.partition: json.loads(row.counts) for row in sorted(rows)}


def _merged(parts: DataFrame, count: int) -> FirstPass:
    """All parts merged in their order, in a tree of tasks if there are many."""
    while count > _MERGED_AT_ONCE:
        group = (parts["partition"] / _MERGED_AT_ONCE).cast("long")
        parts = parts.groupBy(group).applyInArrow(_merge, _PARTS)
        count = -(-count // _MERGED_AT_ONCE)
    whole: FirstPass = pickle.loads(_merge(parts.toArrow())["learnt"][0].as_py())
    return whole


def _merge(parts: pa.Table) -> pa.Table:
    """Consecutive parts as one."""
    parts = parts.sort_by("partition")
    whole, *others = (pickle.loads(each) for each in parts["learnt"].to_pylist())
    for other in others:
        whole.merge(other)
    return pa.Table.from_batches([_part(parts["partition"][0].as_py() // _MERGED_AT_ONCE, "", whole)])


def _part(partition: int, counts: str, learnt: FirstPass) -> pa.RecordBatch:
    """A row of `_PARTS`."""
    return pa.record_batch(
        {
            "partition": [partition],
            "counts": [counts],
            "learnt": pa.array([pickle.dumps(learnt)], pa.binary()),
        }
    )
