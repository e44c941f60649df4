"""`fit`: the first pass over raw data, in which a spec's steps learn what they need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np

from features.inputs import StandardInput, input_files
from features.readers import blocks_of, open_reader
from features.spec import FeatureSpec, FittedSpec, InputField, NumberField, column_of, learnt_of
from features.transform import STEPS, Arrays, Column, Fit


def fit(spec: FeatureSpec, inputs: Sequence[str | Path]) -> FeatureSpec:
    """`spec` with what its steps learn from all rows of these inputs; `spec` itself if they learn nothing.

    Labels and weights are not looked at. Rows that cannot be split into cells are left out; a value that is
    none for one step counts for the others. Raises DataError, and SpecError when the spec does not fit a
    file's format, or a vocabulary cannot be read.
    """
    if learnt_of(spec) is not None:
        return spec
    known: dict[str, Arrays] = {}
    passes: list[tuple[InputField, Fit]] = []
    for field in spec.all_fields:
        if field.learns and (begin := STEPS[field.step].fit) is not None:
            begun = begin(field)
            if isinstance(begun, Mapping):
                known[field.name] = begun
            else:
                passes.append((field, begun))
    if passes:
        _read(spec, inputs, passes)
    known |= {field.name: begun.learnt() for field, begun in passes}
    learnt = {f"{name}/{array}": found for name, arrays in known.items() for array, found in arrays.items()}
    return FittedSpec.of(spec, learnt)


def _read(spec: FeatureSpec, inputs: Sequence[str | Path], passes: Sequence[tuple[InputField, Fit]]) -> None:
    """Has the fields learn from all rows."""
    names = list(dict.fromkeys(column_of(field) for field, _ in passes))
    for file in input_files(inputs):
        if isinstance(file, StandardInput):
            raise file.once()
        with closing(open_reader(file, spec, "ignored")) as reader:
            for block in blocks_of(reader, names):
                columns = {
                    name: Column.of(block.cells, block.status, i, slice(None)) for i, name in enumerate(names)
                }
                for field, learning in passes:
                    column = columns[column_of(field)]
                    learning.add(column)
                    if field.constant is not None and isinstance(field, NumberField):
                        learning.add(Column.repeated(field.constant, _missing_numbers(column)))


def _missing_numbers(column: Column) -> int:
    numbers = column.numbers
    return int(np.count_nonzero((column.status == 0) & (numbers.problem == 0) & ~numbers.present))
