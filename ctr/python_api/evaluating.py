"""`evaluate`, `compare` and `report`: the quality of models, for Python programs."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ctr.errors import CtrWarning, ModelError, SettingError, named, path_of, require_counts
from ctr.features import ExampleSource, RawSource
from ctr.jobs import Evaluation, evaluate_models
from ctr.model import TABLE, Model, inputs_of, load_model, paths_of
from ctr.outputs import printable
from ctr.pages import EvaluatedModel, require_report, write_report
from ctr.settings import EvaluateJob, taking

_OWN = ("inputs", "model")


@taking(EvaluateJob, but=_OWN)
def evaluate(model: Model | str | Path, data: object, **settings: Any) -> Evaluation:
    """Evaluate a model, or the one in a folder, on labelled rows, as `ctr evaluate` does.

    `data` as for `ctr.train`. The result has a `summary` of metrics, `slices` by the columns `by`, `bad_rows`
    and `warnings`. Raises SettingError, DataError and ModelError.

    >>> import ctr
    >>> rows, spec = ctr.datasets.ads(2_000)
    >>> evaluation = ctr.evaluate(ctr.train(rows, spec), rows, by=["site"])
    >>> evaluation.summary.examples, len(evaluation.slices["site"].by_value) > 1
    (2000, True)
    """
    return _evaluations([model], data, settings)[0]


@taking(EvaluateJob, but=_OWN)
def compare(models: Sequence[Model | str | Path], data: object, **settings: Any) -> list[Evaluation]:
    """Evaluate models on the same rows: `against_first` is the difference of each from the first one.

    Otherwise as `ctr.evaluate`. Raises ModelError if there is no model.
    """
    if not isinstance(models, list | tuple):
        raise SettingError(
            f"models: expected a list of models or their folders, got {type(models).__name__}."
        )
    if not models:
        raise ModelError("there is no model to evaluate: give one or more.")
    return _evaluations(models, data, settings)


def report(
    evaluations: Evaluation | Sequence[Evaluation],
    file: str | Path,
    data: object = None,
    *,
    rows: int | None = None,
) -> None:
    """Write the results of `ctr.evaluate` or `ctr.compare` as one HTML page, as `ctr evaluate --report` does.

    `data`: raw rows with the values that give features their texts; at most `rows` of them, from the start.
    Raises DataError if that is not possible, and ModelError without an evaluation.
    """
    require_report()
    require_counts(rows=rows)
    evaluations = [evaluations] if isinstance(evaluations, Evaluation) else evaluations
    if not (isinstance(evaluations, Sequence) and all(isinstance(each, Evaluation) for each in evaluations)):
        raise ModelError("evaluations: expected a result of ctr.evaluate, or that of ctr.compare.")
    if not evaluations:
        raise ModelError("there is no evaluation to report: give one or more.")
    models = [
        EvaluatedModel(
            printable(each.model.folder or each.model.id),
            each.to_json(),
            each.model.manifest,
            each.model.weights(data, rows),
            each.model.spec.scales,
        )
        for each in evaluations
    ]
    write_report(path_of("file", file), models, evaluations[0].inputs)


def _evaluations(
    models: Sequence[Model | str | Path], data: object, settings: Mapping[str, Any]
) -> list[Evaluation]:
    """Evaluate models on the same rows; warnings have the place that called this one's caller."""
    loaded = [_model_of(each) for each in models]
    folders = [Path(str(number)) for number in range(len(loaded))]
    is_table, texts = paths_of(data) is None, list[str]()
    if is_table and settings.get("on_bad_rows") == "quarantine":
        raise SettingError(
            f"{named('on_bad_rows', 'quarantine')} writes bad rows beside a file: for a table give "
            f"{named('on_bad_rows', 'skip')}; the result has their number, and examples."
        )

    def look(source: ExampleSource) -> None:
        if isinstance(source, RawSource) and not is_table:
            texts.extend(source.layout_warnings())

    with inputs_of(data, *(each.spec for each in loaded)) as inputs:
        values = {"inputs": inputs, "model": folders, **EvaluateJob.checked(settings)}
        evaluations = evaluate_models(loaded, EvaluateJob(**values), look)
    for text in texts:
        warnings.warn(text, CtrWarning, stacklevel=3)
    return [_of_table(each, inputs[0]) for each in evaluations] if is_table else evaluations


def _model_of(model: object) -> Model:
    if isinstance(model, Model):
        return model
    if isinstance(model, str | Path):
        return load_model(model)
    raise SettingError(
        f"model: expected a model or its folder, got {type(model).__name__}; data is the argument after it."
    )


def _of_table(evaluation: Evaluation, path: str) -> Evaluation:
    """The evaluation, whose texts name the table, and not the temporary file that it was read from."""
    return replace(
        evaluation,
        bad_rows=evaluation.bad_rows.renamed(path, TABLE),
        warnings=[text.replace(path, TABLE) for text in evaluation.warnings],
        inputs=[TABLE],
    )
