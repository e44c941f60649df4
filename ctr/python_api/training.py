"""`train`, `tune` and `suggest`: models, settings and crosses for a program's data."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ctr.errors import CtrWarning, SettingError, SpecError, named, path_of, require_counts
from ctr.features import FeatureSpec, load_spec, parse_spec, spec_of
from ctr.features.inspect import draft_spec as draft
from ctr.features.spec import is_shipped
from ctr.jobs import require_classes, run, run_tune_job, tuned
from ctr.learn import TrainProgress
from ctr.model import Model, inputs_of, paths_of
from ctr.settings import STREAM_ONLY, TrainJob, TuneJob, taking, with_file
from ctr.tracking import open_trackers

if TYPE_CHECKING:
    from ctr.crosses import Suggestion
    from ctr.search import Tuned

_NOWHERE = Path("model")  # nothing is written


@taking(TrainJob, but=("inputs", "spec", "model", "holdout", "stream", *STREAM_ONLY))
def train(
    data: object,
    spec: str | Path | Mapping[str, Any] | FeatureSpec | None = None,
    *,
    label: str | None = None,
    holdout: object = None,
    model: str | Path | None = None,
    on_progress: Callable[[TrainProgress], None] = lambda _: None,
    **settings: Any,
) -> Model:
    """Train a model on raw rows or a hashed data set, as `ctr train` does.

    `data` and `holdout` are an Arrow table, a frame of pandas (2.2 or newer) or polars, a list of dicts, a
    dict of lists, or a path, a folder, a pattern, a URI, or a list of those. `spec` is a feature spec: its
    path, the name of one that ships with the package, its YAML text, a dict with the same keys, or a
    `FeatureSpec`; a hashed data set has its own, and so has the model of `warm_start`. Without one, `label`
    names the column of clicks, and the spec is drafted from the first rows (`ctr.draft_spec`); it is then in
    `model.spec`. A spec that learns (quantiles, counts) learns from `data` first. `model`: the folder to save
    the model to; without it, nothing is written except what settings ask for.

    Nothing is printed, and no signal is handled; warnings are of the category `ctr.errors.CtrWarning`.
    `model.metrics` has the metrics of the validation set, `model.manifest` everything else. Raises
    SettingError for wrong settings, and the errors of `ctr train`.

    >>> import ctr, pyarrow as pa
    >>> rows = pa.table({"site": ["news", "shop"] * 1000, "click": [0, 1, 0, 0] * 500})
    >>> spec = '''{version: 1, source: {format: parquet}, label: click,
    ...   fields: [{name: site, type: category}]}'''
    >>> model = ctr.train(rows, spec, alpha=0.5)
    >>> model.predict([{"site": "news"}, {"site": "shop"}]).round(1).tolist()
    [0.0, 0.5]
    >>> round(model.evaluate(rows).auc, 2)
    0.83
    """
    if label is not None and spec is not None:
        raise SettingError("label is for data without a spec: a spec names its label; leave one of them out.")
    job_spec = None if spec is None else spec_of(spec)
    read_with, warm_start = job_spec, settings.get("warm_start")
    if job_spec is None and warm_start is not None and path_of("warm_start", warm_start).is_dir():
        read_with = load_spec(warm_start)
    is_table = paths_of(data) is None
    with ExitStack() as opened:
        inputs = opened.enter_context(inputs_of(data, read_with))
        if label is not None:
            job_spec = read_with = parse_spec(draft(inputs[0], label=label), "the drafted spec")
        values: dict[str, Any] = {"inputs": inputs, "spec": job_spec, **TrainJob.checked(settings)}
        if holdout is not None:
            values["holdout"] = opened.enter_context(inputs_of(holdout, read_with))
        if model is not None:
            values["model"] = path_of("model", model)
        values = with_file(TrainJob, values)  # which may also name a spec, a hold-out and a model
        if is_table and values["spec"] is None and warm_start is None:
            raise SpecError(
                "tables need a feature spec: give spec, or give label, the column of clicks, to draft one."
            )
        job = TrainJob(
            **{"model": _NOWHERE, **values},
            saved="model" in values,
            data_name="a table" if is_table else None,
        )
        if is_table and job.warm_start is None and isinstance(job.spec, FeatureSpec):
            _require_classes(inputs[0], job.spec)
        trackers, texts = open_trackers(job.track), []
        if job.auto:
            with TemporaryDirectory() as scratch:
                job, search = tuned(job, Path(scratch))
            texts += search.warnings
        outcome = run(job, on_progress=on_progress)
        for tracker in trackers:
            tracker.keep(outcome.to_json())
        texts += outcome.warnings
        if outcome.left_in_store is not None:
            texts.append(outcome.left_in_store)
        for text in dict.fromkeys(texts):
            if not (is_table and text.startswith(inputs[0])):  # `check_categories` has warned of its types
                warnings.warn(text, CtrWarning, stacklevel=2)
        return outcome.model


@taking(TuneJob, but=("inputs", "spec", "out"))
def tune(
    data: object,
    spec: str | Path | Mapping[str, Any] | FeatureSpec | None = None,
    *,
    out: str | Path | None = None,
    **settings: Any,
) -> Tuned:
    """Find good settings of `ctr.train` for some data, as `ctr tune` does.

    `data` and `spec` as for `ctr.train`; `out`: a file to write the best settings to, for
    `ctr.train(data, settings=out)`. The result has `options`, for `ctr.train(data, spec, **tuned.options)`,
    and all trials in `tried`. With `crosses`, the spec for `ctr.train` is `tuned.crossed`, unless that is
    None. Raises SettingError, DataError and SpecError.
    """
    job_spec = None if spec is None else spec_of(spec)
    has_name = isinstance(spec, str | Path) and (is_shipped(spec) or Path(spec).exists())
    if out is not None and job_spec is not None and not has_name:
        raise SettingError("out names the spec that settings belong to: give spec as a path or a name.")
    if out is None and settings.get("on_bad_rows") == "quarantine":
        raise SettingError(
            f"{named('on_bad_rows', 'quarantine')} writes bad rows beside the settings: give {named('out')}."
        )
    if job_spec is None and paths_of(data) is None:
        raise SpecError("tables need a feature spec: give spec, such as that of ctr.draft_spec.")
    with TemporaryDirectory() as scratch, inputs_of(data, job_spec) as inputs:
        file = Path(scratch, "settings.yaml") if out is None else path_of("out", out)
        values = {"inputs": inputs, "spec": job_spec if out is None else spec, **TuneJob.checked(settings)}
        return run_tune_job(TuneJob(out=file, **values)).tuned


def suggest(
    data: object,
    spec: str | Path | Mapping[str, Any] | FeatureSpec,
    *,
    crosses: int = 20,
    rows: int = 1_000_000,
    workers: int | None = None,
) -> Suggestion:
    """Find useful crosses of a spec's fields, as `ctr features suggest` does.

    It suggests at most `crosses` crosses, from at most `rows` rows. `yaml()` of the result is the spec with
    them. Raises DataError and SpecError.
    """
    from ctr.crosses import suggest_crosses

    require_counts(crosses=crosses, rows=rows, workers=workers)
    with inputs_of(data) as inputs:
        return suggest_crosses(
            spec_of(spec),
            inputs,
            most=crosses,
            rows=rows,
            workers=workers or os.cpu_count() or 1,
        )


def _require_classes(table: str, spec: FeatureSpec) -> None:
    """Raises ModelError if all labels of the table in this file are equal."""
    with pa.memory_map(table) as file, pa.ipc.open_file(file) as rows:
        if spec.label not in rows.schema.names:
            return  # opening the table will raise an error
        column = rows.read_all()[spec.label]
        values = column.unique().to_pylist()
        with suppress(TypeError, ValueError):  # not a label: reading the row will raise an error
            if len(values) == 1:
                require_classes(spec, len(column), len(column) if float(values[0]) > 0 else 0)
