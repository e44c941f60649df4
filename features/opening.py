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

    `inputs`: raw files are paths, folders, patterns, URIs, or `-` for standard input: see `input_files`. If
    they are the `inputs` of another source, they must not have changed since it was opened. A data set must
    have been hashed with `spec`, if that is given, or with the same spec without scales. `also`: columns to
    read in addition to those of the spec, from raw files or those that a data set was built from: see
    `batches_with_texts`.

    The following are for raw files. `learns`: a spec whose steps still have to learn does so from these
    files, except the last `held_out` (a share) of their rows; without `learns`, such a spec is an error.
    `choice`: read only these rows. `windows`: the state of the spec's windows before the first row.
    `on_bad_rows`, `threads`, `with_fields`: see `RawSource`.

    The format of a file is that of its first bytes if they show one, else that of its suffix (before any .gz,
    .zst, .bz2, .lz4 or .xz), else `spec.source.format`. Raises DataError or SpecError.
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
    from ctr.features.raw import RawSource, fit  # loads the kernels that parse text

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
    """See `open_source`: the examples of a hashed data set."""
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
    """What to open with `spec`: the inputs, or the raw rows of a data set that was hashed with another spec.

    For a spec with windows, always the inputs, as windows also need the rows before. Raises DataError if the
    raw rows are unknown, gone or changed.
    """
    if len(inputs) != 1 or not is_dataset(inputs[0]) or spec.windows:
        return inputs
    dataset = DatasetSource(inputs[0], labels="ignored")
    if learnt_from(spec, dataset.spec) or (dataset.has_fields and _differs_by_scales(spec, dataset.spec)):
        return inputs
    transforms = dataset.spec.fingerprint[:12], spec.fingerprint[:12]
    return dataset.raw_rows("hashed with the transform {}, but here {} is wanted".format(*transforms))


def _differs_by_scales(spec: FeatureSpec, hashed: FeatureSpec) -> bool:
    """Whether the specs differ only in scales, and only `spec` has any."""
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
