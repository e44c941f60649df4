"""`InputFile`: one raw file, wherever it is; `LocalFile`, `StandardInput`; `ChosenRows`: rows of a file."""

from __future__ import annotations

import io
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote

import numpy as np
from numpy.typing import NDArray

from ctr.errors import DataError


@dataclass(frozen=True, slots=True)
class FileState:
    """Facts about a file that change when it is replaced, written to, or cut short."""

    device: int
    inode: int
    """With `device`, identifies the file; 0 for files without such a number, as behind URIs."""
    size: int
    """In bytes."""
    modified_ns: int
    """Nanoseconds since 1970; 0 if unknown."""

    @classmethod
    def of(cls, stat: os.stat_result) -> FileState:
        """The state of a file on a disk."""
        return cls(stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns)

    def change(self, now: FileState) -> str | None:
        """How the file has changed, for users; None if it has not."""
        if self == now:
            return None
        sizes = f"{self.size:,} bytes before, {now.size:,} now"
        if (self.device, self.inode) != (now.device, now.inode):
            return f"another file has taken its place ({sizes})"
        if self.size != now.size:
            return f"it has {'grown' if now.size > self.size else 'shrunk'} ({sizes})"
        return f"it was written to ({now.size:,} bytes as before, but modified since)"


STANDARD_INPUT = "-"
_READ_BYTES = 1 << 20  # 1 MiB
_STEP = 1 << 20  # rows counted at a time
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True, slots=True)
class ChosenRows:
    """Some rows of a file."""

    rows: int
    """The number of data rows in the file, chosen or not."""
    chosen: Callable[[int, int], NDArray[np.bool_]]
    """Called with `first` and `last`: which of the rows `first..last-1` are chosen."""
    chosen_by: str
    """What was built from these rows, for error messages."""

    def count(self) -> int:
        """How many rows are chosen."""
        starts = range(0, self.rows, _STEP)
        return sum(int(np.count_nonzero(self.chosen(at, min(at + _STEP, self.rows)))) for at in starts)


class InputFile(ABC):
    """One raw file, which can be read any number of times, as long as it does not change.

    Its `str` is its name in messages.
    """

    is_remote: bool = False
    """Whether it is read over a network, so that a few large requests are better than many small ones."""

    def __init__(self, location: str) -> None:
        """`location`: a path or URI that is valid in every process on this machine."""
        self.location = location
        self.chosen_rows: ChosenRows | None = None
        """The only rows that its reader (see `open_reader`) returns; None: all."""
        self.row_groups: range | None = None
        """The only row groups of a Parquet file that its reader returns; None: all."""

    def __str__(self) -> str:
        return self.location

    @property
    def suffixes(self) -> list[str]:
        """The suffixes of its name in lower case, such as `['.csv', '.gz']`."""
        return [suffix.lower() for suffix in PurePosixPath(str(self)).suffixes]

    @property
    def partition_columns(self) -> Mapping[str, bytes]:
        """Columns from the names of the folders above it: `day` for `logs/day=2017-11-06/part-0.parquet`.

        The layout of Apache Hive: `%` and two hex digits stand for a byte, Hive's name for null for a missing
        value.
        """
        columns = {}
        for folder in os.path.dirname(self.location).split("/"):
            name, equals, value = folder.partition("=")
            if equals and name:
                columns[unquote(name)] = b"" if value == _NO_VALUE else os.fsencode(unquote(value))
        return columns

    def __getstate__(self) -> dict[str, Any]:
        """Without its state, which another process determines anew."""
        return {name: value for name, value in self.__dict__.items() if name != "state"}

    @cached_property
    def state(self) -> FileState:
        """Its state when it was first opened or listed. Raises DataError."""
        return self._state_now()

    @property
    def size(self) -> int:
        """Size in bytes; 0 if unknown."""
        return self.state.size

    def line_number(self, line: int) -> int:
        """The number, in the whole file, of line `line` (from 1) of the bytes that `open` gives."""
        return line

    @abstractmethod
    def open(self) -> io.BufferedReader:
        """Its bytes from the start. Raises DataError, also if the file has changed."""

    @abstractmethod
    def seekable(self) -> Any:
        """A path or an open file that Arrow can read in any order. Raises DataError as `open` does."""

    @abstractmethod
    def _state_now(self, opened: io.BufferedReader | None = None) -> FileState: ...

    def require_same_content(self, before: FileState) -> None:
        """Raises DataError if it has changed since another process, perhaps on another machine, saw `before`.

        Compares size and time only: device and file numbers differ between machines.
        """
        if change := replace(self.state, size=before.size, modified_ns=before.modified_ns).change(self.state):
            raise DataError(
                f"{self}: {change} since the job began; start again with files that nothing writes to."
            )

    def require_unchanged(self, opened: io.BufferedReader | None = None) -> None:
        """Raises DataError if it has changed; call it after reading.

        `opened`: the result of `open`, for a local file that may have been moved since.
        """
        now = self._state_now(opened)
        if (change := self.state.change(now)) is not None:
            raise DataError(
                f"{self}: {change} since it was first read, and every pass needs the same rows; start again"
                " with files that nothing writes to."
            )


class LocalFile(InputFile):
    """A file on disk."""

    def __init__(self, path: Path) -> None:
        super().__init__(os.path.abspath(path))
        self._path = path

    def __str__(self) -> str:
        return str(self._path)

    def open(self) -> io.BufferedReader:
        self.require()
        try:
            opened = self._path.open("rb")
        except OSError as error:
            raise self._unreadable(error) from None
        try:
            self.require_unchanged(opened)
        except BaseException:
            opened.close()
            raise
        return opened

    def seekable(self) -> Any:
        self.require()
        self.require_unchanged()
        return self._path

    def require(self) -> None:
        """Raises DataError unless it is a file."""
        if not self._path.is_file():
            problem = "not a regular file" if self._path.exists() else "there is no such file"
            raise DataError(f"{self}: {problem}; check the path.")

    def _state_now(self, opened: io.BufferedReader | None = None) -> FileState:
        try:
            return FileState.of(os.stat(self._path if opened is None else opened.fileno()))
        except OSError as error:
            raise self._unreadable(error) from None

    def _unreadable(self, error: OSError) -> DataError:
        return DataError(f"{self}: cannot be read ({error.strerror}).")


class BytesFile(InputFile):
    """Bytes in memory, read as a file of this name."""

    def __init__(self, name: str, content: bytes) -> None:
        super().__init__(name)
        self._content = content

    def open(self) -> io.BufferedReader:
        return io.BufferedReader(io.BytesIO(self._content))

    def seekable(self) -> Any:
        return io.BytesIO(self._content)

    def _state_now(self, opened: io.BufferedReader | None = None) -> FileState:
        return FileState(0, 0, len(self._content), 0)


class InputStream(io.RawIOBase):
    """The bytes of a file from the first to the last; a subclass provides them."""

    _at = 0

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def readinto(self, target: Any, /) -> int:
        count = self._read(memoryview(target).cast("B"))
        self._at += count
        return count

    @abstractmethod
    def _read(self, target: memoryview) -> int:
        """Reads the next bytes into `target`, at most as many as it can hold; returns their number."""


class StandardInput(InputFile):
    """Standard input. It keeps what it has read, until `begin_pass`: then one pass can read to the end."""

    def __init__(self, handle: int = 0) -> None:
        """`handle`: the file descriptor to read."""
        super().__init__(STANDARD_INPUT)
        self.handle = handle
        self.head = bytearray()
        """The bytes that have been read and kept."""
        self._kept = True
        self.exhausted = False
        """Whether it has been read beyond what was kept."""

    def __str__(self) -> str:
        return "standard input"

    def begin_pass(self) -> None:
        """Stops keeping bytes: only the next `open` can read to the end."""
        if not self._kept:
            raise self.once()
        self._kept = False

    def open(self) -> io.BufferedReader:
        if self.exhausted:
            raise self.once()
        return io.BufferedReader(_Replay(self, self._kept), _READ_BYTES)

    def seekable(self) -> Any:
        raise DataError(
            f"{self}: a Parquet or Arrow file is not read from front to back, as a pipe is; give it by its"
            f" path, or pipe an Arrow stream."
        )

    def _state_now(self, opened: io.BufferedReader | None = None) -> FileState:
        return FileState(0, 0, 0, 0)  # it is read only once

    def once(self) -> DataError:
        """The error of a second reading."""
        return DataError(
            f"{self}: it can be read only once, and this takes a second pass (several epochs, counting rows"
            f" for a hold-out or for several workers, or a spec that learns from data); write it to a file,"
            f" and give that."
        )


class _Replay(InputStream):
    """The bytes of standard input from the start: its head, then what follows."""

    def __init__(self, source: StandardInput, keep: bool) -> None:
        self._source, self._keep = source, keep

    def _read(self, target: memoryview) -> int:
        head = self._source.head
        if self._at < len(head):
            count = min(len(target), len(head) - self._at)
            target[:count] = head[self._at : self._at + count]
            return count
        count = os.readv(self._source.handle, [target])
        if self._keep:
            head += target[:count]
        else:
            self._source.head, self._source.exhausted = bytearray(), True
        return count
