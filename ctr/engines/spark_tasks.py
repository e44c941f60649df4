"""`run_tasks`: runs Python functions as tasks of a Spark job."""

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
    """Exclude loaded modules from the garbage collection after each task, which they make 0.1 s longer."""
    gc.collect()
    gc.freeze()


def run_tasks(
    session: SparkSession, group: str, function: Callable[[Task], Result], tasks: Sequence[Task]
) -> list[Result]:
    """The results of tasks, run as a Spark job in this group. Raises the exceptions of PySpark."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            for number in batch.column(0).to_pylist():
                result = pickle.dumps(function(tasks[number]))
                leave_out_of_collections()
                yield pa.record_batch({"number": [number], "result": pa.array([result], pa.binary())})

    session.sparkContext.setJobGroup(group, "ctr", interruptOnCancel=True)
    numbers = session.range(0, len(tasks), 1, len(tasks))  # each number is a task
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of pandas, which is not used for rows
        rows = numbers.mapInArrow(run, _RESULT).collect()
    results = {row.number: pickle.loads(row.result) for row in rows}
    return [results[number] for number in range(len(tasks))]
