"""`FileRows`: some rows of a raw file, which are read as if they were all."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctr.features.inputs.file_state import FileState
from ctr.features.inputs.input_file import InputFile

_STEP = 1 << 20  # rows that are counted at a time


@dataclass(frozen=True)
class FileRows:
    """An `InputFile` whose reader (see `open_reader`) gives the chosen rows alone."""

    file: InputFile
    rows: int
    """How many data rows the file has, chosen or not."""
    chosen: Callable[[int, int], NDArray[np.bool_]]
    """Which of the file's rows `first..last-1` are chosen."""
    chosen_by: str
    """Who knows the file to have so many rows, for messages."""

    def count(self) -> int:
        """How many rows are chosen."""
        starts = range(0, self.rows, _STEP)
        return sum(int(np.count_nonzero(self.chosen(at, min(at + _STEP, self.rows)))) for at in starts)

    def __str__(self) -> str:
        return str(self.file)

    @property
    def location(self) -> str:
        return self.file.location

    @property
    def size(self) -> int:
        return self.file.size

    @property
    def state(self) -> FileState:
        return self.file.state

    @property
    def is_remote(self) -> bool:
        return self.file.is_remote

    def open(self) -> io.BufferedReader:
        return self.file.open()

    def seekable(self) -> Any:
        return self.file.seekable()

    def require_unchanged(self, opened: io.BufferedReader | None = None) -> None:
        self.file.require_unchanged(opened)
