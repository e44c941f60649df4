"""The formats of raw files, and `open_reader`: a file's reader by its first bytes, its name and the spec."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from ctr.errors import SpecError
from ctr.features.inputs import FileRows, InputFile, partition_columns, suffixes
from ctr.features.spec import FEATURES, FORMATS, LABEL, WEIGHT, FeatureSpec, Format, IndexField, NamedField
from ctr.features.text import ARROW_FILE, ARROW_STREAM, COMPRESSED, PARQUET

if TYPE_CHECKING:
    from ctr.features.block import Reader
    from ctr.features.lines import Labels
    from ctr.features.readers.condition import RowChoice

# Readers are loaded with the first file of their format: a spec needs to know no more than what is below.


def _open_delimited(path: InputFile, spec: FeatureSpec, labels: Labels) -> Reader:
    from ctr.features.lines import DelimitedReader

    return DelimitedReader(path, spec, labels=labels)


def _open_parquet(path: InputFile, spec: FeatureSpec, labels: Labels) -> Reader:
    from ctr.features.tables import ParquetReader

    return ParquetReader(path, spec)


def _open_arrow(path: InputFile, spec: FeatureSpec, labels: Labels) -> Reader:
    from ctr.features.tables import ArrowReader

    return ArrowReader(path, spec)


def _open_json_lines(path: InputFile, spec: FeatureSpec, labels: Labels) -> Reader:
    from ctr.features.lines import JsonLinesReader

    return JsonLinesReader(path, spec)


def _open_vw(path: InputFile, spec: FeatureSpec, labels: Labels) -> Reader:
    from ctr.features.lines import VwReader

    return VwReader(path)


def _open_libsvm(path: InputFile, spec: FeatureSpec, labels: Labels) -> Reader:
    from ctr.features.lines import LibsvmReader

    return LibsvmReader(path)


for _format in (
    Format(
        "delimited",
        _open_delimited,
        keys=("delimiter", "header", "quote", "columns", "ignore"),
    ),
    Format(
        "parquet",
        _open_parquet,
        suffixes=(".parquet", ".pq"),
        begins=(PARQUET,),
    ),
    Format(
        "arrow",
        _open_arrow,
        suffixes=(".arrow", ".arrows", ".ipc", ".feather"),
        begins=(ARROW_FILE, ARROW_STREAM),
    ),
    Format(
        "jsonl",
        _open_json_lines,
        suffixes=(".jsonl", ".ndjson", ".json"),
    ),
    Format(
        "libsvm",
        _open_libsvm,
        suffixes=(".libsvm", ".svm"),
        keys=(),
        label=LABEL,
        fields=(IndexField(name="index", column=FEATURES),),
    ),
    Format(
        "vw",
        _open_vw,
        suffixes=(".vw",),
        keys=(),
        label=LABEL,
        weight=WEIGHT,
        fields=(NamedField(name="named", column=FEATURES),),
    ),
):
    FORMATS[_format.name] = _format


def open_reader(
    path: InputFile, spec: FeatureSpec, labels: Labels, choice: RowChoice | None = None
) -> Reader:
    """Open a raw file to be read through `spec`; `labels` says what its label column is for.

    Of `FileRows`, it gives the chosen rows alone. Rows that are not the `choice` have the status
    `RowStatus.ELSEWHERE`.

    Raises DataError for what is no file and for one that cannot be read, SpecError for a format that does not
    go with the spec, and for a `choice` that compares a time with what is none.
    """
    wanted = FORMATS[spec.source.format]
    found = format_of(path) or wanted
    if wanted.fields != found.fields:
        raise SpecError(
            f"{path}: a file of format {found.name} does not go with a feature spec for"
            f" {wanted.name}; take one such as {found.name if found.fields else 'criteo'}."
        )
    if choice is not None:
        choice = choice.with_times(spec)
    reader: Reader = found.open(path, spec, labels)
    values = partition_columns(path)
    if values:
        from ctr.features.readers.wrapped import PartitionedReader

        reader = PartitionedReader(reader, values)
    if isinstance(path, FileRows):
        from ctr.features.readers.wrapped import SomeRowsReader

        reader = SomeRowsReader(path, reader)
    if choice is not None:
        from ctr.features.readers.condition import ChosenReader

        reader = ChosenReader(path, reader, choice)
    return reader


def format_of(path: InputFile) -> Format | None:
    """The format that a file has by its first bytes or its name; None: delimited text, or a spec tells."""
    with closing(path.open()) as file:
        head = file.read(max(len(begin) for known in FORMATS.values() for begin in known.begins))
    ends = suffixes(path)
    if ends and ends[-1] in COMPRESSED:
        ends.pop()
    for known in FORMATS.values():
        if head.startswith(known.begins):
            return known
    for known in FORMATS.values():
        if ends and ends[-1] in known.suffixes:
            return known
    return None
