"""`staged`: raw files become a hashed data set before workers on other machines train on them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ctr.errors import DataError, SettingError, named
from ctr.features import is_dataset
from ctr.jobs.training.setup import wanted_spec
from ctr.settings import BuildJob, TrainJob

_TRAINING, _HOLDOUT = "training.hashed", "holdout.hashed"


@contextmanager
def staged(job: TrainJob) -> Iterator[TrainJob]:
    """The job over hashed data sets that its engine makes of raw inputs, in its staging folder if it has one.

    They are removed after the `with` block, unless the job keeps them. Raises as `build_datasets`.
    """
    if job.staging is None or any(map(is_dataset, job.inputs)):
        yield job
        return
    training, holdout = job.staging / _TRAINING, job.staging / _HOLDOUT
    for place in (training, holdout):
        if place.exists():
            raise DataError(f"{place} already exists; train on it, remove it, or give another folder.")
    try:
        yield _over(job, training, holdout)
    finally:
        if not job.keep_staging:
            for place in (training, holdout):
                shutil.rmtree(place, ignore_errors=True)


def _over(job: TrainJob, training: Path, holdout: Path) -> TrainJob:
    """The job over the data sets that are built in these places."""
    from ctr.jobs.build import build_datasets, open_portions  # with what other jobs do without

    spec, with_holdout = wanted_spec(job), job.holdout_where is not None
    if spec is None:
        raise SettingError(f"raw files need a feature spec: give {named('spec')}, such as criteo.")
    build = BuildJob(
        inputs=[str(path) for path in job.inputs],
        spec=str(job.spec_name or job.spec),
        out=training,
        holdout_where=job.holdout_where,
        holdout_out=holdout if with_holdout else None,
        engine=job.engine,
        master=job.master,
        on_bad_rows=job.on_bad_rows,
        max_bad_fraction=job.max_bad_fraction,
    )
    training.parent.mkdir(parents=True, exist_ok=True)
    build_datasets(build, open_portions(build, spec), lambda _: None)
    return job.with_values(
        inputs=[training],
        spec=None,
        holdout_where=None,
        holdout=[holdout] if with_holdout else job.holdout,
    )
