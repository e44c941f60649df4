"""`evaluate_models`: one model or several on the same rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ctr.errors import CtrError
from ctr.features import BadRows, ExampleSource, FeatureSpec, inputs_for, is_dataset, open_source
from ctr.features.inputs import InputFile, StandardInput
from ctr.metrics import Metrics, MetricSummary
from ctr.model import (
    SEEN,
    Difference,
    Model,
    Slices,
    compare,
    input_digests,
    naming,
    seen_rows,
)
from ctr.outputs import printable
from ctr.settings import EvaluateJob

_PERFECT = 0.999  # AUC
_SUSPECT = 0.95  # above it, fields are checked one by one
_ENOUGH = 20  # rows of each label: fewer may be ranked perfectly by chance
_ROWS = 20_000  # in which fields are checked: about 0.2 s for ten of them


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What rows say of a model."""

    model: Model
    metrics: Metrics
    slices: Mapping[str, Slices]
    """By column of `by`: the metrics of the values that stand there."""
    against_first: Difference | None
    """How its log loss differs from that of the first model; None of the first itself."""
    bad_rows: BadRows
    """That were skipped."""
    warnings: Sequence[str]
    """Why it may be worse than its metrics say."""
    inputs: Sequence[str]
    """Where the rows are, for people."""

    @property
    def summary(self) -> MetricSummary:
        """The metrics as numbers."""
        return self.metrics.summary()

    def to_json(self) -> dict[str, Any]:
        """As `ctr evaluate --json` has it."""
        facts = {
            "model": self.model.id,
            **self.summary.to_json(),
            "curves": self.metrics.curves().to_json(),
            "slices": {column: slices.to_json() for column, slices in self.slices.items()},
            "bad_rows": self.bad_rows.count,
        }
        if self.against_first is not None:
            facts["against_first"] = self.against_first.to_json()
        return facts


def evaluate_models(
    models: Sequence[Model],
    job: EvaluateJob,
    on_source: Callable[[ExampleSource], None] = lambda _: None,
    on_rows: Callable[[int, float], None] = lambda rows, fraction: None,
) -> list[Evaluation]:
    """Evaluate each model on the rows of the job that are good for all of them.

    `on_source` is called with the rows before they are read, `on_rows` with how many and what part is read.
    Raises DataError, and the errors of sources, which name the model if there are others.
    """
    sources = _sources(models, job)
    first = sources[0]
    on_source(first)
    digests = [digest for source in sources for digest in input_digests(source.inputs)]
    compared = compare(
        models,
        sources,
        by=job.by,
        weighted=not job.unweighted,
        on_rows=lambda rows: on_rows(rows, first.fraction_read),
    )
    inputs = [printable(each) for each in job.inputs]
    data = ", ".join(inputs)
    evaluations = []
    for model, source, each in zip(models, sources, compared, strict=True):
        warnings = too_good(each.metrics.summary(), model.spec, source.inputs, data)
        if (how := seen_rows(model.manifest, digests)) is not None:
            warnings.insert(0, SEEN.format(how, data))
        against = None if source is first else each.against_first.difference()
        evaluations.append(
            Evaluation(model, each.metrics, each.slices, against, source.bad_rows, warnings, inputs)
        )
    return evaluations


def _sources(models: Sequence[Model], job: EvaluateJob) -> list[ExampleSource]:
    """The rows as each model wants them. The first source keeps the bad ones, and has the columns `by`.

    Raw files are opened once for all models; those of a data set are known by what it says of them.
    """
    sources: list[ExampleSource] = []
    policy = job.bad_row_policy
    raw = not any(map(is_dataset, job.inputs))
    for model in models:
        first = not sources
        with naming(model, others=len(models) > 1):
            spec = model.spec.model_copy(update={"weight": None}) if job.unweighted else model.spec
            source = open_source(
                sources[0].inputs if raw and not first else inputs_for(job.inputs, spec),
                spec,
                on_bad_rows=policy if first else replace(policy, quarantine=None),
                also=job.by if first else (),
                windows=model.windows_after(),
            )
        sources.append(source)
    return sources


def too_good(
    summary: MetricSummary, spec: FeatureSpec, inputs: Sequence[str | Path | InputFile], rows: str
) -> list[str]:
    """Warnings if the AUC on `rows`, such as "the hold-out", suggests that a field knows the label.

    Above 0.95, they name the fields that predict the label by themselves in the first rows of `inputs`, if
    these are raw. From 0.999 on there is a warning in any case.
    """
    if min(summary.positives, summary.examples - summary.positives) < _ENOUGH or not summary.auc > _SUSPECT:
        return []
    warnings = [
        f"field {name!r} alone predicts the label (AUC {auc:.3f}): is it written only after the click?"
        for name, auc in _fields_that_predict(spec, inputs).items()
    ]
    if not warnings and summary.auc >= _PERFECT:
        warnings = [
            f"an AUC of {summary.auc:.5f} on {rows} is too good to be true: is a field written only after the"
            " click, or are these rows among those of training?"
        ]
    return [f"{text} `ctr features check` looks at each field of raw rows" for text in warnings]


def _fields_that_predict(spec: FeatureSpec, inputs: Sequence[str | Path | InputFile]) -> dict[str, float]:
    from ctr.features.inspect import telling_fields

    files = [each for each in inputs if not isinstance(each, str | Path | StandardInput)]
    if not files or len(files) < len(inputs):
        return {}
    try:
        return telling_fields(spec, files, _ROWS)
    except CtrError:  # the job has succeeded: no reason to fail now
        return {}
