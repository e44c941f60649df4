"""What the windows of a job's rows knew at their beginning."""

from __future__ import annotations

from ctr.features import DatasetSource, ExampleSource, FeatureSpec
from ctr.features.windows import Windows, load_windows
from ctr.outputs import printable
from ctr.settings import TrainJob


def windows_of_warm_start(job: TrainJob, spec: FeatureSpec | None) -> Windows | None:
    """What those of the model to train on from know: raw rows go on from it, in the one pass that they allow.

    None where there is no such model, where rows are read more than once, and for a data set, which has what
    it was built with. Raises DataError where the model has other windows.
    """
    if spec is None or not spec.windows or job.warm_start is None:
        return None
    once = job.in_memory and job.epochs == 1 and not (job.holdout_fraction or job.holdout_where)
    return load_windows(spec, job.warm_start) if once else None


def window_warnings(job: TrainJob, source: ExampleSource) -> list[str]:
    """A warning where the windows of a data set started empty."""
    if not isinstance(source, DatasetSource) or source.manifest.windows_before != 0:
        return []
    began = f"{source.path}: its windows started empty"
    if job.warm_start is None:
        return [f"{began}, so its first rows have little history; build the next day with --windows-from"]
    return [
        f"{began}, though the model {printable(job.warm_start)} was trained on some: build it with"
        " `--windows-from` and the model or data set of the day before"
    ]
