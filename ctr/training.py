"""`train`: a model from a program's data, in its process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event
from typing import TYPE_CHECKING, Literal

import pyarrow as pa

from ctr.defaults import MOST_BAD, STORE
from ctr.errors import DataError, ModelError
from ctr.features import FeatureSpec, load_spec, spec_of
from ctr.jobs import (
    EarlyStopping,
    PassEvaluations,
    Remains,
    TrainJob,
    learn_in_memory,
    require_classes,
    set_up,
    tuned,
)
from ctr.learn import TrainProgress
from ctr.model import Model, inputs_of, note_holdout, require_method

if TYPE_CHECKING:
    from ctr.model import Method

_NOWHERE = Path("model")  # nothing is written
_SKIPPING = 'pass on_bad_rows="skip"'


def train(
    data: object,
    spec: str | Path | FeatureSpec | None = None,
    *,
    holdout: object = None,
    holdout_fraction: float | None = None,
    holdout_where: str | None = None,
    auto: bool = False,
    epochs: int = 1,
    workers: int = 1,
    early_stopping: bool = False,
    calibrate: Method | None = None,
    chunk: int | None = None,
    admit: float = 1.0,
    negative_rate: float = 1.0,
    pos_weight: float = 1.0,
    base_rate: float | None = None,
    on_bad_rows: Literal["fail", "skip"] = "fail",
    max_bad_fraction: float = MOST_BAD,
    warm_start: str | Path | None = None,
    forget: float = 0.0,
    on_progress: Callable[[TrainProgress], None] = lambda _: None,
    optimizer: str | None = None,
    **settings: float,
) -> Model:
    """Train a model on raw rows or a hashed data set, with the parameters in this process.

    `data` is an Arrow table, a frame of pandas (2.2 or newer) or polars, or what `ctr train` takes: a path, a
    folder, a pattern, a URI, or a list of those. `spec` is a feature spec: its path, the name of one that
    ships with the package, its YAML text, or a `FeatureSpec`; a hashed data set has its own, and so has the
    model of `warm_start`. A spec that learns (quantiles, counts) learns from `data` first. `settings` are the
    optimizer's: `alpha`, `beta`, `l1`, `l2`; the others are options of `ctr train`, where they are explained.
    `auto` finds `epochs` and the settings that are not given by a search of about half a minute (it needs
    Optuna). With `early_stopping`, the model is that of the pass which is best on the hold-out; `calibrate`
    ("isotonic" or "platt") fits its probabilities to the hold-out. With `on_bad_rows="skip"`, rows that
    cannot be read are left out, and counted in `model.manifest["training"]["bad_rows"]`. Nothing is printed,
    and no signal is handled. What the hold-out says is in `model.manifest["metrics"]`. Raises the errors of
    `ctr train`.

    >>> import ctr, pyarrow as pa
    >>> rows = pa.table({"site": ["news", "shop"] * 1000, "click": [0, 1] * 1000})
    >>> spec = '''{version: 1, source: {format: parquet}, label: click,
    ...   fields: [{name: site, type: category}]}'''
    >>> model = ctr.train(rows, spec, alpha=0.5)
    >>> model.predict([{"site": "news"}, {"site": "shop"}]).round(1).tolist()
    [0.0, 1.0]
    >>> model.evaluate(rows).auc
    1.0
    """
    if calibrate is not None:
        require_method(calibrate)
    if on_bad_rows not in ("fail", "skip"):
        raise DataError(f'on_bad_rows is {on_bad_rows!r}: choose "fail" or "skip".')
    if sum(each is not None for each in (holdout, holdout_fraction, holdout_where)) > 1:
        raise ModelError("give one of holdout, holdout_fraction and holdout_where.")
    wanted = spec_of(spec) if isinstance(spec, str | Path) else spec
    read_with = wanted
    if wanted is None and warm_start is not None and Path(warm_start).is_dir():
        read_with = load_spec(warm_start)
    with ExitStack() as opened:
        inputs = opened.enter_context(inputs_of(data, read_with, skipping=_SKIPPING))
        held_out: Sequence[str] = ()
        if holdout is not None:
            held_out = opened.enter_context(inputs_of(holdout, read_with, skipping=_SKIPPING))
        job = TrainJob(
            inputs=inputs,
            spec=wanted,
            model=_NOWHERE,
            workers=workers,
            chunk=chunk,
            early_stopping=early_stopping,
            calibrate=calibrate,
            epochs=epochs,
            admit=admit,
            negative_rate=negative_rate,
            pos_weight=pos_weight,
            optimizer=settings if optimizer is None else {"name": optimizer, **settings},
            store=STORE,
            holdout=held_out,
            holdout_fraction=holdout_fraction,
            holdout_where=holdout_where,
            warm_start=None if warm_start is None else Path(warm_start),
            forget=forget,
            base_rate=base_rate,
            on_bad_rows=on_bad_rows,
            max_bad_fraction=max_bad_fraction,
        )
        given = isinstance(data, str | Path | list | tuple)
        if not given and job.warm_start is None and isinstance(job.spec, FeatureSpec):
            _require_classes(inputs[0], job.spec)
        if auto:
            job = _tuned(job)
        model = _trained(job, on_progress)
        if not given:
            model.manifest["training"]["inputs"] = ["a table"]
        return model


def _require_classes(table: str, spec: FeatureSpec) -> None:
    """Raise ModelError when all labels of the table in this file are one and the same."""
    with pa.memory_map(table) as file, pa.ipc.open_file(file) as rows:
        if spec.label not in rows.schema.names:
            return  # which is told where the table is opened
        column = rows.read_all()[spec.label]
        values = column.unique().to_pylist()
        with suppress(TypeError, ValueError):  # no label: told where the row is read
            if len(values) == 1:
                require_classes(spec, len(column), len(column) if float(values[0]) > 0 else 0)


def _tuned(job: TrainJob) -> TrainJob:
    begun = job.epochs != 1 or job.early_stopping or job.warm_start is not None
    if begun or job.negative_rate != 1 or job.pos_weight != 1:
        raise ModelError(
            "auto chooses the settings of a new model of all rows: leave out epochs, early_stopping, "
            "warm_start, negative_rate and pos_weight."
        )
    with TemporaryDirectory() as scratch:
        return tuned(job, Path(scratch))[0]


def _trained(job: TrainJob, on_progress: Callable[[TrainProgress], None]) -> Model:
    setup, stop = set_up(job), Event()
    if job.early_stopping and setup.holdout is None:
        raise ModelError("early stopping compares passes on a hold-out: give one (holdout=...).")
    early = EarlyStopping(partial(setup.evaluate_pass, stop), stop) if job.early_stopping else None
    passes = PassEvaluations(early or (lambda after: None))
    trained = learn_in_memory(setup, passes, stop, Remains(STORE, _NOWHERE), on_progress)
    if early is not None:
        trained = early.best_of(setup, trained, passes)
    model = setup.model(trained.state, trained.result)
    model.manifest["training"]["bad_rows"] = setup.source.bad_rows.count
    if setup.holdout is None:
        return model
    if job.calibrate is not None:
        fitted = setup.holdout.calibrate(model.linear, job.calibrate, stop)
        assert fitted is not None
        return fitted.of(model)
    if (summary := setup.holdout.evaluate(model.linear, stop)) is not None:
        note_holdout(model, summary)
    return model
