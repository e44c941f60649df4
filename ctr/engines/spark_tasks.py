"""`run_tasks`: runs Python functions as tasks of a Spark job."""

from __future__ import annotations

import gc
import pickle
import socket
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING

from ctr.engines.engine import Failure, Result, Task
from ctr.jit import kernel_digest

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import Accumulator
    from pyspark.sql import SparkSession

_RESULT = "number long, result binary"


@cache
def leave_out_of_collections() -> None:
    """Exclude loaded modules from the garbage collection after each task, which they make 0.1 s longer."""
    gc.collect()
    gc.freeze()


def failures_of(session: SparkSession) -> Accumulator[tuple[Failure, ...]]:
    """The failures of a job's tasks, each as soon as its task has ended; results wait for all tasks."""
    none: tuple[Failure, ...] = ()
    return session.sparkContext.accumulator(none, _Joined())  # type: ignore[arg-type,unused-ignore]


def run_tasks(
    session: SparkSession,
    group: str,
    function: Callable[[Task], Result | Failure],
    tasks: Sequence[Task],
    failures: Accumulator[tuple[Failure, ...]],
) -> list[Result | Failure]:
    """The results of tasks, run as a Spark job in this group. Raises the exceptions of PySpark.

    Tasks on a machine with other versions than the driver's fail.
    """
    versions = installed_versions()

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            for number in batch.column(0).to_pylist():
                outcome = version_failure(versions) or function(tasks[number])
                if isinstance(outcome, Failure):
                    failures.add((outcome,))
                result = pickle.dumps(outcome)
                leave_out_of_collections()
                yield pa.record_batch({"number": [number], "result": pa.array([result], pa.binary())})

    session.sparkContext.setJobGroup(group, "ctr", interruptOnCancel=True)
    numbers = session.range(0, len(tasks), 1, len(tasks))  # each number is a task
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of pandas, which is not used for rows
        rows = numbers.mapInArrow(run, _RESULT).collect()
    results = {row.number: pickle.loads(row.result) for row in rows}
    return [results[number] for number in range(len(tasks))]


def installed_versions() -> dict[str, str]:
    """What must be the same at the driver and on all machines: by package, its version or digest."""
    import pyspark

    return {"ctr": kernel_digest(), "PySpark": pyspark.__version__}


def version_failure(of_driver: Mapping[str, str]) -> Failure | None:
    """The failure of a task on this machine, if it has other versions than the driver."""
    for package, version in installed_versions().items():
        if version != of_driver[package]:
            return Failure(
                f"another version of {package} is installed here than at the driver; install the same one (on"
                f" {socket.gethostname()})."
            )
    return None


class _Joined:
    """PySpark's `AccumulatorParam` for tuples."""

    def zero(self, _: tuple[Failure, ...]) -> tuple[Failure, ...]:
        return ()

    def addInPlace(self, one: tuple[Failure, ...], other: tuple[Failure, ...]) -> tuple[Failure, ...]:  # noqa: N802
        return one + other
