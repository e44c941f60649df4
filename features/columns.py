"""`Column`: the typed values of one column; the features that steps make of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple
from weakref import proxy

import numpy as np
from numpy.typing import NDArray

from ctr.features.text import Cells, TextColumn, Times, hash_columns, parse_columns, shown, times_of

Arrays = Mapping[str, NDArray[Any]]
"""The arrays that a field has learnt, by the names in its `learns`."""


class Numbers(NamedTuple):
    """A column of numbers."""

    values: NDArray[np.float64]
    """float64[rows]; undefined where `present` is not set."""
    present: NDArray[np.bool_]
    """bool[rows]: whether there is a number."""
    problem: NDArray[np.uint8]
    """uint8[rows]: `RowStatus.NUMBER` where the text is not a number and not missing, else 0."""


class Buckets(NamedTuple):
    """At most one feature per row, not hashed yet: the result of steps for numbers and times."""

    buckets: NDArray[np.uint64]
    """uint64[rows]: the bucket, whose 8 bytes are hashed; undefined where `present` is not set."""
    present: NDArray[np.bool_]
    """bool[rows]: whether there is a value; if not, the field's `missing` applies."""
    problem: NDArray[np.uint8]
    """uint8[rows]: the RowStatus of rows that are bad because of this column, else 0."""


class HashedTokens(NamedTuple):
    """At most one feature per row, hashed: the result of steps for categories."""

    hashes: NDArray[np.uint64]
    """uint64[rows]: the hash, seeded with the field's seed; otherwise as in `Buckets`."""
    present: NDArray[np.bool_]
    problem: NDArray[np.uint8]


class TokenCounts(NamedTuple):
    """Any number of features per row: the result of steps for fields with `several`."""

    bounds: NDArray[np.int64]
    """int64[rows + 1]: row `i` has the features `bounds[i]..bounds[i + 1] - 1`; the first is 0."""
    hashes: NDArray[np.uint64]
    """uint64[at least bounds[-1]], seeded with the field's seed."""
    values: NDArray[np.float32]
    """float32, as long as `hashes`."""
    problem: NDArray[np.uint8]
    """uint8[rows], as in `Buckets`; rows with a problem have no features."""
    missing: NDArray[np.bool_] | None = None
    """bool[rows]: whether the value is missing; None: it is in rows without features. The step does not apply
    the field's `missing`."""


class Column:
    """Some rows of one column, as texts, numbers, hashes or times; each of these is computed once."""

    def __init__(
        self,
        buffer: NDArray[np.uint8],
        starts: NDArray[np.int32],
        ends: NDArray[np.int32],
        status: NDArray[np.uint8],
        beside: Mapping[str, Column] | None = None,
    ) -> None:
        """The arguments are those of `TextColumn`, but `starts` and `ends` need not be contiguous."""
        self._buffer, self._starts, self._ends = buffer, starts, ends
        self.status = status
        """uint8[rows]: rows whose status is not 0 have no value."""
        self.beside = beside
        """The same rows of the other columns, by name (a proxy of `Columns`); None if they are unknown."""

    @staticmethod
    def of(*texts: str) -> Column:
        """A column of these texts, one per row."""
        encoded = [text.encode("utf-8", "replace") for text in texts]
        lengths = np.array([len(text) for text in encoded], np.int32)
        ends = np.cumsum(lengths, dtype=np.int32)
        buffer = np.frombuffer(b"".join(encoded), np.uint8)
        return Column(buffer, ends - lengths, ends, np.zeros(ends.size, np.uint8))

    def __len__(self) -> int:
        return self.status.size

    @cached_property
    def text(self) -> TextColumn:
        """The arguments of kernels."""
        starts, ends = np.ascontiguousarray(self._starts), np.ascontiguousarray(self._ends)
        return self._buffer, starts, ends, self.status

    @cached_property
    def lengths(self) -> NDArray[np.int32]:
        """int32[rows]: the lengths of the texts; 0 where there is no value."""
        _, starts, ends, _ = self.text
        lengths = ends - starts
        if self.status.any():
            lengths[self.status != 0] = 0
        return lengths

    def shown(self, row: int) -> str:
        """A value, for a message."""
        return shown(self._buffer[self._starts[row] : self._ends[row]])

    @cached_property
    def numbers(self) -> Numbers:
        """The values as numbers."""
        return _numbers(self._cells, self.status, [0])[0]

    def hashes(self, seed: int) -> HashedTokens:
        """The hashes of the values, as `category` computes them."""
        return self.plain if seed == 0 else _hashes(self._cells, self.status, [0], seed)[0]

    @cached_property
    def plain(self) -> HashedTokens:
        """The hashes of the values with seed 0."""
        return _hashes(self._cells, self.status, [0], 0)[0]

    @property
    def _cells(self) -> Cells:
        buffer, starts, ends, _ = self.text
        return Cells(buffer, starts.reshape(-1, 1), ends.reshape(-1, 1))

    def times(self, time_format: str | None) -> Times:
        """The values as times of this format; see `times_of`."""
        if time_format not in self._times:
            self._times[time_format] = times_of(self.text, time_format)
        return self._times[time_format]

    @cached_property
    def _times(self) -> dict[str | None, Times]:
        return {}


class Columns(dict[str, Column]):
    """Some rows of cells, by column name. Columns are created on first access.

    They are valid as long as the cells are.
    """

    def __init__(self, cells: Cells, status: NDArray[np.uint8], rows: slice, names: Sequence[str]) -> None:
        super().__init__()
        self._cells, self._status, self._rows, self._names = cells, status, rows, names

    def __missing__(self, name: str) -> Column:
        cells, rows, place = self._cells, self._rows, self._names.index(name)
        places = cells.starts[rows, place], cells.ends[rows, place]
        # A proxy, so that the rows leave memory with the last reference to them.
        column = self[name] = Column(read_only(cells.buffer), *places, self._status[rows], proxy(self))
        return column

    def take(self, numbers: Sequence[str], hashes: Sequence[str]) -> None:
        """Computes `numbers` and `plain` of these columns, faster than for one column after the other."""
        buffer, starts, ends = (
            self._cells.buffer,
            self._cells.starts[self._rows],
            self._cells.ends[self._rows],
        )
        cells, status = Cells(buffer, starts, ends), self._status[self._rows]
        parsed = _numbers(cells, status, [self._names.index(name) for name in numbers])
        hashed = _hashes(cells, status, [self._names.index(name) for name in hashes], 0)
        for name, values in zip(numbers, parsed, strict=True):
            self[name].__dict__["numbers"] = values
        for name, plain in zip(hashes, hashed, strict=True):
            self[name].__dict__["plain"] = plain


def _numbers(cells: Cells, status: NDArray[np.uint8], columns: Sequence[int]) -> list[Numbers]:
    """Some columns of `cells` as numbers."""
    shape = len(columns), len(cells)
    values, present, problem = np.empty(shape), np.empty(shape, np.bool_), np.empty(shape, np.uint8)
    places = read_only(cells.buffer), cells.starts, cells.ends, status, np.array(columns, np.int64)
    parse_columns(*places, values, present, problem)
    return [Numbers(*of_one) for of_one in zip(values, present, problem, strict=True)]


def _hashes(cells: Cells, status: NDArray[np.uint8], columns: Sequence[int], seed: int) -> list[HashedTokens]:
    """Some columns of `cells` as hashes of categories."""
    shape = len(columns), len(cells)
    hashes, present = np.empty(shape, np.uint64), np.empty(shape, np.bool_)
    places = read_only(cells.buffer), cells.starts.reshape(-1), cells.ends.reshape(-1)
    hash_columns(*places, status, np.array(columns, np.int64), np.uint64(seed), hashes, present)
    sound = np.zeros(len(cells), np.uint8)
    return [HashedTokens(*of_one, sound) for of_one in zip(hashes, present, strict=True)]


def read_only(buffer: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """A read-only view. Numba would compile kernels twice for writable and read-only arrays."""
    view = buffer.view()
    view.flags.writeable = False
    return view
