"""`StandardInput`: the pipe into a command, as a file whose beginning can be read more than once."""

from __future__ import annotations

import io
import os
from typing import Any

from ctr.errors import DataError
from ctr.features.inputs.input_file import FileState, InputFile

NAME = "-"
_READ_BYTES = 1 << 20  # 1 MiB


class StandardInput(InputFile):
    """Standard input. What has been read is kept until a pass begins that reads it to its end."""

    def __init__(self, handle: int = 0) -> None:
        """`handle`: the file descriptor to read."""
        super().__init__(NAME)
        self.handle = handle
        self.head = bytearray()
        """The bytes that have been read and kept."""
        self._kept = True
        self.exhausted = False
        """Whether it has been read beyond what was kept."""

    def __str__(self) -> str:
        return "standard input"

    def begin_pass(self) -> None:
        """Stop keeping bytes: only the next `open` can read to the end."""
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
        return FileState(0, 0, 0, 0)  # it is read once

    def once(self) -> DataError:
        """The error of reading it a second time."""
        return DataError(
            f"{self}: it can be read only once, and this takes a second pass (several epochs, counting rows"
            f" for a hold-out or for several workers, or a spec that learns from data); write it to a file,"
            f" and give that."
        )


class _Replay(io.RawIOBase):
    """The bytes of standard input from the first: those of its head, then what follows."""

    def __init__(self, source: StandardInput, keep: bool) -> None:
        self._source, self._keep, self._at = source, keep, 0

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def readinto(self, target: Any, /) -> int:
        target = memoryview(target).cast("B")
        head = self._source.head
        if self._at < len(head):
            count = min(len(target), len(head) - self._at)
            target[:count] = head[self._at : self._at + count]
        else:
            count = os.readv(self._source.handle, [target])
            if self._keep:
                head += target[:count]
            else:
                self._source.head, self._source.exhausted = bytearray(), True
        self._at += count
        return count
