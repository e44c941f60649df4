"""`DrillJob`: the training job that `ctr drill` disturbs, with what it takes to run it and to evaluate it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from threading import Event

from ctr.checkpoint import Checkpoint
from ctr.defaults import SAFE_ADDING
from ctr.distributed import CheckpointSettings, Coordinator
from ctr.drill.ledger import keeping_ledgers
from ctr.drill.proof import StoreSums
from ctr.drill.settings import DrillSettings
from ctr.features import BLOCK_ROWS, DatasetSource, RawSource, load_spec, write_dataset
from ctr.learn import TrainProgress, read_out
from ctr.model import LinearModel, evaluate
from ctr.optimizers import choose_optimizer
from ctr.ps import RedisStore, parse_redis_url
from ctr.synth import write_click_log
from ctr.workers import JobDescription, WorkerProcesses, absolute, filters_for

_SPEC = "criteo"
_HELD_OUT = 0.2  # of the rows
_SHARD_CHUNKS = 8


def describe_job(folder: Path, settings: DrillSettings) -> JobDescription:
    """A job on synthetic rows, which are made in `folder`; the last fifth of them is held out."""
    log, hashed, spec = folder / "clicks.tsv", folder / "clicks", load_spec(_SPEC)
    write_click_log(log, settings.rows, seed=settings.seed)
    write_dataset(RawSource(spec, [log]).batches(BLOCK_ROWS), spec, hashed)
    log.unlink()
    return JobDescription(
        inputs=absolute([hashed]),
        hashed=True,
        spec=spec.to_yaml(),
        on_bad_rows="fail",
        rows=round(settings.rows * (1 - _HELD_OUT)),
        chunk=settings.chunk,
        shard_chunks=1 if settings.consistency == "bsp" else _SHARD_CHUNKS,
        passes=1,
        passes_before=0,
        workers=settings.workers,
        safe_adding=SAFE_ADDING,
        consistency=settings.consistency,
        staleness=settings.staleness,
        optimizer=choose_optimizer({}),
        filters=filters_for(settings.consistency, {}),
    )


class DrillJob:
    """A job on a hashed data set, with what it takes to evaluate it. It may be run as often as needed."""

    def __init__(self, description: JobDescription, stop: Event) -> None:
        """`stop`, once set, ends what runs with KeyboardInterrupt."""
        self.description = description
        self.plan = description.plan()
        self._stop = stop

    @property
    def chunks(self) -> int:
        """How many there are to push."""
        return sum(self.plan.chunks_of(shard) for shard in range(self.plan.shards))

    def open(self, url: str, model: str) -> RedisStore:
        """A new store for the job."""
        return RedisStore(
            parse_redis_url(f"{url}?model={model}"),
            bits=self.description.feature_spec().bits,
            width=self.description.optimizer.width,
            facts=self.description.facts(),
        )

    def run(
        self,
        store: RedisStore,
        ledgers: Path,
        *,
        pace_s: float = 0.0,
        checkpoints: CheckpointSettings | None = None,
        resume: Checkpoint | None = None,
        on_start: Callable[[str, WorkerProcesses], None] = lambda _, __: None,
        on_progress: Callable[[TrainProgress], None] = lambda _: None,
    ) -> str:
        """Train, with the workers' ledgers in a folder; returns the job's id, which `on_start` hears too.

        Raises the error that ended it.
        """
        coordinator = Coordinator(self.description, store, checkpoints=checkpoints, resume=resume)
        with closing(coordinator), keeping_ledgers(ledgers, pace_s):
            result, _ = coordinator.run(
                stop=self._stop,
                on_start=lambda workers: on_start(coordinator.id, workers),
                on_progress=on_progress,
            )
        if result.interrupted:
            raise KeyboardInterrupt
        return coordinator.id

    def sums(self, store: RedisStore, job: str) -> StoreSums:
        """What a store holds of the job."""
        dumps = (store.dump(partition) for partition in range(store.partitions.count))
        return StoreSums.of(dumps, store.partitions, job)

    def logloss(self, store: RedisStore) -> float:
        """Of the model in a store, on the rows that were held out."""
        slots, state = read_out(store)
        model = LinearModel.of_weights(slots, self.description.optimizer_in(0).weights(state))
        source = DatasetSource(self.description.inputs[0])
        return evaluate(model, source, start=self.description.rows).summary().logloss

    def all_chunks(self) -> set[tuple[int, int]]:
        """What the workers have to push, as data shard (or rank) and chunk."""
        if self.description.ranks:
            ranks = range(self.description.ranks)
            return {(rank, number) for rank in ranks for number in range(self.plan.rounds_of(rank))}
        shards = range(self.plan.shards)
        return {(shard, n) for shard in shards for n in range(self.plan.chunks_of(shard))}

    def chunks_before(self, checkpoint: Checkpoint) -> set[tuple[int, int]]:
        """Those of them that a checkpoint says are in it."""
        position = checkpoint.position
        if self.description.ranks:
            return {token for token in self.all_chunks() if token[1] <= position["ranks"][token[0]]}
        progress = {int(shard): chunks for shard, chunks in position["progress"].items()}
        begun = position["begun"]
        return {
            (shard, chunk)
            for shard, chunk in self.all_chunks()
            if shard < begun and (shard not in progress or chunk < progress[shard])
        }
