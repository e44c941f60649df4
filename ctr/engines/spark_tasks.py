"""`run_tasks`: Python functions as the tasks of a Spark job."""

from __future__ import annotations

import gc
import pickle
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING

from ctr.engines.engine import Result, Task

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

_RESULT = "number long, result binary"


@cache
def leave_out_of_collections() -> None:
    """Once a process has loaded what tasks need: PySpark collects garbage after each, 0.1 s among that."""
    gc.collect()
    gc.freeze()


def run_tasks(
    session: SparkSession, group: str, function: Callable[[Task], Result], tasks: Sequence[Task]
) -> list[Result]:
    """The results of tasks, each of them one of a Spark job in this group. Raises what PySpark raises."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            for number in batch.column(0).to_pylist():
                result = pickle.dumps(function(tasks[number]))
                leave_out_of_collections()
                yield pa.record_batch({"number": [number], "result": pa.array([result], pa.binary())})

    session.sparkContext.setJobGroup(group, "ctr", interruptOnCancel=True)
    numbers = session.range(0, len(tasks), 1, len(tasks))  # each in a task of its own
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of pandas, which no row goes through
        rows = numbers.mapInArrow(run, _RESULT).collect()
    results = {row.number: pickle.loads(row.result) for row in rows}
    return [results[number] for number in range(len(tasks))]
