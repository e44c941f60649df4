"""`Reader`, `Piece` and `Block`: the interface between all input formats and `RawSource`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from ctr.errors import DataError
from ctr.features.text import Cells, Lines

if TYPE_CHECKING:
    from ctr.features.transform import Transform

# 2,048 rows of Criteo's 40 columns have 0.7 MB of cell bounds, which are still in the second-level cache when
# the transform reads them.
_MOST_ROWS = 2048
_MOST_CELLS = 1 << 17


class UnfitColumnError(DataError):
    """A column whose type its field does not accept."""

    def __init__(self, problem: str, column: str = "", *, lists: bool = False) -> None:
        super().__init__(problem)
        self.column = column
        self.lists = lists
        """Whether fields of several values accept it."""


class Origin(Protocol):
    """Where the rows of a block come from, for messages."""

    def place(self, row: int) -> str:
        """Where the row is, such as `clicks.tsv:17`."""

    def raw(self, row: int) -> bytes:
        """The row as a line, in a text file the original one, with its line end."""

    def misread(self, status: int, column: int) -> tuple[str, str] | None:
        """Why a row could not be split into cells, with and without the bad value; None if it was split."""


@dataclass(frozen=True, slots=True)
class Block:
    """Some consecutive data rows of a file, as cells. Valid until the next block is requested."""

    cells: Cells
    """The requested columns, in their order."""
    status: NDArray[np.uint8]
    """uint8[rows]: the `RowStatus` of each row so far."""
    column: NDArray[np.int32]
    """int32[rows]: the bad column of rows whose status is not OK."""
    origin: Origin

    def kept(self) -> Block:
        """The same rows, in a block that stays valid."""
        return Block(self.cells.kept(), self.status, self.column, self.origin)


class Piece(Protocol):
    """Some consecutive data rows of a file. Threads may split several pieces at the same time."""

    @property
    def rows(self) -> int:
        """The number of rows, at least one."""

    def blocks(self) -> Iterator[Block]:
        """All rows, in order; each block has at least one."""


class Reader(Protocol):
    """An open input file, which can be read once, by `pieces` or by `count_rows`."""

    @property
    def columns(self) -> Sequence[str]:
        """The names of the file's columns."""

    @property
    def fraction(self) -> float:
        """How much of the file has been read, 0 to 1."""

    def require(self, columns: Sequence[str]) -> None:
        """Raises DataError if the file lacks one of these columns."""

    def pieces(self, columns: Sequence[str]) -> Iterator[Piece]:
        """The data rows, in order, with the cells of these columns; at least one row."""

    def count_rows(self) -> int:
        """How many data rows there are, good or bad."""

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class TextRows:
    """The `Origin` of rows that are lines of a text file."""

    lines: Lines
    starts: NDArray[np.int32]
    """int32[rows]: where in their buffer each row begins."""
    ends: NDArray[np.int32]
    """int32[rows]: where it ends, after its newline."""

    def place(self, row: int) -> str:
        return self.lines.place(int(self.starts[row]))

    def raw(self, row: int) -> bytes:
        return self.lines.text(int(self.starts[row]), int(self.ends[row]))

    def misread(self, status: int, column: int) -> tuple[str, str] | None:
        return None


def explain(transform: Transform, block: Block, row: int) -> tuple[str, str]:
    """What is wrong with a bad row of a block, with and without the bad value."""
    status, column = int(block.status[row]), int(block.column[row])
    misread = block.origin.misread(status, column)
    return misread or transform.explain(block.cells, row, status, column)


def blocks_of(reader: Reader, columns: Sequence[str]) -> Iterator[Block]:
    """All data rows, in order, with the cells of these columns."""
    for piece in reader.pieces(columns):
        yield from piece.blocks()


def rows_per_block(columns: int) -> int:
    return max(min(_MOST_ROWS, _MOST_CELLS // max(columns, 1)), 64)


def require_columns(path: object, present: Sequence[str], needed: Iterable[str]) -> None:
    """Raises DataError unless each needed column exists exactly once."""
    needed = list(needed)
    missing = [name for name in needed if name not in present]
    if missing:
        hint = ""
        alike = [(has, name) for name in missing for has in present if has.casefold() == name.casefold()]
        if alike:
            hint = " {!r} and {!r} differ only in case: rename one of them.".format(*alike[0])
        elif len(present) == 1 and not present[0].isidentifier():
            hint = " Is the delimiter right?"
        elif any(name.startswith('"') for name in present):
            hint = " The names stand in quotes: set quote: true in the spec's source."
        raise DataError(
            f"{path}: there is no column {names_shown(missing)}, which the feature spec needs; the file has"
            f" {names_shown(present)}.{hint}"
        )
    for name in needed:
        if present.count(name) > 1:
            raise DataError(f"{path}: there are {present.count(name)} columns {name!r}; rename all but one.")


def has_columns(reader: Reader, columns: Sequence[str]) -> bool:
    """Whether the file has these columns."""
    try:
        reader.require(columns)
    except DataError:
        return False
    return True


def require_wanted(path: object, reader: Reader, columns: Sequence[str], why: str) -> None:
    """Raises DataError unless the file has these columns; the message says `why` they are needed."""
    try:
        reader.require(columns)
    except DataError:
        for name in columns:
            if name not in reader.columns:
                near = get_close_matches(name, reader.columns, 1)
                hint = f"did you mean {near[0]!r}? The file has" if near else "give one that the file has:"
                raise DataError(
                    f"{path}: there is no column {name!r}, {why}; {hint} {names_shown(reader.columns)}."
                ) from None
        raise


def names_shown(columns: Sequence[str]) -> str:
    """Names for a message, at most eight of them."""
    shown = [repr(name if len(name) <= 60 else f"{name[:60]}…") for name in columns[:8]]
    return ", ".join(shown) + (f" and {len(columns) - 8} more" if len(columns) > 8 else "")
