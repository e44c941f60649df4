"""`ctr train` with parameters in Redis: the description for workers, and the outcome."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from threading import Event

from ctr.distributed import CheckpointSettings, ClusterSummary, StoreSettings, train_distributed
from ctr.engines import Engine
from ctr.errors import DataError
from ctr.features import BLOCK_ROWS, Batch, DatasetSource, ExampleSource, RawSource, too_many
from ctr.jobs.cost_model import Costs, Workload, chunk_slots
from ctr.jobs.training.outcome import Remains
from ctr.jobs.training.passes import PassEvaluations
from ctr.jobs.training.setup import TrainSetup
from ctr.learn import Trained, TrainProgress, click_rate, expected_n
from ctr.ps import n_fraction_bits
from ctr.settings import TrainJob
from ctr.workers import (
    CONSISTENCY,
    JobDescription,
    WorkerReport,
    absolute,
    filters_for,
    input_bytes,
    input_digest,
    learnt_text,
    shard_chunks_for,
)

_RARE = 0.02
"""Clicks are rare below this share of the rows."""


def describe_job(setup: TrainSetup) -> JobDescription:
    """The description of a job for its workers. Raises DataError if there is nothing to learn from."""
    job, settings, source, optimizer = setup.job, setup.settings, setup.source, setup.optimizer
    rows = source.count_rows() if setup.stop_row is None else setup.stop_row
    if rows == 0:
        raise DataError("the input has no row to learn from: check the file, or the hold-out fraction.")
    consistency = job.consistency or CONSISTENCY
    shard_chunks = 1 if consistency == "bsp" else shard_chunks_for(rows, settings.chunk, settings.workers)
    splits: Sequence[Sequence[tuple[int, int]]] = ()
    held_out: list[int] = []
    if isinstance(source, RawSource):
        splits = source.splits()
        held_out = source.count_not_chosen(settings.chunk * shard_chunks)
    first = setup.first
    n_bits = _n_bits(setup, first)
    learning = asdict(settings)
    passes = learning.pop("epochs")
    return JobDescription(
        inputs=absolute(source.inputs),
        input_bytes=input_bytes(source.inputs),
        input_digest=input_digest(source.inputs),
        dataset=source.manifest.digest if isinstance(source, DatasetSource) else None,
        hashed=isinstance(source, DatasetSource),
        spec=source.spec.to_yaml(),
        learnt=learnt_text(source.spec),
        on_bad_rows=job.on_bad_rows,
        without=job.holdout_where,
        held_out=sum(held_out),
        held_out_of_shards=tuple(held_out),
        splits=tuple(map(tuple, splits)),
        rows=rows,
        shard_chunks=shard_chunks,
        passes=passes,
        **learning,
        passes_before=setup.before.mean,
        rows_before=setup.before.rows,
        lineage=tuple(dict(each) for each in setup.lineage),
        origin=dict(setup.origin),
        input_digests=tuple(setup.digests),
        consistency=consistency,
        staleness=job.staleness,
        stall_s=job.stall_timeout,
        optimizer=optimizer,
        z_bits=optimizer.in_pass(max(setup.before.mean, settings.epochs)).z_bits(n_bits),
        n_bits=n_bits,
        filters=filters_for(
            consistency, {**_filters_for_rare(first), **_filters_for_many(setup, rows, first), **job.filters}
        ),
    )


def store_settings(job: TrainJob, spool: Path | None) -> StoreSettings:
    """How a job uses its store; `spool`: see `StoreSettings`."""
    checkpoints = None
    if job.checkpoint is not None:
        checkpoints = CheckpointSettings(job.checkpoint, job.checkpoint_every)
    return StoreSettings(job.store, checkpoints, job.resume, job.lease, spool)


def _n_bits(setup: TrainSetup, first: Batch) -> int:
    """Fraction bits of sums of squared gradients in the store, so that present and future sums fit."""
    needed = expected_n(first, setup.sampling)
    if setup.former is not None:
        needed = max(needed, 2 * float(setup.former.state[:, 1].max(initial=0)))
    return n_fraction_bits(max(needed, setup.optimizer.needed_n))


def _filters_for_rare(first: Batch) -> dict[str, float]:
    """Do not defer updates to logs if clicks are rare.

    Rows without a click then change n so little that their updates would never be pushed, unlike those of
    clicks. Workers that see only the clicks of others would predict too low.
    """
    if first.labels is None or len(first) == 0 or click_rate(first.labels, first.weights) >= _RARE:
        return {}
    return {"defer": 0.0}


def _filters_for_many(setup: TrainSetup, rows: int, first: Batch) -> dict[str, bool]:
    """Do not read logs if, by the cost model, that costs more than it saves, as there are many workers."""
    settings, bits = setup.settings, setup.source.spec.bits
    workload = Workload(
        features=max((1 << bits) // 4, 1),
        examples=rows,
        workers=settings.workers,
        bits=bits,
        chunk=settings.chunk,
        features_per_example=max(round(first.slots.size / max(len(first), 1)), 1),
    )
    slots = chunk_slots(workload, min(settings.chunk, rows), Costs())
    return {} if slots.ranged or slots.reads_logs or settings.workers == 1 else {"presence": False}


def learn_distributed(
    setup: TrainSetup,
    after_passes: PassEvaluations,
    stop: Event,
    remains: Remains,
    on_progress: Callable[[TrainProgress], None],
    engine: Engine | None = None,
) -> tuple[Trained, ClusterSummary]:
    """Train through Redis; the store stays open and still has all parameters.

    Raises DataError if there was nothing to learn from, and as `train_distributed` does.
    """
    job = setup.job
    description = describe_job(setup)
    trained, cluster = train_distributed(
        description,
        setup.source,
        store_settings(job, setup.spool),
        engine=engine,
        start=setup.initial_state(),
        chunks_before=setup.chunks_before,
        stop=stop,
        on_start=lambda _: remains.begin(),
        on_progress=on_progress,
        on_pass=None if setup.holdout is None or job.epochs == 1 else after_passes.add,
    )
    assert trained.store is not None
    try:
        if trained.result.examples == 0 and not trained.result.interrupted:
            trained.store.drop()
            remains.in_store = False
            raise DataError("the input has no good row to learn from: check the file, or the feature spec.")
        _collect_bad_rows(job, description.rows, setup.source, trained, cluster.report, remains)
    except BaseException:
        trained.store.close()
        raise
    return trained, cluster


def _collect_bad_rows(
    job: TrainJob,
    rows: int,
    source: ExampleSource,
    trained: Trained,
    report: WorkerReport,
    remains: Remains,
) -> None:
    """Write the bad rows that workers skipped to the quarantine file of `source`, each once and in order.

    They are read again, as some workers are on other machines, some have died, and several may have met the
    same row. If there are too many, all `rows` are read to count them by reason, and DataError is raised.
    """
    assert trained.store is not None
    result, bad = trained.result, report.bad_rows.count
    if not bad or not isinstance(source, RawSource):
        return
    policy, most = source.on_bad_rows, source.on_bad_rows.max_fraction
    if most is not None and too_many(bad, result.rows + bad, most) and not result.interrupted:
        trained.store.drop()
        remains.in_store = False
    elif policy.quarantine is None:
        return
    else:
        policy, rows = replace(policy, max_fraction=None), report.bad_rows.end
    again = RawSource(
        source.spec, source.inputs, on_bad_rows=policy, threads=source.threads, choice=source.raw.choice
    )
    for _ in again.batches(BLOCK_ROWS, 0, rows):
        pass
    report.bad_rows = again.bad_rows
