"""`fit`: the first pass over raw data, in which a spec's steps learn what they need."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np

from features.inputs import StandardInput, input_files
from features.readers import blocks_of, open_reader
from features.spec import FeatureSpec, FittedSpec, NumberField, column_of, learnt_of
from features.transform import STEPS, Column


def fit(spec: FeatureSpec, inputs: Sequence[str | Path]) -> FeatureSpec:
    """`spec` with what its steps learn from all rows of these inputs; `spec` itself if they learn nothing.

    Labels and weights are not looked at. Rows that cannot be split into cells are left out; a value that is
    none for one step counts for the others. Raises DataError, and SpecError when the spec does not fit a
    file's format.
    """
    if learnt_of(spec) is not None:
        return spec
    wanted = {f.name: (f, begin(f)) for f in spec.all_fields if f.learns and (begin := STEPS[f.step].fit)}
    names = list(dict.fromkeys(column_of(field) for field, _ in wanted.values()))
    for file in input_files(inputs):
        if isinstance(file, StandardInput):
            raise file.once()
        with closing(open_reader(file, spec, "ignored")) as reader:
            for block in blocks_of(reader, names):
                columns = {
                    name: Column.of(block.cells, block.status, i, slice(None)) for i, name in enumerate(names)
                }
                for field, learning in wanted.values():
                    column = columns[column_of(field)]
                    learning.add(column)
                    if field.constant is not None and isinstance(field, NumberField):
                        learning.add(Column.repeated(field.constant, _missing_numbers(column)))
    learnt = {
        f"{name}/{array}": found
        for name, (_, learning) in wanted.items()
        for array, found in learning.learnt().items()
    }
    return FittedSpec.of(spec, learnt)


def _missing_numbers(column: Column) -> int:
    numbers = column.numbers
    return int(np.count_nonzero((column.status == 0) & (numbers.problem == 0) & ~numbers.present))
