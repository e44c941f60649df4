"""`tuned`: a training job with settings that a short search has found on its own rows."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from threading import Event

from ctr.errors import ModelError
from ctr.features import DatasetSource, ExampleSource, is_dataset
from ctr.features.dataset import read_manifest
from ctr.jobs.holdout import open_holdout
from ctr.jobs.setup import open_training, wanted_spec
from ctr.search import Progress, RawRows, Tuned, tune
from ctr.settings import TrainJob

AUTO_TRIALS = 30
_MOST_ROWS = 500_000
_SAMPLED = 1_000  # rows, to see how many features they have
_MOST_FEATURES = 2e7
"""Of all rows together; of wider rows there are fewer."""
_MOST_WORK = 3e9
"""Features that all trials learn: about half a minute on two cores, and the same on any."""
AUTO_LIMIT_S = 120.0
"""For machines that are slow or busy."""


def tuned(
    job: TrainJob,
    scratch: Path,
    stop: Event | None = None,
    on_rows: Callable[[int, float], None] = lambda rows, fraction: None,
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> tuple[TrainJob, Tuned]:
    """The job with the number of passes and settings of FTRL that suit its rows best, and what was tried.

    Fields get scales if that is better. Settings that the job has stay. The rows of its hold-out
    are not looked at. It makes 30 trials, or as many as learn 3e9 features, on 500,000 rows at most. The
    search stops after about 120 s; the manifest then says so. Temporary files are put into `scratch`.

    Raises ModelError for another optimizer, and the errors of `tune`.
    """
    fixed = job.optimizer_settings
    if (name := fixed.pop("name", "ftrl")) != "ftrl":
        raise ModelError(
            f"settings can be found for the optimizer ftrl, not for {name}: choose them yourself."
        )
    # A pass for the search leaves no bad rows behind; the training itself does.
    raw = job if job.quarantine is None else job.with_values(on_bad_rows="skip")
    source = open_training(raw)
    holdout = open_holdout(job, source)
    sample = source.sample(_SAMPLED)
    width = max(sample.slots.size / max(len(sample), 1), 1.0)
    found = tune(
        source,
        scratch,
        raw=_raw_rows(raw, source),
        scaled=not job.scale and all(map(_may_be_scaled, job.holdout)),
        stop_row=None if holdout is None else holdout.training_stops,
        most_rows=max(int(min(_MOST_ROWS, _MOST_FEATURES / width)), _SAMPLED),
        fixed={name: float(value) for name, value in fixed.items()},
        trials=AUTO_TRIALS,
        most_work=_MOST_WORK,
        workers=os.cpu_count() or 1,
        limit_s=AUTO_LIMIT_S,
        stop=stop,
        on_rows=on_rows,
        on_progress=on_progress,
    )
    job = job.with_optimizer(name, found.best.settings).with_values(
        spec=job.spec if isinstance(source, DatasetSource) else source.spec,  # what it learns, it has learnt
        epochs=found.best.judged.best_pass,
        scale=found.best.scales,
        search=found.facts,
    )
    return job, found


def _may_be_scaled(holdout: str | Path) -> bool:
    """Whether a model with scales can be evaluated on it: not if it is a data set without field ids."""
    return not is_dataset(holdout) or read_manifest(Path(holdout)).fields is not None


def _raw_rows(job: TrainJob, source: ExampleSource) -> RawRows | None:
    """How the rows are read through other specs; None: they are a data set."""
    spec = wanted_spec(job)
    if spec is None or any(map(is_dataset, job.inputs)):
        return None
    return RawRows.of(
        source,
        spec,
        on_bad_rows=job.on_bad_rows,
        max_bad_fraction=job.max_bad_fraction,
        threads=job.reading_threads,
        choice=job.rows(held_out=False),
    )
