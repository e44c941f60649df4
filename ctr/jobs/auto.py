"""`tuned`: a training job with settings that a short search has found on its own rows."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Event

from ctr.errors import ModelError
from ctr.jobs.holdout import open_holdout
from ctr.jobs.setup import open_training
from ctr.jobs.train_job import TrainJob
from ctr.tune import Reopen, Tried, Tuned, tune
from features import DatasetSource, is_dataset

AUTO_TRIALS = 30
_MOST_ROWS = 500_000
_LIMIT_S = 30.0


def tuned(
    job: TrainJob,
    scratch: Path,
    stop: Event | None = None,
    on_trial: Callable[[Sequence[Tried]], None] = lambda tried: None,
) -> tuple[TrainJob, Tuned]:
    """The job with the number of passes and settings of FTRL that suit its rows best, and what was tried.

    Fields of raw rows get scales if that is better. Settings that the job has stay. The rows of its hold-out
    are not looked at. It takes 30 trials on 500,000 rows at most, and begins none after 30 s. Temporary files
    are put into `scratch`.

    Raises ModelError for another optimizer, and the errors of `tune`.
    """
    fixed = dict(job.optimizer)
    if (name := fixed.pop("name", "ftrl")) != "ftrl":
        raise ModelError(
            f"settings can be found for the optimizer ftrl, not for {name}: choose them yourself."
        )
    # A pass for the search leaves no bad rows behind; the training itself does.
    raw = job if job.quarantine is None else replace(job, on_bad_rows="skip")
    source = open_training(raw)
    holdout = open_holdout(job, source)
    found = tune(
        source,
        scratch,
        stop_row=None if holdout is None else holdout.training_stops,
        most_rows=_MOST_ROWS,
        reopen=_reopen(raw),
        fixed={name: float(value) for name, value in fixed.items()},
        trials=AUTO_TRIALS,
        workers=os.cpu_count() or 1,
        limit_s=_LIMIT_S,
        stop=stop,
        on_trial=on_trial,
    )
    return replace(
        job,
        spec=job.spec if isinstance(source, DatasetSource) else source.spec,  # what it learns, it has learnt
        optimizer={"name": name, **found.best.settings},
        epochs=found.best.judged.best_pass,
        scales=found.best.scales,
    ), found


def _reopen(job: TrainJob) -> Reopen | None:
    """How the rows are read with scales; None where the spec is not for the job to choose."""
    if job.scales or any(map(is_dataset, (*job.inputs, *job.holdout))):
        return None
    return lambda spec: open_training(replace(job, spec=spec))
