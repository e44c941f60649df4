"""`ctr train` with the parameters in this process."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event
from typing import TYPE_CHECKING

from ctr.features import DatasetSource
from ctr.features.threads import Threads
from ctr.jobs.holdout import AfterPass, PassEvaluations, State
from ctr.jobs.remains import Remains
from ctr.jobs.setup import TrainSetup
from ctr.learn import Rounds, Trained, TrainProgress, read_out
from ctr.ps import Token, open_store

if TYPE_CHECKING:
    from ctr.features import ExampleSource


def learn_in_memory(
    setup: TrainSetup,
    after_passes: PassEvaluations,
    stop: Event,
    remains: Remains,
    on_progress: Callable[[TrainProgress], None],
) -> Trained:
    """Train on threads; they wait while the state after a pass is evaluated."""
    if not setup.optimizer.online:
        from ctr.jobs.train_batch import learn_in_batch  # with kernels that others do without

        return learn_in_batch(setup, stop, remains, on_progress)
    store = open_store(setup.job.store, bits=setup.source.spec.bits, width=setup.optimizer.width)

    def evaluate(number: int, state: State) -> None:
        after_passes.add(AfterPass(number, state, rounds.passes_after(number)))
        after_passes.wait()

    count = setup.job.reading_threads
    threads = Threads(count, "worker") if count > 1 else None
    _share(setup.source, threads)
    try:
        initial = setup.initial_state()
        if initial is not None:
            store.push(*initial, Token("start", 0, 0))
        remains.begin()
        rounds = Rounds(
            setup.source,
            store,
            setup.optimizer,
            setup.settings,
            before=setup.before,
            chunks_before=setup.chunks_before,
            stop_row=setup.stop_row,
            on_progress=on_progress,
            stop=stop,
            on_pass=None if setup.holdout is None else evaluate,
            threads=threads,
        )
        result = rounds.train()
        state = read_out(store)
        store.drop()
        return Trained(result, state)
    finally:
        _share(setup.source, None)
        if threads is not None:
            threads.close()
        store.close()


def _share(source: ExampleSource, threads: Threads | None) -> None:
    """Those who train make examples of raw rows, too, if there are several; a data set has none to make."""
    if not isinstance(source, DatasetSource):
        from ctr.features import RawSource  # which a job over a data set does without

        if isinstance(source, RawSource):
            source.shared_threads = threads
