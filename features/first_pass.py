"""`fit` and `learn`: the first pass over raw data, in which a spec's steps learn what they need."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np

from features.block import Block, blocks_of
from features.columns import Arrays, Column
from features.inputs import InputFile, StandardInput, input_files
from features.readers import RowChoice, open_reader
from features.spec import FeatureSpec, FittedSpec, InputField, NumberField, column_of, learnt_of
from features.steps import STEPS, Fit


def fit(
    spec: FeatureSpec, inputs: Sequence[str | Path | InputFile], choice: RowChoice | None = None
) -> FeatureSpec:
    """`spec` with what its steps learn from all rows of these inputs, or those of a choice; see `learn`.

    Raises DataError, and SpecError when the spec does not fit a file's format, or a vocabulary cannot be
    read.
    """
    return learn(spec, partial(_blocks, spec, inputs, choice))


def learn(spec: FeatureSpec, blocks: Callable[[Sequence[str]], Iterator[Block]]) -> FeatureSpec:
    """`spec` with what its steps learn from `blocks`; `spec` itself if they learn nothing, or have.

    `blocks` gives all rows with the cells of the columns that it is asked for; it is called if there is
    something to learn from rows. Labels and weights are not looked at. Rows that cannot be split into cells
    are left out; a value that is none for one step counts for the others. Raises SpecError when a vocabulary
    cannot be read.
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
        names = list(dict.fromkeys(column_of(field) for field, _ in passes))
        for block in blocks(names):
            _add(block, names, passes)
    known |= {field.name: begun.learnt() for field, begun in passes}
    learnt = {f"{name}/{array}": found for name, arrays in known.items() for array, found in arrays.items()}
    return FittedSpec.of(spec, learnt)


def _blocks(
    spec: FeatureSpec,
    inputs: Sequence[str | Path | InputFile],
    choice: RowChoice | None,
    names: Sequence[str],
) -> Iterator[Block]:
    """All rows of the inputs, with the cells of these columns."""
    for file in input_files(inputs):
        if isinstance(file, StandardInput):
            raise file.once()
        with closing(open_reader(file, spec, "ignored", choice)) as reader:
            yield from blocks_of(reader, names)


def _add(block: Block, names: Sequence[str], passes: Sequence[tuple[InputField, Fit]]) -> None:
    """Has the fields learn from the rows of a block with these columns."""
    columns = {name: Column.of(block.cells, block.status, i, slice(None)) for i, name in enumerate(names)}
    for field, learning in passes:
        column = columns[column_of(field)]
        learning.add(column)
        if field.constant is not None and isinstance(field, NumberField):
            learning.add(Column.repeated(field.constant, _missing_numbers(column)))


def _missing_numbers(column: Column) -> int:
    numbers = column.numbers
    return int(np.count_nonzero((column.status == 0) & (numbers.problem == 0) & ~numbers.present))
