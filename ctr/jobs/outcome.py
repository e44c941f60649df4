"""`TrainOutcome`: what came of a training job, also as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ctr.features import BadRows
from ctr.learn import TrainResult
from ctr.metrics import MetricSummary
from ctr.model import Model
from ctr.outputs import printable
from ctr.ps import without_password
from ctr.settings import TrainJob

if TYPE_CHECKING:
    from ctr.distributed import ClusterSummary  # with what training in memory does without

_OF_JOB = ("epochs", "safe_adding", "admit", "negative_rate", "pos_weight", "calibrate")


@dataclass(frozen=True, slots=True)
class TrainOutcome:
    """What came of a job."""

    job: TrainJob
    result: TrainResult
    progressive: MetricSummary
    holdout: MetricSummary | None
    """None also when evaluation was stopped. Of a calibrated model: each half under the map of the other."""
    holdout_uncalibrated: MetricSummary | None
    """Of a calibrated model: before calibration."""
    holdout_by_pass: Mapping[int, MetricSummary]
    """The same after each pass of this run, but the last unless it was to be compared with the others; none
    of those that were not evaluated."""
    model: Model
    saved_to: Path
    bad_rows: BadRows
    """Of training."""
    holdout_bad_rows: BadRows | None
    warnings: Sequence[str]
    """What the first rows show that the user should know, see `RawSource.warnings`."""
    stopped: bool
    """Whether SIGINT or SIGTERM ended training or evaluation."""
    distributed: ClusterSummary | None = None
    left_in_store: str | None = None
    """Why Redis still holds the parameters, if it does."""
    best_pass: int | None = None
    """With early stopping: the pass of this run, from 1, whose model was kept."""

    @property
    def progressive_lag_chunks(self) -> int | None:
        """How many chunks of other workers a progressive prediction may not know of; None: no bound."""
        others = self.job.workers - 1
        if self.distributed is None or self.job.consistency == "bsp" or not others:
            return others
        return None if self.job.consistency == "asp" else others * (self.job.staleness + 1)

    def _moved(self, did: ClusterSummary) -> dict[str, Any]:
        """What went between workers and store."""
        report, examples = did.report, max(self.result.examples, 1)
        return {
            "bytes_sent": report.bytes_sent,
            "bytes_received": report.bytes_received,
            "bytes_per_example": (report.bytes_sent + report.bytes_received) / examples,
            "keys_per_example": (report.counts.pulled + report.counts.pushed) / examples,
            "filters": report.counts.to_json(),
            "repeated_requests": report.troubles,
            "sent_again": report.sent_again,
            "saturations": {"z": report.saturated_z, "n": report.saturated_n},
            "workers_seen": did.workers_seen,
            "dead_workers": did.dead_workers,
            "checkpoints": did.checkpoints,
            "failed_checkpoints": did.failed_checkpoints,
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
            "left_in_store": self.left_in_store,
        }
