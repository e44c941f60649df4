"""`TrainJob`: a training job, and which of its settings go together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from pydantic import model_validator

from ctr.errors import ModelError, SettingError, named
from ctr.outputs import beside, printable
from ctr.settings.shared import chosen_rows, require_engine
from ctr.settings.train_fields import TrainFields

if TYPE_CHECKING:
    from ctr.features import BadRowPolicy
    from ctr.features.readers import RowChoice

_OF_OPTIMIZERS = ("alpha", "beta", "l1", "l2", "iterations", "tolerance")
_FILTERS = ("cache", "presence", "defer", "kkt")
_ONLY_IN_REDIS = (
    "checkpoint",
    "checkpoint_every",
    "resume",
    "staleness",
    "lease",
    "stall_timeout",
    *_FILTERS,
)
_IN_MANIFEST = (
    "epochs",
    "workers",
    "chunk",
    "admit",
    "negative_rate",
    "pos_weight",
    "base_rate",
    "warm_start",
    "forget",
)
_NOT_WITH_AUTO = (
    "settings",
    "epochs",
    "early_stopping",
    "warm_start",
    "resume",
    "negative_rate",
    "pos_weight",
    "engine",
)
STREAM_ONLY = ("publish_every", "keep_versions", "max_loss_rise", "max_miscalibration", "max_evidence")
_NOT_WITH_STREAM = (
    "auto",
    "settings",
    "epochs",
    "early_stopping",
    "holdout",
    "holdout_fraction",
    "holdout_where",
    "calibrate",
    "chunk",
    "negative_rate",
    "pos_weight",
    "engine",
    "staging",
    "track",
    "max_bad_fraction",
)


class TrainJob(TrainFields):
    """What to train, on what, and where the model goes."""

    saved: bool = True
    """False if the model is only returned to the program, and not written."""
    spec_name: str | None = None
    """The spec's name or path as given by a user; None: a program, a data set or a model gave it."""
    data_name: str | None = None
    """The name of the inputs in the manifest; None: their paths."""
    search: Mapping[str, Any] | None = None
    """The manifest's entry about the search that chose the optimizer's settings, if there was one."""

    @property
    def optimizer_settings(self) -> dict[str, str | float]:
        """The chosen settings, for `choose_optimizer`."""
        chosen = self.chosen(_OF_OPTIMIZERS)
        return chosen if self.optimizer is None else {"name": self.optimizer, **chosen}

    def with_optimizer(self, name: str | None, settings: Mapping[str, float]) -> Self:
        """The job with another optimizer, which has only these settings."""
        return self.with_values(optimizer=name, **{**dict.fromkeys(_OF_OPTIMIZERS), **settings})

    @property
    def filters(self) -> dict[str, bool | float]:
        """The settings of `Filters` that were chosen; the others are the defaults."""
        return self.chosen(_FILTERS)

    def chosen(self, names: Sequence[str]) -> dict[str, Any]:
        """The settings of these names that are not None."""
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    def changed(self, names: Sequence[str]) -> list[str]:
        """The settings of these names that do not have their defaults, as the user writes them."""
        fields = type(self).model_fields
        return [named(name) for name in names if getattr(self, name) != fields[name].default]

    @property
    def named_inputs(self) -> list[str]:
        """The names of the inputs in the manifest."""
        return [printable(path) for path in self.inputs] if self.data_name is None else [self.data_name]

    def manifest(self, **chosen: Any) -> dict[str, Any]:
        """The settings for a model's manifest; `chosen` replaces those that the job left open."""
        values = {name: getattr(self, name) for name in _IN_MANIFEST} | chosen
        return {name: printable(each) if isinstance(each, Path) else each for name, each in values.items()}

    @property
    def held_out(self) -> bool:
        """Whether there is a hold-out."""
        return bool(self.holdout or self.holdout_fraction or self.holdout_where)

    def rows(self, *, held_out: bool) -> RowChoice | None:
        """The rows of the inputs for evaluation, or those for training; None: there is no condition."""
        if self.holdout_where is None:
            return None
        return chosen_rows(self.holdout_where, meets=held_out)

    @property
    def in_memory(self) -> bool:
        """Whether the parameters live in this process alone."""
        return self.store.startswith("memory:")

    @property
    def reading_threads(self) -> int:
        """How many threads train in memory and hash raw rows: one per worker, at most one per core."""
        from ctr.features.threads import cores

        return min(self.workers, cores()) if self.in_memory else 1

    @property
    def bad_row_policy(self) -> BadRowPolicy:
        """The policy for bad rows of the inputs."""
        return self._bad_row_policy(".bad-rows")

    @property
    def holdout_bad_row_policy(self) -> BadRowPolicy:
        """The policy for bad rows of the hold-out."""
        return self._bad_row_policy(".holdout.bad-rows")

    def _bad_row_policy(self, suffix: str) -> BadRowPolicy:
        from ctr.features import BadRowPolicy

        return BadRowPolicy.of(self.on_bad_rows, self.max_bad_fraction, beside(self.model, suffix))

    @property
    def interrupted(self) -> Path:
        """The folder of the model if the job is stopped."""
        return beside(self.model, ".interrupted")

    @model_validator(mode="after")
    def _go_together(self) -> Self:
        holdouts = ("holdout", "holdout_fraction", "holdout_where")
        one, other, last = map(named, holdouts)
        if sum(bool(getattr(self, name)) for name in holdouts) > 1:
            raise SettingError(f"give one of {one}, {other} and {last}.")
        if self.early_stopping and (self.epochs == 1 or not self.held_out):
            raise SettingError(
                f"{named('early_stopping')} compares passes on a hold-out: give {named('epochs')} above 1, "
                f"and one of {one}, {other} and {last}."
            )
        if self.calibrate is not None and not self.held_out:
            raise SettingError(
                f"{named('calibrate')} is fitted on a hold-out: give one of {one}, {other} and {last}."
            )
        if self.publish is not None and not self.saved:
            raise SettingError(f"{named('publish')} needs the folder of the model: give {named('model')}.")
        if self.on_bad_rows == "quarantine" and not self.saved:
            raise SettingError(
                f"{named('on_bad_rows', 'quarantine')} writes bad rows beside the model: give "
                f"{named('model')}."
            )
        _require_stream_alone(self)
        _require_one_reading(self)
        if self.auto:
            _require_new_model(self)
        _require_optimizer(self)
        _require_redis(self)
        _require_engine(self)
        if self.resume and self.checkpoint is None:
            raise SettingError(f"{named('resume')} goes on from {named('checkpoint')} DIR; name it.")
        if self.base_rate in (0, 1):
            raise SettingError(
                f"{named('base_rate')} {self.base_rate:g} is a certainty; give a number between 0 and 1."
            )
        if self.base_rate is not None and self.warm_start is not None:
            raise SettingError(
                f"{named('base_rate')} is for a new model; leave it out with {named('warm_start')}."
            )
        return self

    def require_batch(self) -> None:
        """Raise SettingError for settings that do not apply to batch optimizers."""
        given = {
            "store": not self.in_memory,
            "epochs": self.epochs > 1,
            "early_stopping": self.early_stopping,
            "chunk": self.chunk is not None,
            "admit": self.admit < 1,
            "forget": self.forget > 0,
        }
        if wrong := [named(name) for name, is_given in given.items() if is_given]:
            raise SettingError(
                f"lbfgs learns from all examples at once, in the memory of one machine: leave out "
                f"{', '.join(wrong)} ({named('iterations')} says how long it may take; it uses all cores by "
                "itself)."
            )


def _require_stream_alone(job: TrainJob) -> None:
    """Raise SettingError for settings that exclude a stream, and for those that need one."""
    given = job.changed(STREAM_ONLY)
    if job.stream is None:
        if not job.inputs:
            raise SettingError(f"name the inputs to train on, or a stream with {named('stream')}.")
        if given:
            raise SettingError(f"{given[0]} is for a stream: give {named('stream')}, or leave it out.")
        return
    if job.inputs:
        raise SettingError(f"{named('stream')} takes the place of inputs: leave these out.")
    for name in job.changed(_NOT_WITH_STREAM):
        raise SettingError(f"{name} is for inputs that have an end: leave it out with {named('stream')}.")
    if job.on_bad_rows == "quarantine":
        raise SettingError(
            f"rows of a stream stay in no file: give {named('on_bad_rows', 'skip')}, which counts bad ones."
        )
    if job.store.startswith(("memory:", "embedded:")):
        raise SettingError(
            f"{named('stream')} trains in a store that servers and other workers reach: give "
            f"{named('store')}, such as redis://host:port/0."
        )
    if job.consistency not in (None, "asp"):
        raise SettingError(
            f"workers of a stream do not wait for each other: leave out {named('consistency')}."
        )


def _require_one_reading(job: TrainJob) -> None:
    """Raise SettingError if the job would read standard input more than once."""
    if "-" not in [*job.inputs, *job.holdout]:
        return
    again = job.epochs > 1 or bool(job.holdout_fraction or job.holdout_where)
    again = again or not job.in_memory or (job.calibrate is not None and "-" in job.holdout)
    if again or ("-" in job.inputs and "-" in job.holdout):
        raise SettingError(
            "- (standard input) can be read only once: not for several epochs, for a part of it as "
            "hold-out, for calibration, or by workers through Redis; write it to a file, and give that."
        )


def _require_new_model(job: TrainJob) -> None:
    """Raise SettingError for settings that exclude a search for settings."""
    for name in job.changed(_NOT_WITH_AUTO):
        raise SettingError(
            f"{named('auto')} is for a new model of all rows, whose settings it chooses: leave out {name}."
        )
    if job.optimizer not in (None, "ftrl"):
        raise SettingError(
            f"{named('auto')} finds settings of the optimizer ftrl, not of {job.optimizer}: leave out "
            f"{named('optimizer')}."
        )
    if "-" in job.inputs:
        raise SettingError(
            f"{named('auto')} reads the rows twice, and - (standard input) can be read only once."
        )


def _require_optimizer(job: TrainJob) -> None:
    """Raise SettingError for settings that the optimizer does not have."""
    if job.warm_start is not None or not job.optimizer_settings:
        return  # the optimizer of a warm start is that of its model
    from ctr.optimizers import choose_optimizer

    try:
        optimizer = choose_optimizer(job.optimizer_settings)
    except ModelError as error:
        raise SettingError(str(error)) from None
    if not optimizer.online:
        job.require_batch()


def _require_redis(job: TrainJob) -> None:
    """Raise SettingError for settings without effect with the job's store and consistency."""
    given = job.changed(_ONLY_IN_REDIS)
    if job.consistency in ("ssp", "asp"):
        given.append(named("consistency", job.consistency))
    if job.in_memory and given:
        raise SettingError(
            f"{', '.join(given)}: only for parameters in Redis; add {named('store')}, such as "
            f"{named('store', 'embedded://?shards=1')}."
        )
    if job.changed(["staleness"]) and (job.consistency in ("bsp", "asp") or job.stream is not None):
        raise SettingError(
            f"{named('staleness')} is for {named('consistency', 'ssp')}: with the others, workers wait for "
            "all or for none; leave it out."
        )
    if job.changed(["checkpoint_every"]) and job.checkpoint is None:
        raise SettingError(f"{named('checkpoint_every')} is for {named('checkpoint')} DIR; name it.")
    if job.kkt and not (job.l1 or job.auto or job.warm_start is not None):
        raise SettingError(
            f"{named('kkt')} logs weights that {named('l1')} keeps at zero: give {named('l1')}, or leave it "
            "out."
        )


def _require_engine(job: TrainJob) -> None:
    """Raise SettingError for what an engine does not go with."""
    require_engine(job.engine, job.master)
    if job.engine is not None and job.in_memory:
        raise SettingError(
            f"{named('engine')} {job.engine}: its workers need the parameters in Redis; add {named('store')},"
            f" such as {named('store', 'redis+cluster://host:port')}."
        )
    if job.engine is None and job.staging is not None:
        raise SettingError(
            f"{named('staging')} is filled by an {named('engine')}: give one, or leave it out."
        )
    if job.engine == "spark" and job.staging is None:
        from ctr.features import is_dataset

        if not all(map(is_dataset, job.inputs)):
            raise SettingError(
                f"{named('engine')} spark trains on hashed data sets: give {named('staging')} DIR on storage "
                "that all machines share, where the raw files become one."
            )
    if job.keep_staging and job.staging is None:
        raise SettingError(f"{named('keep_staging')} keeps what is in {named('staging')} DIR; name it.")
    if job.engine == "spark" and job.store.startswith("embedded:") and not is_local(job.master):
        raise SettingError(
            f"{job.store}: these servers can be reached from this machine alone, and not by the executors of "
            f"{job.master}; give the {named('store')} of servers that all machines reach."
        )


def is_local(master: str | None) -> bool:
    """Whether Spark runs on this machine alone, as far as its master tells."""
    return (
        master is None or master.startswith("local") or "//127.0.0.1:" in master or "//localhost:" in master
    )
