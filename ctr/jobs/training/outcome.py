"""The end of a training job: `TrainOutcome`, also as JSON; `Remains`: what a job that ends early leaves."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from ctr.errors import ModelError, StoreError, named
from ctr.features import BadRows, Slots, remove_drafts
from ctr.learn import TrainResult
from ctr.metrics import MetricSummary
from ctr.model import Model, require_model_or_nothing, save_model
from ctr.optimizers import Float32
from ctr.outputs import printable, require_writable
from ctr.ps import Store, without_password
from ctr.settings import TrainJob

if TYPE_CHECKING:
    from ctr.distributed import ClusterSummary  # loads modules that training in memory does not need

_OF_JOB = ("epochs", "safe_adding", "admit", "negative_rate", "pos_weight", "calibrate")


@dataclass(frozen=True, slots=True)
class TrainOutcome:
    """The outcome of a job."""

    job: TrainJob
    result: TrainResult
    progressive: MetricSummary
    holdout: MetricSummary | None
    """None also if evaluation was stopped. For a calibrated model: 2-fold cross-fitted metrics."""
    holdout_uncalibrated: MetricSummary | None
    """For a calibrated model: before calibration."""
    holdout_by_pass: Mapping[int, MetricSummary]
    """The same after each evaluated pass of this run; the last pass is only evaluated here if it is to be
    compared with the others."""
    model: Model
    saved_to: Path
    bad_rows: BadRows
    """Of training."""
    holdout_bad_rows: BadRows | None
    warnings: Sequence[str]
    """Warnings from the first rows, see `RawSource.warnings`, and about metrics."""
    stopped: bool
    """Whether SIGINT or SIGTERM ended training or evaluation."""
    distributed: ClusterSummary | None = None
    left_in_store: str | None = None
    """Why Redis still holds the parameters, if it does."""
    best_pass: int | None = None
    """With early stopping: the pass of this run, from 1, whose model was kept."""
    published: bool = False
    """Whether the model was added to the registry that the job names."""

    @property
    def progressive_lag_chunks(self) -> int | None:
        """By how many chunks of other workers a progressive prediction may lag; None: unbounded."""
        others = self.job.workers - 1
        if self.distributed is None or self.job.consistency == "bsp" or not others:
            return others
        return None if self.job.consistency == "asp" else others * (self.job.staleness + 1)

    def _moved(self, cluster: ClusterSummary) -> dict[str, Any]:
        """The traffic between workers and store."""
        report, examples = cluster.report, max(self.result.examples, 1)
        return {
            "bytes_sent": report.bytes_sent,
            "bytes_received": report.bytes_received,
            "bytes_per_example": (report.bytes_sent + report.bytes_received) / examples,
            "keys_per_example": (report.counts.pulled + report.counts.pushed) / examples,
            "filters": report.counts.to_json(),
            "repeated_requests": report.troubles,
            "sent_again": report.sent_again,
            "saturations": {"z": report.saturated_z, "n": report.saturated_n},
            "by_worker": {
                worker: {"examples": of.examples, "seconds": of.timings.to_json()}
                for worker, of in sorted(cluster.by_worker.items())
            },
            "workers_seen": cluster.workers_seen,
            "dead_workers": cluster.dead_workers,
            "checkpoints": cluster.checkpoints,
            "failed_checkpoints": cluster.failed_checkpoints,
            "resumed_from": self.result.resumed_from,
        }

    def to_json(self) -> dict[str, Any]:
        """The summary that `--json` writes."""
        job, result, manifest = self.job, self.result, self.model.manifest
        progressive = self.progressive.to_json()
        return {
            "examples": result.examples,
            "rows": result.rows,
            "seconds": result.seconds,
            "examples_per_second": result.examples / max(result.seconds, 1e-9),
            "logloss": progressive["logloss"],
            "calibration": progressive["calibration"],
            "auc": progressive["auc"],
            "workers": job.workers,
            "store": without_password(job.store),
            "settings": {
                **{name: value for name, value in manifest["optimizer"].items() if name != "passes"},
                "chunk": manifest["training"]["chunk"],
                **{name: getattr(job, name) for name in _OF_JOB},
                **{name: manifest["training"][name] for name in ("base_rate", "warm_start", "forget")},
                "bits": self.model.spec.bits,
            },
            "worker_seconds": result.timings.to_json(),
            "inputs": job.named_inputs,
            "holdout_inputs": [printable(path) for path in job.holdout]
            or (job.holdout_where or job.holdout_fraction),
            "spec": job.spec_name,
            "spec_fingerprint": self.model.spec.fingerprint,
            "scales": dict(self.model.spec.scales),
            **{
                part: progressive if part == result.measured else None for part in ("progressive", "training")
            },
            "convergence": None if result.convergence is None else result.convergence.to_json(),
            "admission": None if job.admit == 1 else result.admissions.to_json(),
            "moved": None if self.distributed is None else self._moved(self.distributed),
            "holdout": None if self.holdout is None else self.holdout.to_json(),
            "holdout_uncalibrated": (
                None if self.holdout_uncalibrated is None else self.holdout_uncalibrated.to_json()
            ),
            "calibrated": manifest.get("calibrated"),
            "holdout_by_pass": [
                {"pass": number, **summary.to_json()} for number, summary in self.holdout_by_pass.items()
            ],
            "best_pass": self.best_pass,
            "progressive_lag_chunks": self.progressive_lag_chunks,
            "bad_rows": self.bad_rows.count,
            "warnings": list(self.warnings),
            "holdout_bad_rows": self.holdout_bad_rows.count if self.holdout_bad_rows else 0,
            "interrupted": self.stopped,
            "model": self.model.id,
            "saved_to": printable(self.saved_to),
            "published": self.job.publish if self.published else None,
            "left_in_store": self.left_in_store,
        }


@dataclass(slots=True)
class Remains:
    """What remains of a job if it ends now; updated while it runs; as text, for users."""

    job: TrainJob
    began: bool = False
    """Whether training has begun."""
    in_store: bool = False
    """Whether a Redis that outlives the job has trained parameters."""
    saved_to: Path | None = None
    """The place of the model once it is on disk."""
    _checkpoint_before: int | None = field(init=False)

    def __post_init__(self) -> None:
        self._checkpoint_before = self._checkpoint_written()

    def begin(self) -> None:
        """Note that training begins."""
        self.began = True
        self.in_store = not self.job.store.startswith(("memory:", "embedded:"))

    def __str__(self) -> str:
        if self.saved_to is not None:
            return " ".join([f"The model is in {self.saved_to}, but was not evaluated.", *self._to_drop()])
        if not self.began:
            return " ".join(["Nothing was learnt yet, and nothing was written.", *self._to_drop()])
        advice = []
        written = self._checkpoint_written()
        if written is not None and (self.job.resume or written != self._checkpoint_before):
            advice.append(
                f"Repeat the command with {named('resume')} to go on from the checkpoint in "
                f"{self.job.checkpoint}."
            )
        if self.in_store:
            model = shlex.quote(printable(self.job.model))
            advice.append(
                "The store holds what was trained so far, and accepts no new job of that name until it is "
                "removed: "
                f"`ctr ps export --store {self._url} --out {model}` saves it as a model, "
                f"`ctr ps drop --store {self._url}` removes it."
            )
        elif not advice:
            advice.append("Nothing was written: what was learnt so far was in memory alone.")
        return " ".join(advice)

    def _to_drop(self) -> list[str]:
        if not self.in_store:
            return []
        return [f"The store still holds its parameters: `ctr ps drop --store {self._url}` removes them."]

    def _checkpoint_written(self) -> int | None:
        """When the existing checkpoint was written, in ns since 1970; None without one."""
        if self.job.checkpoint is None:
            return None
        from ctr.checkpoint import MANIFEST  # loads all that training through Redis needs

        try:
            return (self.job.checkpoint / MANIFEST).stat().st_mtime_ns
        except OSError:
            return None

    @property
    def _url(self) -> str:
        return shlex.quote(without_password(self.job.store))


def require_places(job: TrainJob) -> None:
    """Raise an error unless model and checkpoint can be written."""
    for place in (job.model, job.interrupted) if job.saved else ():
        require_model_or_nothing(place)
        require_writable(place)
        remove_drafts(place)
    if job.publish is not None:
        from ctr.registry import Registry, parse_place

        registry, _ = parse_place(job.publish)
        Registry(registry).require_startable()
        Registry(registry).labels()  # raises an error if it cannot be read
    if job.checkpoint is not None:
        from ctr.checkpoint import require_checkpoint_or_nothing

        require_checkpoint_or_nothing(job.checkpoint)
        if job.saved and job.checkpoint.resolve() in (job.model.resolve(), job.interrupted.resolve()):
            raise ModelError(
                f"{job.checkpoint}: the model goes there; give another folder for the checkpoint."
            )


def save_or_rescue(model: Model, place: Path, state: tuple[Slots, Float32], remains: Remains) -> None:
    """Save the model at `place`, or in the folder for temporary files if that fails and no store has it."""
    try:
        save_model(model, place, state)
    except ModelError as error:
        if remains.in_store:
            raise
        rescued = Path(tempfile.gettempdir()) / f"ctr-{model.id}-{token_hex(4)}"
        try:
            save_model(model, rescued, state)
        except ModelError as other:
            raise ModelError(
                f"{error} There was no room for it in {rescued.parent} either: it is lost."
            ) from other
        raise ModelError(f"{error} It was saved to {rescued} instead: move it from there.") from error
    remains.saved_to = place


def empty_store(store: Store | None, remains: Remains) -> str | None:
    """Drop the store's content, which is not needed any more; returns a message for users if that fails."""
    if store is None or not remains.in_store:
        return None  # servers of our own end with the job
    try:
        store.drop()
    except StoreError as error:
        return f"{error} {remains}"
    remains.in_store = False
    return None
