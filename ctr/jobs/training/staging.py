"""`staged`: raw files become a hashed data set before workers on other machines train on them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ctr.errors import DataError, SettingError, named
from ctr.features import is_dataset
from ctr.features.inputs import RemoteFolder
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
    training, holdout = (staging_place(job.staging, name) for name in (_TRAINING, _HOLDOUT))
    try:
        yield _over(job, training, holdout)
    finally:
        if not job.keep_staging:
            for place in (training, holdout):
                remove_staged(place)


def staging_place(staging: Path | str, name: str) -> Path | str:
    """The place of this name in a staging folder. Raises DataError if something is there."""
    if isinstance(staging, Path):
        place: Path | str = staging / name
        taken = Path(place).exists()
    else:
        place = f"{staging.rstrip('/')}/{name}"
        taken = bool(RemoteFolder(place).names())
    if taken:
        raise DataError(f"{place} already exists; train on it, remove it, or give another folder.")
    return place


def remove_staged(place: Path | str) -> None:
    """Remove what is there, if anything is."""
    if isinstance(place, Path):
        shutil.rmtree(place, ignore_errors=True)
    else:
        RemoteFolder(place).remove_all()


def _over(job: TrainJob, training: Path | str, holdout: Path | str) -> TrainJob:
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
    build_datasets(build, open_portions(build, spec), lambda _: None)
    return job.with_values(
        inputs=[training],
        spec=None,
        holdout_where=None,
        holdout=[holdout] if with_holdout else job.holdout,
    )
