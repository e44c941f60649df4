"""`staged`: makes a hashed data set of raw files before workers on other machines train on them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ctr.errors import DataError, SettingError, named
from ctr.features import BLOCK_ROWS, BadRows, FeatureSpec, is_dataset
from ctr.features.dataset import key_of
from ctr.features.folder import MANIFEST
from ctr.features.inputs import RemoteFolder, input_files
from ctr.jobs.training.outcome import require_places
from ctr.jobs.training.setup import wanted_spec
from ctr.settings import BuildJob, TrainJob

if TYPE_CHECKING:
    from ctr.engines import Engine

_TRAINING, _HOLDOUT = "training.hashed", "holdout.hashed"
_NOTE = "staged.json"
"""The file that says what the complete data sets were made of, and which rows they left out."""


@dataclass(frozen=True, slots=True)
class Staged:
    """A job over the hashed data sets of its raw inputs; the job itself if it has no staging folder."""

    job: TrainJob
    bad_rows: BadRows = field(default_factory=BadRows)
    """Rows that the data set for training left out."""
    holdout_bad_rows: BadRows = field(default_factory=BadRows)


@contextmanager
def staged(job: TrainJob, engine: Engine | None) -> Iterator[Staged]:
    """The job over hashed data sets of its raw inputs, which `engine` builds in the staging folder, if any.

    A job with checkpoints uses the data sets that it built before it was killed. They are removed after the
    `with` block, unless the job keeps them. Raises as `build_datasets`.
    """
    if engine is None or job.staging is None or any(map(is_dataset, job.inputs)):
        yield Staged(job)
        return
    names = [_TRAINING] if job.holdout_where is None else [_TRAINING, _HOLDOUT]
    folder = RemoteFolder(job.staging.resolve().as_uri() if isinstance(job.staging, Path) else job.staging)
    spec = _spec_of(job)
    key = key_of(spec, input_files(job.inputs), BLOCK_ROWS, job.rows(held_out=False))
    bad_rows = None if job.checkpoint is None else _bad_rows_noted(folder, key, names)
    places = [_place(job.staging, name) if bad_rows else staging_place(job.staging, name) for name in names]
    removes = bad_rows is None  # otherwise, the job that built them may still run
    try:
        if bad_rows is None:
            _require_store(job)
            from ctr.jobs.splits import require_reach  # with what other jobs do without

            require_reach(engine, job.staging, job.store)
            bad_rows = _build(job, spec, places)
            entry = {"key": key, "bad_rows": [each.to_json() for each in bad_rows]}
            folder.write(_NOTE, json.dumps(entry).encode())
        over = job.with_values(inputs=places[:1], spec=None, holdout_where=None)
        yield Staged(over.with_values(holdout=places[1:] or job.holdout), *bad_rows)
        removes = True
    finally:
        if removes and not job.keep_staging:
            folder.remove([_NOTE])
            for place in places:
                remove_staged(place)


def require_stageable(job: TrainJob) -> FeatureSpec:
    """The spec of a job whose raw files are yet to be written.

    Raises the errors of `staged` that are possible without reading the files, and of other checks.
    """
    spec = _spec_of(job)
    require_places(job)
    _require_store(job)
    return spec


def _spec_of(job: TrainJob) -> FeatureSpec:
    spec = wanted_spec(job)
    if spec is None:
        raise SettingError(f"raw files need a feature spec: give {named('spec')}, such as criteo.")
    return spec


def _bad_rows_noted(staging: RemoteFolder, key: str | None, names: Sequence[str]) -> list[BadRows] | None:
    """The bad rows of the data sets of these names, if these are complete and made of the same rows."""
    if not all(staging.has(name) for name in (_NOTE, *(f"{name}/{MANIFEST}" for name in names))):
        return None
    with suppress(ValueError):  # torn
        entry = json.loads(staging.read(_NOTE))
        if entry["key"] == key:
            return [BadRows.from_json(each) for each in entry["bad_rows"]]
    return None


def _place(staging: Path | str, name: str) -> Path | str:
    return staging / name if isinstance(staging, Path) else f"{staging.rstrip('/')}/{name}"


def staging_place(staging: Path | str, name: str) -> Path | str:
    """The place of this name in a staging folder. Raises DataError if something is there."""
    place = _place(staging, name)
    if place.exists() if isinstance(place, Path) else RemoteFolder(place).names():
        raise DataError(f"{place} already exists; train on it, remove it, or give another folder.")
    return place


def remove_staged(place: Path | str) -> None:
    """Remove whatever is at this place."""
    if isinstance(place, Path):
        shutil.rmtree(place, ignore_errors=True)
    else:
        RemoteFolder(place).remove_all()


def _require_store(job: TrainJob) -> None:
    """Raise StoreError if this machine cannot reach the store, before rows are read."""
    from ctr.ps import JobBoard, parse_redis_url

    if not job.store.startswith("embedded:"):
        JobBoard(parse_redis_url(job.store)).close()


def _build(job: TrainJob, spec: FeatureSpec, places: Sequence[Path | str]) -> list[BadRows]:
    """Build data sets in these places; return the bad rows of each."""
    from ctr.jobs.build import build_datasets, open_portions  # loads modules that other jobs do not need

    training, *holdout = places
    build = BuildJob(
        inputs=[str(path) for path in job.inputs],
        spec=str(job.spec_name or job.spec),
        out=training,
        holdout_where=job.holdout_where,
        holdout_out=holdout[0] if holdout else None,
        engine=job.engine,
        master=job.master,
        on_bad_rows=job.on_bad_rows,
        max_bad_fraction=job.max_bad_fraction,
    )
    policies = dict(zip(places, (job.bad_row_policy, job.holdout_bad_row_policy), strict=False))
    portions = open_portions(build, spec, policies)
    build_datasets(build, portions, lambda _: None)
    return [portion.source.bad_rows for portion in reversed(portions)]
