"""`train_distributed`: train a model whose parameters live in Redis, with the workers of an engine."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from pathlib import Path
from threading import Event
from time import monotonic
from typing import Any
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from ctr.checkpoint import Checkpoint, read_checkpoint, read_job, restore_checkpoint, sole_writer
from ctr.distributed.checkpointing import CheckpointSettings
from ctr.distributed.coordinator import ClusterSummary, Coordinator
from ctr.engines import Engine, Processes, WorkerGroup
from ctr.errors import ModelError, StoreError, named
from ctr.features import ExampleSource, Slots
from ctr.features.threads import Threads
from ctr.learn import WARM_UP_ROWS, AfterPass, Trained, TrainProgress, read_out, warm_up
from ctr.optimizers import Float32, Optimizer
from ctr.ps import (
    JobBoard,
    JobGoneError,
    ModelExistsError,
    PartitionDump,
    RedisStore,
    Saturations,
    Token,
    largest_n,
    open_store,
    parse_redis_url,
)
from ctr.ps.redis import drop_incarnation
from ctr.stream import StreamSource
from ctr.workers import JobDescription

_INPUT_ENTRIES = ("input_bytes", "input_digest", "dataset")
"""Entries of a job's description that say which rows it learns from."""
_POLL_S = 0.1
_REPLICAS_WAIT_S = 30.0
_ADOPTIONS = 64  # increments that a state may need, as each adds only so much to one number


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """How a job uses its store, and what it writes to disk while it runs."""

    url: str
    checkpoints: CheckpointSettings | None = None
    resume: bool = False
    """Whether to resume from the latest checkpoint."""
    lease_s: float | None = None
    """A worker counts as dead after this long without a heartbeat; None: see `JobBoard`."""
    spool: Path | None = None
    """See `read_out`."""


def train_distributed(
    description: JobDescription,
    source: ExampleSource | StreamSource,
    settings: StoreSettings,
    *,
    engine: Engine | None = None,
    start: tuple[Slots, Float32] | None,
    chunks_before: int = 0,
    stop: Event,
    on_progress: Callable[[TrainProgress], None] = lambda _: None,
    on_start: Callable[[WorkerGroup], None] = lambda _: None,
    on_pass: Callable[[AfterPass], None] | None = None,
) -> tuple[Trained, ClusterSummary]:
    """Train from `start`, which `chunks_before` chunks went into, or from a checkpoint.

    The store of the result is open and still holds everything. `on_pass` is called after each pass that
    another follows, see `PassEnds`; training waits for it, so it should not take long. `engine`: where
    workers run; None: in processes on this machine. Raises the errors of the parts; what was trained is then
    still in the store.
    """
    with ExitStack() as opened:
        opened.enter_context(_own_checkpoints(settings))
        engine = engine or Processes()
        engine.prepare(description.workers)
        checkpoint = _checkpoint(description, settings) if settings.resume else None
        job = uuid4().hex[:12]
        if checkpoint is not None:
            job = str(checkpoint.manifest.position["job"])
            _require_over(settings, job, stop)
            checkpoint = _checkpoint(description, settings)  # a command that was stopping has written another
            description = description.model_copy(update=_kept_of(checkpoint))
            drop_incarnation(settings.url, checkpoint.manifest.store.incarnation, job)
        else:
            _drop_killed(description, settings, stop)
        store = _open_store(
            description,
            settings,
            job,
            restoring=checkpoint is not None or start is not None,
            partitions=None if checkpoint is None else checkpoint.manifest.store.partitions,
        )
        close_store = opened.enter_context(ExitStack())
        close_store.callback(store.close)
        cut_off = _fill(store, checkpoint, start, description, source, stop)
        with _drop_on_error(store):
            coordinator = Coordinator(
                description,
                store,
                engine=engine,
                job_id=job,
                checkpoints=settings.checkpoints,
                resume=checkpoint,
                chunks_before=chunks_before,
                lease_s=settings.lease_s,
                on_pass=None
                if on_pass is None
                else lambda number: on_pass(
                    AfterPass(number, read_out(store, settings.spool), description.passes_after(number))
                ),
            )
        # Until the model is saved, or the store dropped, nobody may resume the job.
        store.on_close.callback(coordinator.close)
        with Threads(1, "strings") as meanwhile:
            # While workers start and read their first chunk. If it fails, so do the pushes, which tell why.
            meanwhile.submit(store.pushes.make_strings)
            result, cluster = coordinator.run(stop=stop, on_progress=on_progress, on_start=on_start)
            cluster.report.saturated_z += cut_off.z
            cluster.report.saturated_n += cut_off.n
            state = coordinator.whole(result, partial(read_out, store, settings.spool))
        close_store.pop_all()
        return Trained(result, state, store), cluster


def _fill(
    store: RedisStore,
    checkpoint: Checkpoint | None,
    start: tuple[Slots, Float32] | None,
    description: JobDescription,
    source: ExampleSource | StreamSource,
    stop: Event,
) -> Saturations:
    """Give a new store its first state, on replicas too, and compile meanwhile; numbers that were cut off."""
    cut_off, first = Saturations(), description.optimizer_in(0)
    with _drop_on_error(store):
        if checkpoint is not None:
            restore_checkpoint(checkpoint, store)
        elif start is not None:
            cut_off = adopt(store, *start, first)
        _await_replicas(store, stop)
        sample = description.sample(source, WARM_UP_ROWS)
        warm_up(sample, store.bits, first, description.learner())
    return cut_off


@contextmanager
def _drop_on_error(store: RedisStore) -> Iterator[None]:
    """Drop the model if the block fails: nobody should continue from an incomplete model."""
    try:
        yield
    except BaseException:
        with suppress(StoreError):
            store.drop()
        raise


def _kept_of(checkpoint: Checkpoint) -> dict[str, Any]:
    """Settings that a resumed job keeps: the numbers of chunks in a data shard, and the bits of the state."""
    return {
        "shard_chunks": checkpoint.manifest.job["shard_chunks"],
        "stream_from": tuple(checkpoint.manifest.job.get("stream_from", ())),
        "held_out_of_shards": tuple(checkpoint.manifest.job.get("held_out_of_shards", ())),
        **checkpoint.manifest.store.model_dump(include={"z_bits", "n_bits"}),
    }


def _open_store(
    description: JobDescription, settings: StoreSettings, job: str, *, restoring: bool, partitions: int | None
) -> RedisStore:
    """A store for a new model."""
    try:
        store = open_store(
            settings.url,
            bits=description.feature_spec().bits,
            width=description.optimizer.width,
            facts={**description.facts(), "job": job},
            z_bits=description.z_bits,
            n_bits=description.n_bits,
            restoring=restoring,
            partitions=partitions,
        )
    except ModelExistsError as error:
        raise _refusal(error, settings) from None
    if not isinstance(store, RedisStore):
        raise StoreError(f"{settings.url}: is no store for several processes.")
    return store


@contextmanager
def _own_checkpoints(settings: StoreSettings) -> Iterator[None]:
    """Raise ModelError if another job writes its checkpoints to the same folder."""
    if settings.checkpoints is None:
        yield
        return
    folder = settings.checkpoints.folder
    with sole_writer(folder) as alone:
        # The other process may be a frozen command of this same job: `_require_over` asks its lease.
        if not alone and (not settings.resume or settings.url.startswith("embedded:")):
            raise ModelError(
                f"{folder}: another `ctr train` writes its checkpoints there; stop it first, or give another "
                "folder."
            )
        yield


def _checkpoint(description: JobDescription, settings: StoreSettings) -> Checkpoint:
    """The checkpoint to resume from. Raises ModelError unless it is of the same job."""
    if settings.checkpoints is None:
        raise ModelError(f"there is nothing to resume without {named('checkpoint')}.")
    folder: Path = settings.checkpoints.folder
    checkpoint = read_checkpoint(folder)
    now: Mapping[str, Any] = description.model_dump(mode="json")
    if any(checkpoint.manifest.job.get(name) not in (None, now[name]) for name in _INPUT_ENTRIES):
        raise ModelError(
            f"{folder}: {', '.join(description.inputs)}: the input has changed since this checkpoint; resume "
            "with the same rows, or start again."
        )
    if description.ranks > 0 and description.splits and "splits" not in checkpoint.manifest.job:
        raise ModelError(
            f"{folder}: an earlier version of ctr wrote this checkpoint, and cut raw files into other chunks;"
            " resume with that version, or start again."
        )
    for name in _changed(checkpoint.manifest.job, now, ranks=description.ranks > 0):
        setting, before, here = _difference(name, checkpoint.manifest.job[name], now.get(name))
        raise ModelError(
            f"{folder}: the checkpoint's job has {setting} {before}, this one {here}; resume with the "
            "settings that the job was started with."
        )
    return checkpoint


def _changed(then: Mapping[str, Any], now: Mapping[str, Any], *, ranks: bool) -> list[str]:
    """The entries in which descriptions of one job may not differ, and do; `ranks`: of a BSP job."""
    free = {"stream_from", "inputs", "input_digests", "on_bad_rows", "filters", "stall_s", "z_bits", "n_bits"}
    free |= {"origin", "splits"}  # only for the manifest, and how files are read
    if not ranks:
        free |= {"workers", "staleness", "shard_chunks", "held_out_of_shards"}
    return [name for name, value in then.items() if name not in free and now.get(name) != value]


def _drop_killed(description: JobDescription, settings: StoreSettings, stop: Event) -> None:
    """Drop the same job if it was killed before its first checkpoint, which nobody can go on from.

    Raises as `_require_over`.
    """
    checkpoints = settings.checkpoints
    if checkpoints is None or checkpoints.folder.exists() or settings.url.startswith("embedded:"):
        return
    with closing(JobBoard(parse_redis_url(settings.url))) as board:
        known = board.job()
        if known is None or board.look(shards=False).state != "running":
            return
    then, now = (
        each.model_dump(mode="json") for each in (JobDescription.from_bytes(known.description), description)
    )
    if not _changed(then, now, ranks=description.ranks > 0):
        _require_over(settings, known.id, stop)
        sys.stderr.write(
            "the previous `ctr train` was killed before its first checkpoint; training begins anew\n"
        )
        drop_incarnation(settings.url, "", known.id)


def _difference(name: str, then: Any, now: Any) -> tuple[str, str, str]:
    """The first difference between two values of a setting: its full name, and both values."""
    while isinstance(then, Mapping) and isinstance(now, Mapping):
        part = next(key for key in [*then, *now] if then.get(key) != now.get(key))
        name, then, now = f"{name} {part}", then.get(part), now.get(part)
    if name == "spec":  # as YAML: the first line that differs
        lines = zip_longest(str(then).splitlines(), str(now).splitlines(), fillvalue="nothing")
        then, now = next(pair for pair in lines if pair[0] != pair[1])
    return name, str(then).strip(), str(now).strip()


def _refusal(error: ModelExistsError, settings: StoreSettings) -> StoreError:
    """The error for a store that is in use: it says how to go on, before how to remove what is there."""
    url, problem, advice = parse_redis_url(settings.url), str(error), ""
    with closing(JobBoard(url)) as board:
        job = board.job()
        view = None if job is None else board.look(shards=False)
    if job is not None and view is not None and view.state != "failed":
        if view.state != "finished" and settings.checkpoints is None:
            resuming = f"{named('checkpoint', 'DIR')} and {named('resume')}"
            advice = f"if the job {job.id!r} wrote checkpoints, go on with {resuming}"
        if view.coordinator_alive:
            silent_s = job.lease_s - view.coordinator_lease_left_s
            problem = (
                f"the job {job.id!r} trains this model, led by a `ctr train` that was alive {silent_s:.0f} s "
                "ago: stop that first, or name another model (?model=NAME). If it was killed, repeat this in "
                f"{view.coordinator_lease_left_s:.0f} s."
            )
    if settings.checkpoints is not None:
        with suppress(ModelError):
            read_job(folder := settings.checkpoints.folder)
            advice = f"{folder} has a checkpoint: to go on from it, add {named('resume')}"
    return StoreError(f"{advice}. Otherwise: {problem}" if advice else problem)


def _require_over(settings: StoreSettings, job: str, stop: Event) -> None:
    """Wait for the length of a lease, to see whether the command that led the job so far is still alive.

    It is also alive while it saves the model of a job that has ended. Raises StoreError when it renews its
    lease, and KeyboardInterrupt when `stop` is set meanwhile.
    """
    if settings.url.startswith("embedded:"):
        return
    with (
        closing(JobBoard(parse_redis_url(settings.url))) as board,
        suppress(JobGoneError),  # it has dropped the store
    ):
        known = board.job()
        if known is None or known.id != job:
            return
        first = board.look(shards=False)
        if first.state == "failed" or first.coordinator is None:
            return
        sys.stderr.write(
            f"waiting {known.lease_s:g} s to see whether the previous `ctr train` is still running\n"
        )
        over = monotonic() + known.lease_s
        while monotonic() < over:
            if stop.wait(_POLL_S):
                raise KeyboardInterrupt
            view = board.look(shards=False)
            if view.state == "failed":
                return
            if view.coordinator != first.coordinator:
                raise StoreError(
                    f"the job {job!r} is still running, led by another `ctr train`; stop that, and wait for "
                    "its end."
                )


def _await_replicas(store: RedisStore, stop: Event) -> None:
    """Wait up to half a minute until replicas have the model: a replica without it would end the job.

    Raises KeyboardInterrupt when `stop` is set meanwhile.
    """
    deadline = monotonic() + _REPLICAS_WAIT_S
    while not store.replicas.have_everything(1.0) and monotonic() < deadline:
        if stop.wait(_POLL_S):
            raise KeyboardInterrupt


def adopt(store: RedisStore, slots: Slots, state: Float32, optimizer: Optimizer) -> Saturations:
    """Give a new model this state; return how many of its numbers are too large for the store.

    An increment is limited, so a number may take several. Where `n` is cut off, the weight stays the same.
    """
    too_large = Saturations()
    cuts, size = store.partitions.cuts(slots), store.partitions.size
    for partition in range(store.partitions.count):
        part = slice(cuts[partition], cuts[partition + 1])
        packed, cut_off = _packed(store, slots[part], state[part], optimizer)
        too_large += cut_off
        whole = np.zeros(size if packed.any() else 0, ">i8")
        if whole.size:
            whole[slots[part] & slots.dtype.type(size - 1)] = packed
        store.dumps.restore(PartitionDump(partition, whole.view(np.uint8).data, {}))
    return too_large


def _packed(
    store: RedisStore, slots: Slots, state: Float32, optimizer: Optimizer
) -> tuple[NDArray[np.int64], Saturations]:
    """The accumulators of `adopt`, int64[u], and how many numbers of this state are too large."""
    n = np.minimum(state[:, 1], np.float32(largest_n(store.n_bits)))
    cut = n < state[:, 1]
    too_large = Saturations(z=int((np.abs(state[:, 0]) > store.largest_z).sum()), n=int(cut.sum()))
    state = np.stack([np.where(cut, optimizer.first_at(state, n), state[:, 0]), state[:, 1]], axis=1)
    packed, incomplete = np.zeros(slots.size, np.int64), np.ones(slots.size, np.bool_)
    for number in range(_ADOPTIONS):
        reached = store.unpacked(packed)
        token = Token("warm-start", 0, number)
        increments = np.where(incomplete, store.increments(slots, state - reached, token, reached), 0)
        packed += increments
        incomplete &= state[:, 1] - store.unpacked(packed)[:, 1] > 1
        if not (incomplete & (increments != 0)).any():
            break
    return packed, too_large
