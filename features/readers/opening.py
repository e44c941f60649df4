"""`open_reader`: the reader of a file, by what it begins with, its name, and its spec."""

from __future__ import annotations

from pathlib import Path

from ctr.errors import DataError, SpecError
from features.readers.block import Reader
from features.readers.delimited import DelimitedReader, Labels
from features.readers.libsvm import LibsvmReader
from features.readers.parquet import ParquetReader
from features.spec import FeatureSpec
from features.text import COMPRESSED, is_parquet

_FORMATS = {".parquet": "parquet", ".pq": "parquet", ".libsvm": "libsvm", ".svm": "libsvm"}


def open_reader(path: Path, spec: FeatureSpec, labels: Labels) -> Reader:
    """Open a raw file to be read through `spec`; `labels` says what its label column is for.

    Raises DataError for what is no file and for one that cannot be read, SpecError for a format that does not
    go with the spec.
    """
    if not path.is_file():
        problem = "not a regular file" if path.exists() else "there is no such file"
        raise DataError(f"{path}: {problem}; check the path.")
    kind = _format_of(path, spec)
    if (kind == "libsvm") != (spec.source.format == "libsvm"):
        raise SpecError(
            f"{path}: a file of format {kind} does not go with a feature spec for"
            f" {spec.source.format}; take one such as {'libsvm' if kind == 'libsvm' else 'criteo'}."
        )
    if kind == "libsvm":
        return LibsvmReader(path, spec)
    if kind == "parquet":
        return ParquetReader(path)
    return DelimitedReader(path, spec, labels=labels)


def _format_of(path: Path, spec: FeatureSpec) -> str:
    try:
        if is_parquet(path):
            return "parquet"
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}).") from None
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in COMPRESSED:
        suffixes.pop()
    return _FORMATS.get(suffixes[-1] if suffixes else "", spec.source.format)
