"""A training job from its inputs to a saved model: what `ctr train` runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ctr.artifact import load_state, require_model_or_nothing, save_model
from ctr.evaluation import evaluate
from ctr.ftrl import WIDTH, Float32, Ftrl
from ctr.interrupts import stop_requests
from ctr.metrics import MetricSummary
from ctr.model import Model
from ctr.trainer import TrainProgress, TrainResult, TrainSettings, train
from features import BadRows, ExampleSource, FeatureSpec, Slots, load_spec, open_source, slot_dtype
from ps import Store, Token, open_store


@dataclass(frozen=True, slots=True)
class TrainJob:
    """What to train, on what, and where the model goes."""

    inputs: Sequence[Path]
    spec: str | None
    """Path or name of the feature spec; None for a hashed data set, which carries its own."""
    model: Path
    optimizer: Ftrl
    settings: TrainSettings
    store: str = "memory://"
    holdout: Sequence[Path] = ()
    """Inputs to judge the model on."""
    holdout_fraction: float = 0.0
    """Or: the part at the end of `inputs` to keep for that, below 1."""
    warm_start: Path | None = None
    """Model whose state to train on from."""
    on_bad_rows: Literal["fail", "skip", "quarantine"] = "fail"
    quarantine: Path | None = None


@dataclass(frozen=True, slots=True)
class TrainOutcome:
    """What came of a job."""

    job: TrainJob
    result: TrainResult
    progressive: MetricSummary
    holdout: MetricSummary | None
    model: Model
    saved_to: Path
    bad_rows: BadRows
    """Of training."""
    holdout_bad_rows: BadRows | None

    def to_json(self) -> dict[str, Any]:
        """The summary that `--json` writes."""
        settings, timings = self.job.settings, self.result.timings
        return {
            "examples": self.result.examples,
            "seconds": self.result.seconds,
            "examples_per_second": self.result.examples / max(self.result.seconds, 1e-9),
            "logloss": self.progressive.to_json()["logloss"],
            "auc": self.progressive.to_json()["auc"],
            "workers": settings.workers,
            "store": self.job.store,
            "settings": {
                **self.job.optimizer.to_json(),
                "chunk": settings.chunk,
                "epochs": settings.epochs,
                "safe_adding": settings.safe_adding,
                "bits": self.model.spec.bits,
            },
            "worker_seconds": {part: getattr(timings, part) for part in ("unique", "pull", "train", "push")},
            "holdout": None if self.holdout is None else self.holdout.to_json(),
            "bad_rows": self.bad_rows.count,
            "holdout_bad_rows": self.holdout_bad_rows.count if self.holdout_bad_rows else 0,
            "interrupted": self.result.interrupted,
            "model": self.model.id,
            "saved_to": str(self.saved_to),
        }


def run_train_job(job: TrainJob, on_progress: Callable[[TrainProgress], None]) -> TrainOutcome:
    """Train, judge on the hold-out, and save the model.

    SIGINT or SIGTERM ends training after the running round; what was learnt so far is then saved beside
    `job.model` (suffix `.interrupted`), and a model that was there stays. Raises the errors of the parts.
    """
    require_model_or_nothing(job.model)
    spec = None if job.spec is None else load_spec(job.spec)
    source = open_source(job.inputs, spec, on_bad_rows=job.on_bad_rows, quarantine=job.quarantine)
    judged_on = _holdout(job, source)
    stop_row = None if judged_on is None or job.holdout else judged_on[1]
    store = open_store(job.store, bits=source.spec.bits, width=WIDTH)
    try:
        passes_before = 0
        if job.warm_start is not None:
            slots, state, passes = load_state(job.warm_start, source.spec)
            store.push(slots, state, Token("warm-start", 0, 0))
            passes_before = passes - 1  # new data goes on with the last pass over the old
        with stop_requests() as stop:
            result = train(
                source,
                store,
                job.optimizer,
                job.settings,
                passes_before=passes_before,
                stop_row=stop_row,
                on_progress=on_progress,
                stop=stop,
            )
        state_at = _take_everything(store, source.spec)
    finally:
        store.close()
    return _finish(job, source, judged_on, result, state_at)


def _holdout(job: TrainJob, source: ExampleSource) -> tuple[ExampleSource, int] | None:
    """Where the hold-out starts: a source, and the first row of it that counts."""

    def open_holdout(inputs: Sequence[Path]) -> ExampleSource:
        # a source of its own: its bad rows are not training's
        beside = job.quarantine
        quarantine = None if beside is None else beside.with_name(f"{job.model.name}.holdout.bad-rows")
        return open_source(inputs, source.spec, on_bad_rows=job.on_bad_rows, quarantine=quarantine)

    if job.holdout:
        return open_holdout(job.holdout), 0
    if job.holdout_fraction:
        rows = source.count_rows()
        return open_holdout(job.inputs), rows - round(rows * job.holdout_fraction)
    return None


def _take_everything(store: Store, spec: FeatureSpec) -> tuple[Slots, Float32]:
    """All slots with their state; closes the store, so that its memory is free before they are joined."""
    parts = list(store.scan())
    store.close()
    if not parts:
        return np.empty(0, slot_dtype(spec.bits)), np.empty((0, WIDTH), np.float32)
    return np.concatenate([slots for slots, _ in parts]), np.concatenate([state for _, state in parts])


def _finish(
    job: TrainJob,
    source: ExampleSource,
    judged_on: tuple[ExampleSource, int] | None,
    result: TrainResult,
    state: tuple[Slots, Float32],
) -> TrainOutcome:
    progressive = result.metrics.summary()
    facts: dict[str, Any] = {
        "optimizer": {**job.optimizer.to_json(), "passes": result.passes},
        "training": {
            "inputs": [str(path) for path in job.inputs],
            "examples": result.examples,
            "epochs": job.settings.epochs,
            "workers": job.settings.workers,
            "chunk": job.settings.chunk,
            "warm_start": None if job.warm_start is None else str(job.warm_start),
            "interrupted": result.interrupted,
        },
        "metrics": {"progressive": progressive.to_json()},
        "calibration": None,
    }
    weights = job.optimizer.in_pass(result.passes).weights(state[1])
    model = Model.of_weights(source.spec, state[0], weights, facts)
    holdout = None
    if judged_on is not None and not result.interrupted:
        holdout = evaluate(model, judged_on[0], start=judged_on[1]).summary()
        facts["metrics"]["holdout"] = holdout.to_json()
    saved_to = job.model.with_name(job.model.name + ".interrupted") if result.interrupted else job.model
    save_model(model, saved_to, state)
    holdout_bad_rows = None if judged_on is None else judged_on[0].bad_rows
    return TrainOutcome(job, result, progressive, holdout, model, saved_to, source.bad_rows, holdout_bad_rows)
