"""`TrainSetup`: everything that is decided before training begins."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from ctr.errors import ModelError, SettingError, SpecError, named
from ctr.features import (
    Batch,
    DatasetSource,
    ExampleSource,
    FeatureSpec,
    Slots,
    is_dataset,
    load_spec,
    open_source,
)
from ctr.features.spec import learnt_from, learnt_of
from ctr.features.windows import Windows, load_windows
from ctr.jobs.training.holdout import Holdout, open_holdout
from ctr.jobs.warm_up import compile_hashing_beside, compile_training_beside
from ctr.learn import (
    Sampling,
    TrainResult,
    TrainSettings,
    base_rate,
    converted,
    default_chunk,
    first_rows,
    require_convergence,
    starting_state,
    weights_of,
)
from ctr.model import (
    DIGESTS,
    Examples,
    LinearModel,
    Model,
    SavedState,
    draw_examples,
    input_digests,
    load_optimizer,
    load_state,
)
from ctr.optimizers import NOTHING, Float32, Optimizer, Passes, choose_optimizer
from ctr.outputs import printable
from ctr.settings import TrainJob

_LEARNING = [each.name for each in fields(TrainSettings)]
_LARGE_CHUNK = 1 << 18  # the largest default; rows are counted, which takes time, only above it


@dataclass(frozen=True, slots=True)
class TrainSetup:
    """A job with its inputs open and its settings chosen."""

    job: TrainJob
    source: ExampleSource
    optimizer: Optimizer
    former: SavedState | None
    """The model that training continues from."""
    holdout: Holdout | None
    first: Batch
    """The rows on which estimates are based."""
    base_rate: float | None
    """The initial click rate of the bias; None without a bias, and if the job continues from a state."""
    settings: TrainSettings
    digests: Sequence[str]
    """See `ctr.model.input_digests`."""
    dictionary: bytes | None
    """The content of the data set's dictionary of features, for the model."""
    examples: Examples | None
    """Rows to store with the model."""
    before: Passes
    """The passes of the state that the job begins with; of a resumed job, that it once began with."""
    lineage: Sequence[Mapping[str, Any]]
    """Of that state's model, see `ctr.model.folder.lineage`; empty if there is none."""
    origin: Mapping[str, Any]
    """Where that state came from, for the manifest: `base_rate`, `warm_start`, `forget`."""

    @property
    def chunks_before(self) -> int:
        """How many chunks the model that training continues from was trained on."""
        return 0 if self.former is None else self.former.chunks

    @property
    def stop_row(self) -> int | None:
        """The row of the inputs before which training ends; None: their end."""
        return None if self.holdout is None else self.holdout.training_stops

    @property
    def spool(self) -> Path | None:
        """The folder in which the model is gathered from a store in Redis, see `read_out`."""
        return self.job.model.parent if self.job.saved and not self.job.in_memory else None

    @property
    def sampling(self) -> Sampling:
        """Which rows are trained on."""
        return self.settings.sampling(self.source.spec.seed)

    def initial_state(self) -> tuple[Slots, Float32] | None:
        """The slots with a nonzero initial state, and that state; None if there are none."""
        if self.former is not None:
            before = self.former.optimizer.in_pass(self.former.passes)
            now, share = self.optimizer.in_pass(self.former.passes), self.job.forget

            def convert(state: Float32) -> Float32:
                adopted = now.adopt(state, before)
                return now.forget(adopted, share) if share else adopted

            return self.former.slots, converted(self.former.state, convert, self.spool)
        if self.base_rate is None:
            return None
        odds = self.base_rate / (1 - self.base_rate) * self.settings.pos_weight
        rate = self.base_rate if self.settings.pos_weight == 1 else odds / (1 + odds)
        return starting_state(self.optimizer, rate, self.source.spec.bits)

    def linear(self, state: tuple[Slots, Float32], passes: float) -> LinearModel:
        """The weights of a state after this many passes, see `Passes`."""
        return LinearModel(*weights_of(state, self.optimizer.in_pass(passes), self.spool))

    def model(self, state: tuple[Slots, Float32], result: TrainResult, bad_rows: int = 0) -> Model:
        """The trained model.

        Raises ModelError if training diverged, or saw only one class. One class is allowed after a warm
        start, whose model knows both, and after an interruption.
        """
        if self.former is None and not result.interrupted:
            progressive = result.progressive.summary()
            require_classes(self.source.spec, progressive.examples, progressive.positives)
        require_convergence(result.progressive, pos_weight=self.settings.pos_weight)
        linear, facts = self.linear(state, result.passes), self._facts(result, bad_rows)
        require_finite(linear)
        return Model.of(
            self.source.spec, linear, facts, self.dictionary, self.source.windows, state, self.examples
        )

    def _facts(self, result: TrainResult, bad_rows: int) -> dict[str, Any]:
        """What the manifest says about training."""
        job, settings = self.job, self.settings
        progressive = result.progressive.summary()
        return {
            "optimizer": {**self.optimizer.to_json(), "passes": result.passes},
            "training": {
                "inputs": job.named_inputs,
                DIGESTS: list(self.digests),
                "rows": result.rows,
                "examples": result.examples,
                "bad_rows": bad_rows,
                **job.manifest(chunk=settings.chunk, **self.origin),
                "chunks": result.chunks,
                "lineage": list(self.lineage),
                "interrupted": result.interrupted,
                **({} if job.search is None else {"auto": dict(job.search)}),
                "learning_curve": [list(point) for point in result.learning_curve],
                **({} if result.convergence is None else {"convergence": result.convergence.to_json()}),
            },
            "metrics": {result.measured: progressive.to_json()},
            "calibration": progressive.to_json()["calibration"],
        }


def require_evidence_to_forget(job: TrainJob) -> None:
    """Raise SettingError if evidence is to be forgotten without a warm start."""
    if job.forget and job.warm_start is None:
        raise SettingError(
            f"{named('forget')} is for what {named('warm_start')} has learnt; give both, or neither."
        )


def set_up(job: TrainJob) -> TrainSetup:
    """Open the inputs, and choose the settings that the job leaves open. Raises the errors of the parts."""
    require_evidence_to_forget(job)
    before = None if job.warm_start is None else load_optimizer(job.warm_start)
    optimizer = choose_optimizer(job.optimizer_settings, before)
    if not optimizer.online:
        job.require_batch()
    source = open_training(job)
    compile_training_beside(source.spec, optimizer)
    former = None if job.warm_start is None else load_state(job.warm_start, source.spec)
    if former is None and isinstance(source, DatasetSource):
        require_classes(source.spec, source.manifest.rows, source.manifest.positives)
    holdout = open_holdout(job, source)
    stop_row = None if holdout is None else holdout.training_stops

    def rows() -> int:
        return source.count_rows() if stop_row is None else stop_row

    first = first_rows(source, stop_row)
    rate = _base_rate(job, source.spec, first)
    settings = TrainSettings(**job.chosen(_LEARNING) | {"chunk": _chunk(job, rows)})
    dictionary = source.dictionary() if isinstance(source, DatasetSource) else None
    digests = input_digests(source.inputs)
    examples = draw_examples(source, job.examples)
    passes, lineage, origin = starting_point(job, former, rate)
    return TrainSetup(
        job,
        source,
        optimizer,
        former,
        holdout,
        first,
        rate,
        settings,
        digests,
        dictionary,
        examples,
        passes,
        lineage,
        origin,
    )


def require_finite(linear: LinearModel) -> None:
    """Raise ModelError if training diverged."""
    if not np.isfinite(linear.weights.sum(dtype=np.float64)):
        raise ModelError("training diverged: a weight is not a number. Lower alpha, or scale large values.")


def require_classes(spec: FeatureSpec, rows: int, positives: int) -> None:
    """Raise ModelError if all `rows` rows, of which `positives` are clicks, are of one class."""
    if rows and positives in (0, rows):
        which = "without a click" if positives == 0 else "clicks"
        where = f"label column {spec.label_column!r}" if spec.label_column else "the labels"
        raise ModelError(
            f"{where}: all {rows:,} rows to train on are {which}, and a model takes rows of both classes to "
            "tell them apart. Check the spec's label, the order of the rows, and the hold-out."
        )


def open_training(job: TrainJob) -> ExampleSource:
    """The rows to train on, including a hold-out at their end. Raises DataError and SpecError."""
    spec = wanted_spec(job)
    if spec is not None:
        compile_hashing_beside(spec, with_fields=False)
    source = open_source(
        job.inputs,
        spec,
        on_bad_rows=job.bad_row_policy,
        threads=job.reading_threads,
        learns=True,
        held_out=job.holdout_fraction or 0.0,
        choice=job.rows(held_out=False),
        windows=_windows_of_warm_start(job, spec),
    )
    if not isinstance(source, DatasetSource) and source.reads_served and job.warm_start is not None:
        source.windows = load_windows(source.spec, job.warm_start)
    if job.scale and job.spec is None and isinstance(source, DatasetSource):
        return open_source(job.inputs, source.spec.with_scales(job.scale))
    return source


def _windows_of_warm_start(job: TrainJob, spec: FeatureSpec | None) -> Windows | None:
    """The state of the warm start's windows, from which raw rows continue, in the only pass that this allows.

    None without a warm start, if rows are read more than once, and for a data set, whose windows are already
    applied. Raises DataError if the model has other windows.
    """
    if spec is None or not spec.windows or job.warm_start is None:
        return None
    once = job.in_memory and job.epochs == 1 and not (job.holdout_fraction or job.holdout_where)
    return load_windows(spec, job.warm_start) if once else None


def wanted_spec(job: TrainJob) -> FeatureSpec | None:
    """The spec that the job asks for; None: that of its data set, or there is none.

    For raw rows without a spec, that of the warm start. If the job gives a spec, the warm start gives what
    was learnt for it, and scales unless the job has some.
    """
    spec = load_spec(job.spec) if isinstance(job.spec, str | Path) else job.spec
    if spec is None:
        if job.warm_start is None or any(map(is_dataset, job.inputs)):
            return None
        return load_spec(job.warm_start).with_scales(job.scale)
    spec = spec.with_scales(job.scale)
    if job.warm_start is None:
        return spec
    try:
        of_model = load_spec(job.warm_start)
    except SpecError:
        return spec  # `load_state` says what is wrong with the model
    if not spec.scales and of_model.scales.keys() <= set(spec.names):
        spec = spec.with_scales(of_model.scales)
    return of_model if learnt_of(spec) is None and learnt_from(spec, of_model) else spec


def _base_rate(job: TrainJob, spec: FeatureSpec, first: Batch) -> float | None:
    if not spec.bias:
        if job.base_rate is not None:
            raise ModelError(
                f"{named('base_rate')} needs a bias: remove `bias: false` from the spec, or leave it out."
            )
        return None
    if job.warm_start is not None or job.resume:
        return None
    if job.base_rate is not None:
        return job.base_rate
    return base_rate(first)


def starting_point(
    job: TrainJob, former: SavedState | None, rate: float | None
) -> tuple[Passes, Sequence[Mapping[str, Any]], Mapping[str, Any]]:
    """Passes, lineage and origin of the state that the job begins with, or once began with if resumed."""
    warm_start = None if job.warm_start is None else printable(job.warm_start)
    origin = {"base_rate": rate, "warm_start": warm_start, "forget": job.forget}
    if job.resume and job.checkpoint is not None:
        from ctr.checkpoint import read_job

        saved = read_job(job.checkpoint)
        if saved["passes_before"] > 0 and not saved.get("lineage"):
            raise ModelError(
                f"{job.checkpoint}: this checkpoint of a warm start is of an earlier version of ctr, which "
                f"counted passes in another way; start again with {named('warm_start')}."
            )
        passes = Passes(saved["passes_before"], saved.get("rows_before", 0))
        return passes, saved.get("lineage", ()), saved.get("origin") or origin
    if former is not None:
        return Passes(former.passes, former.rows), former.lineage, origin
    return NOTHING, (), origin


def _chunk(job: TrainJob, rows: Callable[[], int]) -> int:
    chunk = job.chunk
    if chunk is None and job.resume and job.checkpoint is not None:
        from ctr.checkpoint import read_job

        chunk = int(read_job(job.checkpoint)["chunk"])  # chosen for the number of workers at that time
    if chunk is None:
        chunk = default_chunk(job.workers, rows, in_memory=job.in_memory)
    if chunk > _LARGE_CHUNK:
        chunk = min(chunk, max(rows(), 1))  # memory is reserved only for rows that exist
    return chunk
