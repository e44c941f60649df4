"""`open_source`: the one module that knows raw files and hashed data sets, and opens either."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ctr.errors import DataError, SpecError, named
from ctr.features.dataset import DatasetSource, is_dataset
from ctr.features.inputs import InputFile, input_files
from ctr.features.readers import FAIL, BadRowPolicy
from ctr.features.spec import FeatureSpec, learnt_from, learnt_of

if TYPE_CHECKING:
    from ctr.features.lines import Labels
    from ctr.features.raw import RawSource
    from ctr.features.readers import RowChoice
    from ctr.features.windows import Windows


def open_source(
    inputs: Sequence[str | Path | InputFile],
    spec: FeatureSpec | None,
    *,
    on_bad_rows: BadRowPolicy = FAIL,
    labels: Labels = "required",
    threads: int = 1,
    choice: RowChoice | None = None,
    learns: bool = False,
    held_out: float = 0.0,
    also: Sequence[str] = (),
    windows: Windows | None = None,
    with_fields: bool = False,
) -> RawSource | DatasetSource:
    """The examples of raw files, or of one hashed data set (a folder), which carries its own spec.

    Raw files are paths, folders, patterns, URIs, or `-` for standard input: see `input_files`. Those of
    another source (its `inputs`) must still be what they were when that was opened. A data set must have been
    hashed with `spec`, if that is given, or with the same spec without scales. What there is about bad rows
    and threads is for raw files (see `RawSource`). `learns`: a spec whose steps have yet to learn from data
    does so from these files, but for the share `held_out` of their rows, at the end; if not, that is an
    error. `choice`: of raw files, only these rows. `also`: columns of raw files, or of those that a data set
    was built from, that are read beside those of the spec: see `batches_with_texts`. `windows`: of raw files,
    what those of the spec know before the first row, and `with_fields`: see `RawSource`. A file's format is
    told by its first bytes if they do, else by its name's suffix (behind which there may be .gz, .zst, .bz2,
    .lz4 or .xz), else it is `spec.source.format`. Raises DataError or SpecError.
    """
    datasets = [path for path in inputs if is_dataset(path)]
    if datasets and len(inputs) > 1:
        raise DataError(
            f"{datasets[0]}: a hashed data set must be the only input; give raw files, or one data set."
        )
    if datasets and choice is not None:
        raise DataError(
            f"{datasets[0]}: a hashed data set has no columns for the condition"
            f" {choice.text!r}; give the raw files, or build it with `ctr features build"
            " --holdout-where CONDITION --holdout-out DIR`."
        )
    path = inputs[0] if inputs else None
    if isinstance(path, str | Path) and (datasets or (spec is None and Path(path).is_dir())):
        return _open_dataset(path, spec, "required" if labels == "required" else "ignored", also)
    if spec is None:
        file = shlex.quote(str(inputs[0])) if inputs else "FILE"
        raise SpecError(
            f"Raw files need a feature spec: name one, such as `{named('spec', 'criteo')}`, or draft one: "
            f"`ctr features init {file} --out spec.yaml`."
        )
    from ctr.features.raw import RawSource, fit  # and with it the kernels that take text apart

    files = input_files(inputs)
    return RawSource(
        fit(spec, files, choice, held_out) if learns else spec,
        files,
        on_bad_rows=on_bad_rows,
        labels=labels,
        threads=threads,
        choice=choice,
        also=also,
        windows=windows,
        with_fields=with_fields,
    )


def _open_dataset(
    path: str | Path,
    spec: FeatureSpec | None,
    labels: Literal["required", "ignored"],
    also: Sequence[str],
) -> DatasetSource:
    """As `open_source`, of a hashed data set."""
    dataset = DatasetSource(path, labels=labels)
    if spec is not None and _differs_by_scales(spec, dataset.spec):
        dataset = DatasetSource(path, labels=labels, scales=spec.scales)
    elif spec is not None and not learnt_from(spec, dataset.spec):
        raise DataError(
            f"{path}: hashed with the transform {dataset.spec.fingerprint[:12]}, but here"
            f" {spec.fingerprint[:12]} is wanted; build it with that spec (a model's: features.yaml)."
        )
    if spec is not None and learnt_of(spec) is None:
        _require_same_vocabularies(path, spec, dataset.spec)
    if also:
        from ctr.features.raw import require_columns_beside

        require_columns_beside(dataset, also)
    return dataset


def inputs_for(inputs: Sequence[str | Path], spec: FeatureSpec) -> Sequence[str | Path | InputFile]:
    """What to open through `spec`: the inputs, or the raw rows of a data set that was hashed with another.

    Not so for a spec with windows: these need the rows before, too. Raises DataError where the raw rows are
    not known, gone or changed.
    """
    if len(inputs) != 1 or not is_dataset(inputs[0]) or spec.windows:
        return inputs
    dataset = DatasetSource(inputs[0], labels="ignored")
    if learnt_from(spec, dataset.spec) or (dataset.has_fields and _differs_by_scales(spec, dataset.spec)):
        return inputs
    transforms = dataset.spec.fingerprint[:12], spec.fingerprint[:12]
    return dataset.raw_rows("hashed with the transform {}, but here {} is wanted".format(*transforms))


def _differs_by_scales(spec: FeatureSpec, hashed: FeatureSpec) -> bool:
    """True if the specs differ in nothing but scales, and only `spec` has any."""
    without = spec.model_copy(update={"scales": {}})
    return bool(spec.scales and not hashed.scales) and learnt_from(without, hashed)


def _require_same_vocabularies(dataset: str | Path, spec: FeatureSpec, fitted: FeatureSpec) -> None:
    if not any(getattr(field, "vocabulary", None) is not None for field in spec.fields):
        return
    from ctr.features.raw import changed_vocabulary

    if (name := changed_vocabulary(spec, fitted)) is not None:
        raise DataError(
            f"{dataset}: hashed with another vocabulary of field {name!r} than the spec's file has now; build"
            f" it again, or leave out {named('spec')}: a data set carries its own."
        )
