"""`TextFile`: a text file, compressed or not, as whole lines in one buffer."""

from __future__ import annotations

import zlib
from lzma import LZMAError
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ctr.errors import DataError
from features.text.file_kind import Stream, decompressed, require_text
from features.text.scanner_kernels import PADDING

READ_BYTES = 1 << 20  # 1 MiB: about what the scanner can split before it leaves the second-level cache
ROW_BYTES = 64 << 20  # 64 MiB
_LINE_ENDS = b"\r\n"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class TextFile:
    """The lines `buffer[begin:end]`, to be taken from the front by moving `begin`; `fill` reads on.

    Empty lines at the end of the file are left out, unless `keeps_empty` is set, and the last line always
    ends with a newline. All errors are DataErrors that name the file.
    """

    path: Path
    buffer: NDArray[np.uint8]
    """uint8; `PADDING` bytes follow the lines. It is replaced, or its content moved, by `fill`."""
    spare: int
    """Where in `buffer` room for `end - begin` bytes of the caller's own begins."""
    begin: int
    end: int
    is_last: bool
    """Whether the file has nothing after `end`."""
    line: int
    """The number of the line at `begin`, from 1; kept by the caller."""
    keeps_empty: bool
    """Whether empty lines at the end are rows like those in the middle; set by the caller."""

    def __init__(self, path: Path, read_bytes: int = READ_BYTES) -> None:
        """Opens the file and reads its first lines; an empty file is an error."""
        self.path = path
        self.begin = self.end = 0
        self.is_last = False
        self.line = 1
        self.keeps_empty = False
        self._filled = 0
        self._allocate(read_bytes)
        try:
            self._raw = path.open("rb")
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({error.strerror}).") from None
        self._size = max(path.stat().st_size, 1)
        self._stream: Stream = self._raw
        try:
            self._stream = decompressed(path, self._raw)
            self._read()
            require_text(path, self.text(0, self._filled))
            if not self.end and not self.fill():
                raise DataError(f"{path}: the file is empty; give one with rows, or leave it out.")
            if self.is_last:
                require_text(path, self.text(0, self.end - 1), whole=True)
        except BaseException:
            self.close()
            raise
        if self._bytes.startswith(_BYTE_ORDER_MARK, self.begin):
            self.begin += len(_BYTE_ORDER_MARK)

    def close(self) -> None:
        self._stream.close()
        self._raw.close()

    @property
    def fraction(self) -> float:
        """How much of the file, by its size on disk, has been read: 0 to 1."""
        return 1.0 if self.is_last else min(self._raw.tell() / self._size, 1.0)

    def fill(self) -> bool:
        """Keeps the lines not taken yet and adds further ones; False if there are none."""
        if self.is_last:
            return False
        kept = self._filled - self.begin
        if kept > self._capacity // 2:
            self._grow()
        elif self.begin:
            self.buffer[:kept] = self.buffer[self.begin : self._filled]
        self._filled = kept
        known = self.end - self.begin
        self.begin, self.end = 0, known
        while self.end == known and not self.is_last:
            if self._filled == self._capacity:
                self._grow()
            self._read()
        return self.end > known

    def take_line(self) -> bytes:
        """The line at `begin`, without its end; `begin` moves behind it."""
        start, self.begin = self.begin, self._bytes.find(b"\n", self.begin) + 1
        self.line += 1
        return self.text(start, self.begin).rstrip(_LINE_ENDS)

    def text(self, start: int, end: int) -> bytes:
        return bytes(memoryview(self._bytes)[start:end])

    def _allocate(self, capacity: int) -> None:
        self._capacity = capacity
        self.spare = capacity + PADDING
        self._bytes = bytearray(self.spare + capacity + PADDING)
        self.buffer = np.frombuffer(self._bytes, np.uint8)

    def _grow(self) -> None:
        if self._capacity >= ROW_BYTES:
            raise DataError(
                f"{self.path}:{self.line}: the row does not end within {ROW_BYTES >> 20} MiB; is this the"
                f" right kind of file, or does a quote lack its partner?"
            )
        old, start, filled = self.buffer, self.begin, self._filled
        self._allocate(2 * self._capacity)
        self.buffer[: filled - start] = old[start:filled]

    def _read(self) -> None:
        room = memoryview(self._bytes)[self._filled : self._capacity]
        try:
            count = self._stream.readinto(room)
        except (OSError, EOFError, ValueError, zlib.error, LZMAError) as error:
            reason = getattr(error, "strerror", None) or error
            raise DataError(f"{self.path}: cannot be read to its end ({reason}).") from None
        self._filled += count
        self.is_last = count == 0
        # What is left of the text without the line ends at its end; they may turn out to be empty lines.
        filled = self._filled
        text = filled if self.is_last else self._bytes.rfind(b"\n", self.begin, filled) + 1
        if self.keeps_empty:
            if self.is_last and text > self.begin and self._bytes[text - 1] != _LINE_ENDS[1]:
                self._bytes[text] = _LINE_ENDS[1]
                text += 1
            self.end = max(text, self.end)
            return
        while text > self.begin and self._bytes[text - 1] in _LINE_ENDS:
            text -= 1
        if text <= self.begin:
            return
        if self.is_last:
            self._bytes[text] = _LINE_ENDS[1]
            self.end = text + 1
        else:
            self.end = self._bytes.find(b"\n", text) + 1
