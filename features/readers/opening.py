"""The formats of raw files, and `open_reader`: a file's reader by its first bytes, its name and the spec."""

from __future__ import annotations

from pathlib import Path

from ctr.errors import DataError, SpecError
from features.readers.block import Reader
from features.readers.delimited import DelimitedReader, Labels
from features.readers.libsvm import FEATURES, LABEL, LibsvmReader
from features.readers.parquet import ParquetReader
from features.spec import FORMATS, FeatureSpec, Format, IndexField
from features.text import COMPRESSED, PARQUET

for _format in (
    Format(
        "delimited",
        lambda path, spec, labels: DelimitedReader(path, spec, labels=labels),
        keys=("delimiter", "header", "quote", "columns", "ignore"),
    ),
    Format(
        "parquet",
        lambda path, spec, labels: ParquetReader(path),
        suffixes=(".parquet", ".pq"),
        begins=PARQUET,
    ),
    Format(
        "libsvm",
        lambda path, spec, labels: LibsvmReader(path),
        suffixes=(".libsvm", ".svm"),
        keys=(),
        label=LABEL,
        fields=(IndexField(name="index", column=FEATURES),),
    ),
):
    FORMATS[_format.name] = _format


def open_reader(path: Path, spec: FeatureSpec, labels: Labels) -> Reader:
    """Open a raw file to be read through `spec`; `labels` says what its label column is for.

    Raises DataError for what is no file and for one that cannot be read, SpecError for a format that does not
    go with the spec.
    """
    if not path.is_file():
        problem = "not a regular file" if path.exists() else "there is no such file"
        raise DataError(f"{path}: {problem}; check the path.")
    wanted, found = FORMATS[spec.source.format], _format_of(path, spec)
    if wanted.fields != found.fields:
        raise SpecError(
            f"{path}: a file of format {found.name} does not go with a feature spec for"
            f" {wanted.name}; take one such as {found.name if found.fields else 'criteo'}."
        )
    reader: Reader = found.open(path, spec, labels)
    return reader


def _format_of(path: Path, spec: FeatureSpec) -> Format:
    try:
        with path.open("rb") as file:
            head = file.read(max(len(known.begins) for known in FORMATS.values()))
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}).") from None
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in COMPRESSED:
        suffixes.pop()
    for known in FORMATS.values():
        if known.begins and head.startswith(known.begins):
            return known
    for known in FORMATS.values():
        if suffixes and suffixes[-1] in known.suffixes:
            return known
    return FORMATS[spec.source.format]
