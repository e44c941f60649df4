"""The formats of raw files; `open_reader` opens a file by its first bytes, its name and the spec."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from ctr.errors import SpecError
from ctr.features import lines, tables  # lazy: a reader is loaded with the first file of its format
from ctr.features.inputs import InputFile, SplitFile
from ctr.features.readers.file_reader import FileReader
from ctr.features.spec import FEATURES, FORMATS, LABEL, WEIGHT, FeatureSpec, Format, IndexField, NamedField
from ctr.features.text import ARROW_FILE, ARROW_STREAM, COMPRESSED, PARQUET

if TYPE_CHECKING:
    from ctr.features.block import Reader
    from ctr.features.lines import Labels
    from ctr.features.readers.condition import RowChoice

for _format in (
    Format(
        "delimited",
        lambda path, spec, labels: lines.DelimitedReader(path, spec, labels=labels),
        keys=("delimiter", "header", "quote", "columns", "ignore"),
    ),
    Format(
        "parquet",
        lambda path, spec, _: tables.ParquetReader(path, spec),
        suffixes=(".parquet", ".pq"),
        begins=(PARQUET,),
    ),
    Format(
        "arrow",
        lambda path, spec, _: tables.ArrowReader(path, spec),
        suffixes=(".arrow", ".arrows", ".ipc", ".feather"),
        begins=(ARROW_FILE, ARROW_STREAM),
    ),
    Format(
        "jsonl",
        lambda path, spec, _: lines.JsonLinesReader(path, spec),
        suffixes=(".jsonl", ".ndjson", ".json"),
    ),
    Format(
        "libsvm",
        lambda path, *_: lines.LibsvmReader(path),
        suffixes=(".libsvm", ".svm"),
        keys=(),
        label=LABEL,
        fields=(IndexField(name="index", column=FEATURES),),
    ),
    Format(
        "vw",
        lambda path, *_: lines.VwReader(path),
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
    """Opens a raw file for `spec`; `labels` says what its label column is for.

    If the file has `chosen_rows`, only these are read. Rows that do not meet the `choice` have the status
    `RowStatus.ELSEWHERE`.

    Raises DataError if there is no file or it cannot be read; SpecError if the format does not suit the spec,
    or if `choice` compares a time with text that is not a time.
    """
    of_spec = FORMATS[spec.source.format]
    of_file = format_of(path) or of_spec
    if of_spec.fields != of_file.fields:
        raise SpecError(
            f"{path}: a file of format {of_file.name} does not go with a feature spec for"
            f" {of_spec.name}; take one such as {of_file.name if of_file.fields else 'criteo'}."
        )
    if choice is not None:
        choice = choice.with_times(spec)
    reader: Reader = of_file.open(path, spec, labels)
    if not path.partition_columns and path.chosen_rows is None and choice is None:
        return reader
    return FileReader(path, reader, choice)


def format_of(path: InputFile) -> Format | None:
    """The format of a file by its first bytes or its name; None: the spec's format, or delimited text."""
    whole = path.whole if isinstance(path, SplitFile) else path
    with closing(whole.open()) as file:
        head = file.read(max(len(begin) for each in FORMATS.values() for begin in each.begins))
    ends = path.suffixes
    if ends and ends[-1] in COMPRESSED:
        ends.pop()
    for each in FORMATS.values():
        if head.startswith(each.begins):
            return each
    for each in FORMATS.values():
        if ends and ends[-1] in each.suffixes:
            return each
    return None
