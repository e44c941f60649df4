"""`export_model`: saves the model in the store of a running or failed job."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ctr.distributed import JobPosition, JobStatus, job_status, needed_reports
from ctr.errors import CtrError, StoreError
from ctr.features import DatasetSource, Slots
from ctr.features.windows import Windows
from ctr.learn import read_out, weights_of
from ctr.metrics import MetricSummary
from ctr.model import DIGESTS, LinearModel, Model, require_model_or_nothing, save_model
from ctr.optimizers import Float32
from ctr.outputs import require_writable
from ctr.ps import RedisUrl
from ctr.ps.status import BoardStatus, ModelStatus, StoreObserver, StoreStatus
from ctr.workers import JobDescription, PreparedUpdate, WorkerReport, is_of_work


@dataclass(frozen=True, slots=True)
class Exported:
    """An exported model."""

    model: Model
    job: JobStatus
    """The status of the job just before."""
    progressive: MetricSummary
    """Metrics from the workers' reports, which may be some chunks behind the weights."""
    warnings: list[str]
    """What the model lacks because the job's data set is not here."""


def export_model(url: RedisUrl, path: Path) -> Exported:
    """Write the model at `url` to the folder `path`, without changing the store or its job.

    Transform and optimizer come from the job's description. During training, partitions are read one after
    the other, each as it is at that moment.

    Raises StoreError if the store cannot be reached, has no such model or no job that describes it, or
    nothing was learnt yet; ModelError if `path` cannot become a model.
    """
    require_model_or_nothing(path)
    require_writable(path)
    observer = StoreObserver(url)
    status = observer.look()
    try:
        return _export(url, path, observer, status)
    except StoreError as error:
        now = observer.look()
        if now.problem is None and _is_dropped(status.model, now.model):
            raise _gone(url, status.model_name) from error
        raise


def _is_dropped(before: ModelStatus | None, now: ModelStatus | None) -> bool:
    """Whether a usable model is gone, or is being dropped."""
    if before is None or before.state != "ready":
        return False
    return now is None or now.incarnation != before.incarnation or now.state != "ready"


def _export(url: RedisUrl, path: Path, observer: StoreObserver, status: StoreStatus) -> Exported:
    """The same, for a store with this status."""
    if status.model is None:
        why = status.problem or f"there is no model {status.model_name!r} in this store"
        raise StoreError(f"{url}: {why}.")
    if status.model.state != "ready":
        what = {"creating": "created", "dropping": "dropped"}[status.model.state]
        raise StoreError(f"{url}: the model {status.model_name!r} is being {what}, see `ctr ps status`.")
    if not status.whole:
        lacking = f"{len(status.unreachable)} partitions cannot be reached, {len(status.lost)} are lost"
        raise StoreError(
            f"{url}: {status.problem or lacking}; bring their nodes back first (see `ctr ps status`)."
        )
    board = status.board
    if board is None:
        raise StoreError(
            f"{url}: no job on the board of the model {status.model_name!r} describes its training, without "
            "which its weights are useless. If `ctr train` was just started, try again soon; otherwise "
            "remove the model with `ctr ps drop` and train again."
        )
    job = job_status(board, observer.reports(needed_reports(board)))
    description = JobDescription.from_bytes(board.job.description)
    work = _work(observer, board, status.model.bits)
    state = _read(url, status.model, description, path.parent)
    if state[0].size == 0:
        raise StoreError(f"{url}: nothing was learnt yet; try again when the job has begun to train.")
    assert job.passes_begun is not None  # the description could be read
    passes = description.passes_after(job.passes_begun)
    linear = LinearModel(*weights_of(state, description.optimizer.in_pass(passes), path.parent))
    facts = _facts(url, board, job, description, work, passes)
    dictionary, windows, warnings = _of_dataset(description)
    model = Model.of(description.feature_spec(), linear, facts, dictionary, windows)
    save_model(model, path, state)
    return Exported(model, job, work.progressive.summary(), warnings)


def _of_dataset(description: JobDescription) -> tuple[bytes | None, Windows | None, list[str]]:
    """The dictionary and the windows of the job's data set, and a warning if that is not here."""
    if not description.hashed:
        return None, None, []
    try:
        source = description.open_source()
        assert isinstance(source, DatasetSource)
        return source.dictionary(), source.windows, []
    except CtrError as error:
        lacks = "has no dictionary of features, if the data set had one"
        if description.feature_spec().windows:
            lacks += ", and its windows know nothing of earlier rows"
        return None, None, [f"the model {lacks}; export it where that is ({error})"]


def _read(
    url: RedisUrl, model: ModelStatus, description: JobDescription, spool: Path
) -> tuple[Slots, Float32]:
    """All that the store holds of this very model."""
    with closing(description.join_store(url)) as store:
        if store.incarnation != model.incarnation:
            raise _gone(url, model.name)
        return read_out(store, spool)


def _gone(url: RedisUrl, name: str) -> StoreError:
    return StoreError(
        f"{url}: the model {name!r} was dropped while it was read; if its job has ended, the model is "
        "where that `ctr train` was told to save it."
    )


def _work(observer: StoreObserver, board: BoardStatus, bits: int) -> WorkerReport:
    """The sum of the workers' reports and of the metrics of the ranks' updates."""
    work = WorkerReport()
    for name, blob in observer.reports().items():
        if is_of_work(name):
            work.add(WorkerReport.from_bytes(blob))
    for blob in observer.prepared_updates(board).values():
        progressive, _ = PreparedUpdate.from_bytes(blob, bits).metrics
        work.progressive.merge(progressive)
    return work


def _facts(
    url: RedisUrl,
    board: BoardStatus,
    job: JobStatus,
    description: JobDescription,
    work: WorkerReport,
    passes: float,
) -> dict[str, Any]:
    """The entries of the manifest about training."""
    evaluated = work.progressive.summary().to_json()
    examples = JobPosition.of(board.view).examples(description.plan(), work.bad_rows)
    settings = ("workers", "chunk", "admit", "negative_rate", "pos_weight")
    return {
        "optimizer": {**description.optimizer.to_json(), "passes": passes},
        "training": {
            "inputs": list(description.inputs),
            DIGESTS: list(description.input_digests),
            "rows": examples[0],
            "examples": sum(examples),
            "epochs": description.passes,
            **{name: getattr(description, name) for name in settings},
            "lineage": list(description.lineage),
            "interrupted": job.examples != job.examples_in_all,
        },
        "exported": {
            "store": url.public,
            "job": job.facts.id,
            "state": job.view.state,
            "live_workers": len(job.live_workers),
            "examples_in_all": job.examples_in_all,
        },
        "metrics": {"progressive": evaluated},
        "calibration": evaluated["calibration"],
    }
