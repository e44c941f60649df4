"""`ctr train --optimizer lbfgs`: all examples in memory, and the weights that minimise their loss."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from threading import Event
from time import perf_counter

import numpy as np

from ctr.batch import Fit, Matrix, Point, fit
from ctr.errors import DataError
from ctr.features import Chunk, Slots, slot_dtype
from ctr.features.batches import localize
from ctr.features.threads import Threads, cores
from ctr.jobs.remains import Remains
from ctr.jobs.setup import TrainSetup
from ctr.learn import AdmissionCounts, Convergence, Sampling, Timings, Trained, TrainProgress, TrainResult
from ctr.metrics import Metrics
from ctr.model import LinearModel
from ctr.optimizers import Float32, Lbfgs
from ctr.prefetch import Prefetch, ReaderHangs

_CHUNK = 65_536  # a block of a hashed data set, which is read as it is


def learn_in_batch(
    setup: TrainSetup, stop: Event, remains: Remains, on_progress: Callable[[TrainProgress], None]
) -> Trained:
    """Read all examples, and minimise their loss until it has converged or `stop` is set.

    Slots that do not occur in them keep the weights of the warm start. Raises DataError when there is no row.
    """
    optimizer, state = setup.optimizer, setup.initial_state()
    assert isinstance(optimizer, Lbfgs)
    begun = LinearModel(np.empty(0, slot_dtype(setup.source.spec.bits)), np.empty(0, np.float32))
    if state is not None:
        begun = LinearModel.of_weights(state[0], optimizer.weights(state[1]))
    started = perf_counter()
    with Threads(cores(), "gradient") as threads:
        chunks = _read(setup, stop)
        read = perf_counter() - started
        if stop.is_set():
            raise KeyboardInterrupt
        if not chunks:
            raise DataError("there is no row to learn from: check the input, or the hold-out fraction.")
        examples = Matrix.of_chunks(chunks, threads)
        chunks.clear()
        remains.begin()

        def report(number: int, point: Point) -> None:
            loss = point.losses / max(examples.weight, 1e-30)
            on_progress(TrainProgress(number * len(examples), float("nan"), loss, True, number, point.value))

        found = fit(
            examples, optimizer, begun.weights_at(examples.slots), threads, stop=stop, on_iteration=report
        )
    result = _result(examples, found, setup.sampling, perf_counter() - started, read)
    return Trained(result, _together(examples.slots, found.weights, begun))


def _read(setup: TrainSetup, stop: Event) -> list[Chunk]:
    chunks: list[Chunk] = []
    batches = setup.sampling.of(setup.source).batches(_CHUNK, stop=setup.stop_row)
    with suppress(ReaderHangs), Prefetch(batches, depth=2, stop=stop) as read:
        for batch in read:
            if stop.is_set():
                break
            chunks.append(localize(batch))
    return chunks


def _result(examples: Matrix, found: Fit, sampling: Sampling, seconds: float, read: float) -> TrainResult:
    measured = Metrics()
    weights = sampling.plain(examples.weights, examples.labels)
    measured.add(found.point.margins.astype(np.float32), examples.labels, weights)
    return TrainResult(
        examples=len(examples),
        seconds=seconds,
        rows=len(examples),
        progressive=measured,
        timings=Timings(read=read, train=seconds - read),
        admissions=AdmissionCounts(),
        passes=1,
        chunks=0,
        interrupted=found.stopped,
        convergence=Convergence(found.iterations, found.point.value, found.converged),
    )


def _together(slots: Slots, weights: Float32, begun: LinearModel) -> tuple[Slots, Float32]:
    """Weights that were found, and those of the other slots from before: what is not 0, by slot."""
    others = np.isin(begun.slots, slots, assume_unique=True, invert=True)
    both: Slots = np.concatenate([slots, begun.slots[others]])
    values = np.concatenate([weights, begun.weights[others]])
    order = np.argsort(both, kind="stable")
    order = order[values[order] != 0]
    return both[order], values[order][:, None]
