"""`open_source`: the one module that knows raw files and hashed data sets, and opens either."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ctr.errors import DataError, SpecError
from features.dataset import DatasetSource
from features.spec import FeatureSpec

if TYPE_CHECKING:
    from features.readers import Labels
    from features.source import OnBadRows, RawSource


def open_source(
    inputs: Sequence[str | Path],
    spec: FeatureSpec | None,
    *,
    on_bad_rows: OnBadRows = "fail",
    quarantine: Path | None = None,
    max_bad_fraction: float | None = None,
    labels: Labels = "required",
    verify: bool = False,
    threads: int = 1,
) -> RawSource | DatasetSource:
    """The examples of raw files, or of one hashed data set (a folder), which carries its own spec.

    A data set must have been hashed with `spec`, if that is given. What there is about bad rows and threads
    is for raw files (see `RawSource`), `verify` for a data set (see `DatasetSource`). A file that begins as
    Parquet does is read as that; else one whose name ends in .parquet, .pq, .libsvm or .svm (and behind that
    perhaps .gz, .zst, .bz2, .lz4 or .xz) is of that format, any other of `spec.source.format`. Raises
    DataError or SpecError.
    """
    folders = [path for path in inputs if Path(path).is_dir()]
    if folders and len(inputs) > 1:
        raise DataError(
            f"{folders[0]}: a folder, which is a hashed data set, must be the only input; give raw files, or"
            f" one folder."
        )
    if folders:
        dataset = DatasetSource(
            folders[0], labels="required" if labels == "required" else "ignored", verify=verify
        )
        if spec is not None and spec.fingerprint != dataset.spec.fingerprint:
            raise DataError(
                f"{folders[0]}: hashed with the transform {dataset.spec.fingerprint[:12]}, but here"
                f" {spec.fingerprint[:12]} is wanted; build it with that spec (a model's: features.yaml)."
            )
        return dataset
    if spec is None:
        raise SpecError("Raw files need a feature spec: name one with --spec, such as `--spec criteo`.")
    from features.source import RawSource  # and with it the kernels that take text apart

    return RawSource(
        spec,
        inputs,
        on_bad_rows=on_bad_rows,
        quarantine=quarantine,
        max_bad_fraction=max_bad_fraction,
        labels=labels,
        threads=threads,
    )
