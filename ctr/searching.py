"""`tune` and `suggest`: what suits some data, for Python programs."""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event
from typing import Any

from ctr.crosses import Suggestion, suggest_crosses
from ctr.errors import SettingError
from ctr.features import FeatureSpec, spec_of
from ctr.features.spec import is_shipped
from ctr.jobs import run_tune_job
from ctr.model import inputs_of
from ctr.search import Tuned
from ctr.settings import TuneJob, taking


@taking(TuneJob, but=("inputs", "spec", "out"))
def tune(
    data: object,
    spec: str | Path | FeatureSpec | None = None,
    *,
    out: str | Path | None = None,
    **settings: Any,
) -> Tuned:
    """Find the settings of `ctr.train` that suit some data, as `ctr tune` does.

    `data` and `spec` as for `ctr.train`; `out`: a file that the best settings are written to, for
    `ctr.train(data, settings=out)`. The result has `options`, for `ctr.train(data, spec, **tuned.options)`,
    and all that was `tried`. Raises SettingError, DataError and SpecError.
    """
    wanted = spec_of(spec) if isinstance(spec, str | Path) else spec
    unnamed = not isinstance(spec, str | Path) or not (is_shipped(spec) or Path(spec).exists())
    if out is not None and wanted is not None and unnamed:
        raise SettingError("out names the spec that settings belong to: give spec as a path or a name.")
    with TemporaryDirectory() as scratch, inputs_of(data, wanted) as inputs:
        place = Path(scratch, "settings.yaml") if out is None else Path(out)
        values = {"inputs": inputs, "spec": wanted if out is None else spec, **TuneJob.checked(settings)}
        job = TuneJob(out=place, **values)
        silent = nullcontext(lambda *_, **__: None)
        return run_tune_job(
            job, Event(), lambda _: silent, lambda rows, fraction: None, lambda progress: None
        ).tuned


def suggest(
    data: object,
    spec: str | Path | FeatureSpec,
    *,
    crosses: int = 20,
    rows: int = 1_000_000,
    workers: int | None = None,
) -> Suggestion:
    """Find the crosses of a spec's fields that are worth having, as `ctr features suggest` does.

    At most so many `crosses`; of more `rows`, so many are looked at. `yaml()` of the result is the spec with
    them. Raises DataError and SpecError.
    """
    with inputs_of(data) as inputs:
        return suggest_crosses(
            spec_of(spec) if isinstance(spec, str | Path) else spec,
            inputs,
            most=crosses,
            rows=rows,
            workers=workers or os.cpu_count() or 1,
        )
