"""`ctr train` with the parameters in this process: in rounds of threads, or with all examples at once."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from threading import Event
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from ctr.errors import DataError
from ctr.features import Chunk, DatasetSource, Slots, slot_dtype
from ctr.features.batches import localize
from ctr.features.threads import Prefetch, ReaderHangs, Threads, cores
from ctr.jobs.training.outcome import Remains
from ctr.jobs.training.passes import PassEvaluations
from ctr.jobs.training.setup import TrainSetup
from ctr.learn import (
    AdmissionCounts,
    Convergence,
    Rounds,
    Sampling,
    Timings,
    Trained,
    TrainProgress,
    TrainResult,
    read_out,
)
from ctr.metrics import Metrics
from ctr.model import LinearModel
from ctr.optimizers import Float32, Lbfgs
from ctr.ps import Token, open_store

if TYPE_CHECKING:
    from ctr.batch import Fit, Matrix, Point
    from ctr.features import ExampleSource

_CHUNK = 65_536  # a block of a hashed data set, which is read as it is


def learn_in_memory(
    setup: TrainSetup,
    after_passes: PassEvaluations,
    stop: Event,
    remains: Remains,
    on_progress: Callable[[TrainProgress], None],
) -> Trained:
    """Train on threads, which wait while the state after a pass is evaluated."""
    if not setup.optimizer.online:
        return _learn_in_batch(setup, stop, remains, on_progress)
    store = open_store(setup.job.store, bits=setup.source.spec.bits, width=setup.optimizer.width)

    count = setup.job.reading_threads
    threads = Threads(count, "worker") if count > 1 else None
    _share(setup.source, threads)
    try:
        initial = setup.initial_state()
        if initial is not None:
            store.push(*initial, Token("start", 0, 0))
        remains.begin()
        result = Rounds(
            setup.source,
            store,
            setup.optimizer,
            setup.settings,
            before=setup.before,
            chunks_before=setup.chunks_before,
            stop_row=setup.stop_row,
            on_progress=on_progress,
            stop=stop,
            on_pass=None if setup.holdout is None else after_passes.evaluate,
            threads=threads,
        ).train()
        state = read_out(store)
        store.drop()
        return Trained(result, state)
    finally:
        _share(setup.source, None)
        if threads is not None:
            threads.close()
        store.close()


def _share(source: ExampleSource, threads: Threads | None) -> None:
    """Let training threads, if there are several, also make examples of raw rows; a data set needs none."""
    if not isinstance(source, DatasetSource):
        from ctr.features import RawSource  # a job over a data set does not need it

        if isinstance(source, RawSource):
            source.shared_threads = threads


def _learn_in_batch(
    setup: TrainSetup, stop: Event, remains: Remains, on_progress: Callable[[TrainProgress], None]
) -> Trained:
    """Read all examples, and minimise their loss until it converges or `stop` is set.

    Slots that do not occur in them keep the weights of the warm start. Raises DataError if there is no row.
    """
    from ctr.batch import Matrix, fit  # has kernels that other optimizers do not need

    optimizer, state = setup.optimizer, setup.initial_state()
    assert isinstance(optimizer, Lbfgs)
    start = LinearModel(np.empty(0, slot_dtype(setup.source.spec.bits)), np.empty(0, np.float32))
    if state is not None:
        start = LinearModel.of_weights(state[0], optimizer.weights(state[1]))
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

        fitted = fit(
            examples, optimizer, start.weights_at(examples.slots), threads, stop=stop, on_iteration=report
        )
    result = _result(examples, fitted, setup.sampling, perf_counter() - started, read)
    return Trained(result, _together(examples.slots, fitted.weights, start))


def _read(setup: TrainSetup, stop: Event) -> list[Chunk]:
    chunks: list[Chunk] = []
    batches = setup.sampling.batches(setup.source, _CHUNK, stop=setup.stop_row)
    with suppress(ReaderHangs), Prefetch(batches, depth=2, stop=stop) as read:
        for batch in read:
            if stop.is_set():
                break
            chunks.append(localize(batch))
    return chunks


def _result(examples: Matrix, fitted: Fit, sampling: Sampling, seconds: float, read: float) -> TrainResult:
    measured = Metrics()
    weights = sampling.plain(examples.weights, examples.labels)
    measured.add(fitted.point.margins.astype(np.float32), examples.labels, weights)
    return TrainResult(
        examples=len(examples),
        seconds=seconds,
        rows=len(examples),
        progressive=measured,
        timings=Timings(read=read, train=seconds - read),
        admissions=AdmissionCounts(),
        passes=1,
        chunks=0,
        interrupted=fitted.stopped,
        convergence=Convergence(fitted.iterations, fitted.point.value, fitted.converged),
    )


def _together(slots: Slots, weights: Float32, start: LinearModel) -> tuple[Slots, Float32]:
    """The fitted weights and, for other slots, those of the warm start: nonzero ones, by slot."""
    others = np.isin(start.slots, slots, assume_unique=True, invert=True)
    both: Slots = np.concatenate([slots, start.slots[others]])
    values = np.concatenate([weights, start.weights[others]])
    order = np.argsort(both, kind="stable")
    order = order[values[order] != 0]
    return both[order], values[order][:, None]
