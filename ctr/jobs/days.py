"""`train_by_days`: one day of a log after the other, each evaluated before it is learnt."""

from __future__ import annotations

from collections.abc import Iterator

from ctr.errors import DataError, ModelError
from ctr.features import input_files, is_dataset, open_source
from ctr.jobs.outcome import TrainOutcome
from ctr.jobs.train import run_train_job
from ctr.model import load_optimizer
from ctr.optimizers import choose_optimizer
from ctr.settings import TrainJob


def require_days(job: TrainJob) -> None:
    """Raise for inputs that are not days of one log, and an optimizer that keeps nothing of the days before.

    It is what can be known before any is trained on: DataError, and ModelError for the optimizer.
    """
    if len(job.inputs) < 2:
        raise DataError("one input is one day, with none after it to evaluate on; give two or more.")
    optimizer = choose_optimizer(
        job.optimizer_settings, None if job.warm_start is None else load_optimizer(job.warm_start)
    )
    if not optimizer.online:
        raise ModelError(
            f"{optimizer.name} fits the weights to the rows of one day, keeping nothing of the days before: "
            "choose ftrl or adagrad, or train on all days at once."
        )
    of_first = None
    for day in job.inputs:
        if not is_dataset(day):
            input_files([day])
            continue
        spec = open_source([day], None).spec
        if of_first is not None and spec.fingerprint != of_first:
            raise DataError(
                f"{day}: hashed with the transform {spec.fingerprint[:12]}, {job.inputs[0]} with "
                f"{of_first[:12]}; build all days with the spec of the first (its features.yaml)."
            )
        of_first = spec.fingerprint


def train_by_days(job: TrainJob) -> Iterator[TrainOutcome]:
    """Train on each of the job's inputs in turn, from what was learnt until then; evaluate on the next.

    After each day the model is in `job.model`, so what fails or is stopped on a day leaves the model of the
    days before. That day's outcome is the last then. Raises the errors of `run_train_job`.
    """
    for number, day in enumerate(job.inputs):
        of_day = job.with_values(inputs=[day], holdout=job.inputs[number + 1 : number + 2])
        if number:
            of_day = of_day.with_optimizer(None, {}).with_values(warm_start=job.model, base_rate=None)
        elif job.warm_start is None:
            of_day = of_day.with_values(forget=0.0)
        outcome = run_train_job(of_day)
        yield outcome
        if outcome.stopped:
            return
