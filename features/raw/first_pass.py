"""`fit` and `learn`: the first pass over raw data, in which a spec's steps learn what they need."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from copy import copy
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctr.features.block import Piece
from ctr.features.columns import Arrays, Columns
from ctr.features.inputs import InputFile, input_files
from ctr.features.readers import RawFiles, RowChoice, SomeRowsPiece
from ctr.features.spec import (
    CategoryField,
    FeatureSpec,
    FittedSpec,
    InputField,
    NumberField,
    ValueField,
    column_of,
    learnt_of,
)
from ctr.features.steps import STEPS, Fit, OrderedFit
from ctr.features.text import Cells, RowStatus
from ctr.features.threads import in_order

_MOST_THREADS = 4  # more would wait for the thread that learns


def fit(
    spec: FeatureSpec,
    inputs: Sequence[str | Path | InputFile],
    choice: RowChoice | None = None,
    held_out: float = 0.0,
    rows: Sequence[range] | None = None,
) -> FeatureSpec:
    """`spec` with what its steps learn from all rows of these inputs, or the rows of a choice; see `learn`.

    `held_out`: does not learn from this share of the rows, at the end. `rows`: learns only from rows at these
    positions, ascending. Raises DataError; SpecError if the spec does not suit a file's format, or a
    vocabulary cannot be read.
    """

    def pieces(names: Sequence[str]) -> Iterator[Piece]:
        raw = RawFiles(input_files(inputs), spec, choice=choice)
        raw.require_rereadable()
        positions = rows
        if held_out:
            total = sum(raw.count_rows())
            positions = [range(total - round(total * held_out))]
        return raw.pieces(names) if positions is None else _pieces_at(positions, raw.pieces(names))

    return learn(spec, pieces)


def any_chosen(spec: FeatureSpec, inputs: Sequence[str | Path | InputFile], choice: RowChoice) -> bool:
    """Whether any row of these inputs is chosen. Raises as `fit`."""
    raw = RawFiles(input_files(inputs), spec, choice=choice)
    raw.require_rereadable()
    with closing(raw.blocks([])) as blocks:
        return any((block.status != RowStatus.ELSEWHERE).any() for block in blocks)


def changed_vocabulary(spec: FeatureSpec, fitted: FeatureSpec) -> str | None:
    """The first field of `spec` with another vocabulary than `fitted` learnt, if any.

    Fields with `min_count` keep only part of their vocabulary and are not compared.
    """
    learnt = learnt_of(fitted) or {}
    for field in spec.fields:
        begin = STEPS[field.step].fit
        if isinstance(field, ValueField) and field.vocabulary and not field.min_count and begin is not None:
            arrays = begin(field)
            assert isinstance(arrays, Mapping)
            if any(
                not np.array_equal(array, learnt[f"{field.name}/{name}"]) for name, array in arrays.items()
            ):
                return field.name
    return None


def learn(spec: FeatureSpec, pieces: Callable[[Sequence[str]], Iterator[Piece]]) -> FeatureSpec:
    """`spec` with what its steps learn from `pieces`; `spec` itself if they learn nothing, or already have.

    `pieces` returns all rows with the cells of the given columns; it is called only if there is something to
    learn from rows. Other threads parse and hash the text; this one learns from the results, in their order.
    Labels and weights are ignored. Rows that cannot be split into cells are skipped; a value that is invalid
    for one step still counts for the others. Raises SpecError if a vocabulary cannot be read.
    """
    if learnt_of(spec) is not None:
        return spec
    first = FirstPass(spec)
    first.take_in(pieces)
    return first.fitted()


class FirstPass:
    """What the fields of an unfitted spec learn. Can be pickled."""

    def __init__(self, spec: FeatureSpec) -> None:
        """Raises SpecError if a vocabulary cannot be read."""
        self._spec = spec
        self._known: dict[str, Arrays] = {}
        self._fits: dict[str, Fit] = {}
        for field in spec.all_fields:
            if field.learns and (begin := STEPS[field.step].fit) is not None:
                arrays_or_fit = begin(field)
                if isinstance(arrays_or_fit, Mapping):
                    self._known[field.name] = arrays_or_fit
                else:
                    self._fits[field.name] = arrays_or_fit

    def take_in(self, pieces: Callable[[Sequence[str]], Iterator[Piece]]) -> None:
        """Learns from rows; see `learn`."""
        if not self._fits:
            return
        passes = [
            (field, self._fits[field.name]) for field in self._spec.all_fields if field.name in self._fits
        ]
        names = self.columns
        threads = min(os.cpu_count() or 1, _MOST_THREADS)
        with closing(in_order(partial(_prepared, names, passes), pieces(names), threads)) as prepared:
            for of_fields in (block for piece in prepared for block in piece):
                for (_, learning), of_field in zip(passes, of_fields, strict=True):
                    learning.add(of_field)

    def fitted(self) -> FeatureSpec:
        """The spec with what was learnt. Raises DataError if the rows do not suffice for that."""
        by_field = self._known | {name: fit.learnt() for name, fit in self._fits.items()}
        learnt = {
            f"{field}/{name}": array for field, arrays in by_field.items() for name, array in arrays.items()
        }
        return FittedSpec.of(self._spec, learnt)

    @property
    def columns(self) -> list[str]:
        """The columns that it learns from."""
        fields = (field for field in self._spec.all_fields if field.name in self._fits)
        return list(dict.fromkeys(map(column_of, fields)))

    @property
    def reads_rows(self) -> bool:
        """Whether it needs rows to learn from."""
        return bool(self._fits)

    @property
    def counts(self) -> dict[str, int]:
        """How many values each field has learnt from, if its fit must know how many come before its own."""
        return {name: fit.count for name, fit in self._fits.items() if isinstance(fit, OrderedFit)}

    def after(self, counts: Mapping[str, int]) -> FirstPass:
        """One that has learnt nothing, for these fields only, whose values follow so many others."""
        again = copy(self)
        again._fits = {
            name: fit.after(counts[name])
            for name, fit in self._fits.items()
            if isinstance(fit, OrderedFit) and name in counts
        }
        return again

    def replace(self, other: FirstPass) -> None:
        """Replaces what it has learnt for the fields of `other` by what `other` has learnt."""
        self._fits |= other._fits

    def merge(self, other: FirstPass) -> None:
        """Adds what `other` has learnt from the rows after those of this one."""
        for name, fit in self._fits.items():
            fit.merge(other._fits[name])


def _pieces_at(positions: Sequence[range], pieces: Generator[Piece, None, None]) -> Iterator[Piece]:
    """Only the rows at these positions, which are ascending."""
    end = max((each.stop for each in positions), default=0)
    with closing(pieces):
        first = 0
        for piece in pieces:
            chosen = np.zeros(piece.rows, np.bool_)
            for each in positions:
                chosen[max(each.start - first, 0) : max(each.stop - first, 0)] = True
            if chosen.any():
                yield SomeRowsPiece(piece, chosen)
            first += piece.rows
            if first >= end:
                break


def _prepared(
    names: Sequence[str], passes: Sequence[tuple[InputField, Fit]], piece: Piece
) -> list[list[Any]]:
    """For each buffer of a piece, what each field learns from its rows."""
    numbers = [column_of(field) for field, _ in passes if isinstance(field, NumberField)]
    plain = [column_of(field) for field, _ in passes if isinstance(field, CategoryField) and field.is_plain]
    prepared = []
    for cells, status in _joined(piece):
        columns = Columns(cells, status, slice(None), names)
        columns.take(list(dict.fromkeys(numbers)), list(dict.fromkeys(plain)))
        prepared.append([learning.prepared(columns[column_of(field)]) for field, learning in passes])
    return prepared


def _joined(piece: Piece) -> Iterator[tuple[Cells, NDArray[np.uint8]]]:
    """The rows of a piece with their status, joined while their text is in the same buffer."""
    starts = ends = np.empty((0, 0), np.int32)
    status = np.empty(piece.rows, np.uint8)
    buffer, first, last = None, 0, 0
    for block in piece.blocks():
        if buffer is None:
            shape = piece.rows, block.cells.starts.shape[1]
            starts, ends = np.empty(shape, np.int32), np.empty(shape, np.int32)
        elif block.cells.buffer is not buffer:
            yield Cells(buffer, starts[first:last], ends[first:last]), status[first:last]
            first = last
        buffer, rows = block.cells.buffer, slice(last, last + block.status.size)
        starts[rows], ends[rows], status[rows] = block.cells.starts, block.cells.ends, block.status
        last = rows.stop
    if buffer is not None:
        yield Cells(buffer, starts[first:last], ends[first:last]), status[first:last]
