"""Searches for settings: `run_tune_job` writes them to a file, `tuned` returns a job with them."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

from ctr.errors import ModelError
from ctr.features import (
    BadRows,
    DatasetSource,
    ExampleSource,
    FeatureSpec,
    is_dataset,
    open_source,
    spec_of,
)
from ctr.features.dataset import manifest_of
from ctr.features.readers import RowChoice
from ctr.jobs.training.holdout import open_holdout
from ctr.jobs.training.setup import open_training, wanted_spec
from ctr.outputs import replace_file, require_apart, require_no_part, require_writable
from ctr.progress import Report, silent
from ctr.search import Plan, Progress, RawRows, Tuned, require_optuna, tune
from ctr.settings import NamedSpec, TrainJob, TuneJob, write_settings

if TYPE_CHECKING:
    from ctr.crosses import Suggestion

_HELD_OUT = 0.2
"""The share of rows, at the end, that the search for crosses does not use."""
_AUTO_TRIALS = 30
_MOST_ROWS = 500_000
_SAMPLED = 1_000  # rows, to count their features
_MOST_FEATURES = 2e7
"""The most features of all rows together, so the number of wide rows is smaller."""
_MOST_WORK = 3e9
"""The most features that all trials learn: about half a minute on two cores."""
_AUTO_LIMIT_S = 120.0
"""The time limit, for slow or busy machines."""


@dataclass(frozen=True, slots=True)
class TuneOutcome:
    """The outcome of a search, whose settings are in the file of the job."""

    job: TuneJob
    tuned: Tuned
    suggestion: Suggestion | None
    """The crosses that were tried, if any."""
    spec: NamedSpec
    """The spec that the settings belong to."""
    workers: int
    bad_rows: BadRows


def run_tune_job(
    job: TuneJob,
    stop: Event | None = None,
    show: Callable[[str], AbstractContextManager[Report]] = silent,
    on_rows: Callable[[int, float], None] = lambda rows, fraction: None,
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> TuneOutcome:
    """Search, and write the best settings, and the spec with crosses if they improve the model.

    `stop`: once set, ends the search with the best settings so far. Raises the errors of `ctr.search.tune`.
    """
    require_optuna()
    _require_places(job)
    workers = job.workers or os.cpu_count() or 1
    spec = None if job.spec is None else spec_of(job.spec)
    choice = validation = None
    if job.holdout_where is not None:
        choice, validation = (RowChoice.parse(job.holdout_where, meets=meets) for meets in (False, True))
    source = open_source(
        job.inputs,
        spec,
        on_bad_rows=job.bad_row_policy,
        threads=workers,
        learns=True,
        choice=choice,
    )
    raw = RawRows.of(source, spec, validation)
    fraction, suggestion = job.holdout_fraction, None
    if job.crosses and spec is not None:
        fraction = _HELD_OUT if fraction is None else fraction
        with show("trying crosses") as report:
            suggestion = _suggested(job, spec, source, fraction, workers, report)
    crossed = {} if suggestion is None else _with_crosses(suggestion)
    plan = Plan(job.trials, job.max_epochs, job.rows, fraction=fraction, workers=workers, seed=job.seed)
    tuned = tune(
        source,
        job.out.parent,
        plan,
        raw=raw,
        crossed=crossed,
        stop=stop,
        on_rows=on_rows,
        on_progress=on_progress,
    )
    place, of_best = job.inputs[0] if isinstance(job.spec, FeatureSpec | None) else job.spec, source.spec
    if suggestion is not None and tuned.best.crosses:
        place, of_best = job.crossed_spec, crossed[tuned.best.crosses]
        tuned = replace(tuned, crossed=of_best)
        with replace_file(place) as partial:
            partial.write_text(suggestion.yaml(tuned.best.crosses), "utf-8")
    named_spec = NamedSpec.of(place, of_best.with_scales(tuned.best.scales), job.out)
    write_settings(job.out, tuned.options, named_spec, tuned.measured)
    return TuneOutcome(job, tuned, suggestion, named_spec, workers, source.bad_rows)


def _require_places(job: TuneJob) -> None:
    """Raise DataError for output paths that are inputs, or not writable."""
    spec = None if isinstance(job.spec, FeatureSpec) else job.spec
    for place in (job.out, job.crossed_spec) if job.crosses else (job.out,):
        require_apart(place, [*job.inputs, spec])
        require_no_part(place)
    require_writable(job.out, make_folders=False)


def _suggested(
    job: TuneJob, spec: FeatureSpec, source: ExampleSource, fraction: float, workers: int, report: Report
) -> Suggestion:
    """Crosses from the rows that trials learn from."""
    from ctr.crosses import suggest_crosses

    total = source.count_rows() if job.rows is None else min(job.rows, source.count_rows())
    return suggest_crosses(
        spec,
        job.inputs,
        most=job.crosses,
        stop=total - round(total * fraction),
        workers=workers,
        on_progress=report,
    )


def _with_crosses(suggestion: Suggestion) -> dict[int, FeatureSpec]:
    """The spec with a quarter, half and all of the crosses suggested."""
    most = len(suggestion.chosen)
    counts = {max(most * quarters // 4, 1) for quarters in (1, 2, 4)} if most else set()
    return {count: spec_of(suggestion.yaml(count)) for count in sorted(counts)}


def tuned(
    job: TrainJob,
    scratch: Path,
    stop: Event | None = None,
    on_rows: Callable[[int, float], None] = lambda rows, fraction: None,
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> tuple[TrainJob, Tuned]:
    """The job with the best number of passes and settings of FTRL for its rows, and the search.

    Fields get scales if that is better. The job's own settings stay. Rows of its hold-out are not used. There
    are up to 30 trials, which learn up to 3e9 features, on up to 500,000 rows. The search stops after about
    120 s, which the manifest then records. `scratch`: the folder for temporary files.

    Raises ModelError for another optimizer, and the errors of `tune`.
    """
    fixed = job.optimizer_settings
    if (name := fixed.pop("name", "ftrl")) != "ftrl":
        raise ModelError(
            f"settings can be found for the optimizer ftrl, not for {name}: choose them yourself."
        )
    # The search writes no bad rows to a file; the training does.
    reading = job.with_values(on_bad_rows="skip") if job.on_bad_rows == "quarantine" else job
    source = open_training(reading)
    holdout = open_holdout(job, source)
    sample = source.sample(_SAMPLED)
    width = max(sample.slots.size / max(len(sample), 1), 1.0)
    plan = Plan(
        _AUTO_TRIALS,
        scaled=not job.scale and all(map(_may_be_scaled, job.holdout)),
        stop_row=None if holdout is None else holdout.training_stops,
        most_rows=max(int(min(_MOST_ROWS, _MOST_FEATURES / width)), _SAMPLED),
        fixed={name: float(value) for name, value in fixed.items()},
        most_work=_MOST_WORK,
        workers=os.cpu_count() or 1,
        limit_s=_AUTO_LIMIT_S,
    )
    tuned = tune(
        source,
        scratch,
        plan,
        raw=RawRows.of(source, wanted_spec(job)),
        stop=stop,
        on_rows=on_rows,
        on_progress=on_progress,
    )
    job = job.with_optimizer(name, tuned.best.settings).with_values(
        spec=job.spec if isinstance(source, DatasetSource) else source.spec,  # what it learns, it has learnt
        epochs=tuned.best.judged.best_pass,
        scale={**job.scale, **tuned.best.scales},
        search=tuned.facts,
    )
    return job, tuned


def _may_be_scaled(holdout: str | Path) -> bool:
    """Whether a model with scales can be evaluated on it: not on a data set without field ids."""
    return not is_dataset(holdout) or manifest_of(holdout).fields is not None
