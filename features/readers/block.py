"""`Reader` and `Block`: what every input format offers to `RawSource`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ctr.errors import DataError
from features.batches import BatchBuilder
from features.text import Cells
from features.transform import Transform

# 2,048 rows of Criteo's 40 columns are 0.7 MB of cell places, which the transform finds in the
# second-level cache again.
_MOST_ROWS = 2048
_MOST_CELLS = 1 << 17


class Block(Protocol):
    """Some consecutive data rows of a file. Valid until the next one is asked for."""

    @property
    def status(self) -> NDArray[np.uint8]:
        """uint8[rows]: what is wrong with each row, 0 if nothing is known to be."""

    def fill(self, builder: BatchBuilder, first: int, last: int) -> int:
        """Adds the rows `first..last-1` to `builder` until it is full; returns the next row to do.

        A row that turns out bad adds nothing; its status tells.
        """

    def place(self, row: int) -> str:
        """Where the row stands, such as `clicks.tsv:17`."""

    def problem(self, row: int) -> str:
        """What is wrong with a bad row: where in it, what was found, what was expected."""

    def reason(self, row: int) -> str:
        """The kind of problem of a bad row, without what was found there."""

    def raw(self, row: int) -> bytes:
        """The row as it stands in the file, with its line end."""


class Reader(Protocol):
    """One open input file, to be read once: by either `blocks` or `count_rows`."""

    @property
    def fraction(self) -> float:
        """How much of the file has been read, 0 to 1."""

    def require(self, transform: Transform) -> None:
        """Raises DataError if the file lacks what the transform needs."""

    def blocks(self, transform: Transform) -> Iterator[Block]:
        """The data rows, in order; at least one."""

    def count_rows(self) -> int:
        """How many data rows there are, good or bad."""

    def close(self) -> None: ...


def rows_per_block(columns: int) -> int:
    return max(min(_MOST_ROWS, _MOST_CELLS // max(columns, 1)), 64)


def append_cells(
    transform: Transform,
    cells: Cells,
    status: NDArray[np.uint8],
    column: NDArray[np.int32],
    builder: BatchBuilder,
    first: int,
    last: int,
) -> int:
    """`Block.fill` for rows of cells; `status` and `column` as for `Transform.append`."""
    wanted = Cells(cells.buffer, cells.starts[:last], cells.ends[:last])
    return transform.append(wanted, status[:last], column[:last], builder, first)


def require_columns(path: Path, present: Sequence[str], needed: Iterable[str]) -> None:
    """Raises DataError unless each needed column is there, and once."""
    needed = list(needed)
    missing = [name for name in needed if name not in present]
    if missing:
        hint = ""
        if len(present) == 1:
            hint = " Is the delimiter right?"
        elif any(name.startswith('"') for name in present):
            hint = " The names stand in quotes: set quote: true in the spec's source."
        raise DataError(
            f"{path}: there is no column {_names(missing)}, which the feature spec needs; the file has"
            f" {_names(present)}.{hint}"
        )
    for name in needed:
        if present.count(name) > 1:
            raise DataError(f"{path}: there are {present.count(name)} columns {name!r}; rename all but one.")


def _names(columns: Sequence[str]) -> str:
    """A list for a message: not more of it than a person reads."""
    shown = [f"{name!r:.60}" for name in columns[:8]]
    return ", ".join(shown) + (f" and {len(columns) - 8} more" if len(columns) > 8 else "")
