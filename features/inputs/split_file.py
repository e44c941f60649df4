"""`SplitFile`: consecutive rows of a file, as a file of its own, so that several tasks can read one file."""

from __future__ import annotations

import io
from contextlib import closing
from functools import cached_property
from typing import Any

from ctr.errors import DataError
from ctr.features.inputs.input_file import FileState, InputFile, InputStream

_READ_BYTES = 1 << 20  # 1 MiB


class SplitFile(InputFile):
    """Consecutive lines of a text file, or some row groups of a Parquet file.

    It has the name of the whole file, and its rows have the numbers that they have there.
    """

    def __init__(
        self,
        whole: InputFile,
        *,
        lines: range | None = None,
        header: bytes = b"",
        groups: range | None = None,
    ) -> None:
        """`lines`: the byte range of whole lines in uncompressed text, with `header` read before them;
        `groups`: row groups."""
        super().__init__(whole.location)
        self.is_remote = whole.is_remote
        self.whole = whole
        self.row_groups = groups
        self._lines, self._header = lines, header

    def __str__(self) -> str:
        return str(self.whole)

    @property
    def state(self) -> FileState:
        """The state of the whole file, from before it was cut."""
        return self.whole.state

    @property
    def size(self) -> int:
        return self.whole.size if self._lines is None else len(self._header) + len(self._lines)

    def open(self) -> io.BufferedReader:
        if self._lines is None:
            return self.whole.open()
        return io.BufferedReader(_LineStream(self.whole, self._header, self._lines), _READ_BYTES)

    def seekable(self) -> Any:
        return self.whole.seekable()

    def line_number(self, line: int) -> int:
        first = 1 if self._header else 0
        return line if line <= first else line + self._lines_before - first

    @cached_property
    def _lines_before(self) -> int:
        """How many lines of the file come before these, for which the file is read."""
        remaining = 0 if self._lines is None else self._lines.start
        count = 0
        with closing(self.whole.open()) as file:
            while remaining and (data := file.read(min(remaining, _READ_BYTES))):
                count += data.count(b"\n")
                remaining -= len(data)
        return count

    def _state_now(self, opened: io.BufferedReader | None = None) -> FileState:
        return self.whole._state_now()


class _LineStream(InputStream):
    """The header of a text file, then a range of its lines."""

    def __init__(self, whole: InputFile, header: bytes, lines: range) -> None:
        self._header, self._stop = header, len(header) + len(lines)
        self._whole = whole
        self._body = whole.seekable() if whole.is_remote else whole.open()
        self._body.seek(lines.start)

    def _read(self, target: memoryview) -> int:
        if self._at < len(self._header):
            count = min(len(target), len(self._header) - self._at)
            target[:count] = self._header[self._at : self._at + count]
            return count
        count = min(len(target), self._stop - self._at)
        if count and not (count := self._body.readinto(target[:count])):
            self._whole.require_unchanged()
            raise DataError(f"{self._whole}: cannot be read to its end; if it was cut short, fetch it again.")
        return count

    def close(self) -> None:
        self._body.close()
        super().close()
