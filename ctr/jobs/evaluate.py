"""`evaluate_models`: evaluates one or several models on the same rows."""

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
    """The evaluation of a model."""

    model: Model
    metrics: Metrics
    slices: Mapping[str, Slices]
    """For each column of `by`: the metrics by value."""
    against_first: Difference | None
    """The difference to the log loss of the first model; None for the first model."""
    bad_rows: BadRows
    """The skipped rows."""
    warnings: Sequence[str]
    """Reasons why the model may be worse than its metrics."""
    inputs: Sequence[str]
    """Printable names of the inputs."""

    @property
    def summary(self) -> MetricSummary:
        """The metrics as numbers."""
        return self.metrics.summary()

    def to_json(self) -> dict[str, Any]:
        """The summary of `ctr evaluate --json`."""
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
    """Evaluate each model on the rows of the job that are valid for all of them.

    `on_source` is called with the source before reading, `on_rows` with the number and share of rows read.
    Raises DataError, and the errors of sources, which name the model if there are several.
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
        if (use := seen_rows(model.manifest, digests)) is not None:
            warnings.insert(0, SEEN.format(use, data))
        against = None if source is first else each.against_first.difference()
        evaluations.append(
            Evaluation(model, each.metrics, each.slices, against, source.bad_rows, warnings, inputs)
        )
    return evaluations


def _sources(models: Sequence[Model], job: EvaluateJob) -> list[ExampleSource]:
    """A source for each model. The first one handles bad rows, and has the columns `by`.

    Raw files are opened once for all models; a data set names its raw files.
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
    """Warnings if the AUC on `rows`, such as "the hold-out", suggests that a field contains the label.

    Above 0.95, they name fields that predict the label alone in the first rows of raw `inputs`. From 0.999
    on, there is always a warning.
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
    except CtrError:  # the job has succeeded, and must not fail now
        return {}
