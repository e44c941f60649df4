"""`TextFile`: a text file, compressed or not, as whole lines in a buffer; `Lines`: some of them."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from lzma import LZMAError

import numpy as np
from numpy.typing import NDArray

from ctr.errors import DataError
from ctr.features.inputs import InputFile, SplitFile
from ctr.features.text.file_kind import Stream, decompressed, require_text
from ctr.features.text.scanner_kernels import PADDING, count_lines, last_line_end

READ_BYTES = 1 << 20  # 1 MiB: about what the scanner can split before it leaves the second-level cache
ROW_BYTES = 64 << 20  # 64 MiB
_LINE_ENDS = b"\r\n"
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Lines:
    """The lines `buffer[begin:end]` of a text file."""

    path: InputFile
    buffer: NDArray[np.uint8]
    """uint8; `PADDING` bytes follow the lines."""
    begin: int
    end: int
    spare: int
    """Where scratch space for the caller begins in `buffer`: `end - begin` bytes."""
    line: int
    """The number of the first line, from 1."""
    is_last: bool
    """Whether the file ends after these lines."""
    offset: int
    """How many bytes of the file's text come before them."""

    def text(self, start: int, end: int) -> bytes:
        return self.buffer[start:end].tobytes()

    def place(self, start: int) -> str:
        """Where in the file the line at `start` is, such as `clicks.tsv:17`."""
        line = self.line + int(count_lines(self.buffer, self.begin, start))
        return f"{self.path}:{self.path.line_number(line)}"


class TextFile:
    """The lines of a file: `lines` are those in the buffer, `take` removes some of them, `fill` reads more.

    Empty lines at the end of the file are left out, unless `keeps_empty` is set, and the last line always
    ends with a newline. Lines that were taken stay valid. All errors are DataErrors that name the file.
    """

    path: InputFile
    begin: int
    end: int
    is_last: bool
    """Whether the file ends at `end`."""
    line: int
    """The number of the line at `begin`, from 1."""
    keeps_empty: bool
    """Whether empty lines at the end of the file are rows, as elsewhere in it; set by the caller."""

    def __init__(self, path: InputFile, read_bytes: int = READ_BYTES, *, json: bool = False) -> None:
        """Opens the file and reads its first lines; an empty file is an error. `json`: lines of JSON."""
        self.path = path
        self.begin = self.end = 0
        self.is_last = False
        self.line = 1
        self.keeps_empty = False
        self._filled = self._read_bytes = 0
        self._shared = False  # whether lines of the buffer were taken
        # At the end of every buffer, where `ctr.features.readers.file_reader` has them as cells.
        self._constants = np.frombuffer(b"".join(path.partition_columns.values()), np.uint8)
        self._allocate(read_bytes)
        self._raw = path.open()
        self._stream: Stream = self._raw
        is_split = isinstance(path, SplitFile)  # its first bytes do not tell the kind of the file
        try:
            if not is_split:
                self._stream = decompressed(path, self._raw)
            self._read()
            if not is_split:
                require_text(path, self._text(0, self._filled), json=json)
            if not self.end and not self.fill():
                raise DataError(f"{path}: the file is empty; give one with rows, or leave it out.")
            if self.is_last and not is_split:
                require_text(path, self._text(0, self.end - 1), whole=True, json=json)
        except BaseException:
            self.close()
            raise
        if not is_split and self._text(self.begin, self.begin + len(BYTE_ORDER_MARK)) == BYTE_ORDER_MARK:
            self.begin += len(BYTE_ORDER_MARK)

    def close(self) -> None:
        self._stream.close()
        self._raw.close()

    @property
    def fraction(self) -> float:
        """The fraction of the file's bytes that has been read, 0 to 1; 0 if it is unknown."""
        if self.is_last:
            return 1.0
        return min(self._raw.tell() / self.path.size, 1.0) if self.path.size else 0.0

    @property
    def lines(self) -> Lines:
        """The lines in the buffer; valid until `fill`."""
        return self._lines(self.end, self.is_last)

    def take(self, end: int, count: int | None = None) -> Lines:
        """Removes and returns the lines up to `end`, which stay valid; `count`: their number, if known."""
        lines = self._lines(end, self.is_last and end == self.end)
        self.line += int(count_lines(self._buffer, self.begin, end)) if count is None else count
        self.begin, self._shared = end, True
        return lines

    def take_line(self) -> bytes:
        """Removes and returns the line at `begin`, without its line end."""
        length = self._text(self.begin, self.end).index(b"\n") + 1
        line = self._text(self.begin, self.begin + length)
        self.begin += length
        self.line += 1
        return line.rstrip(_LINE_ENDS)

    def fill(self) -> bool:
        """Reads more lines after those in the buffer; False at the end of the file."""
        if self.is_last:
            return False
        unread, whole = self._filled - self.begin, self.end - self.begin
        if unread > self._capacity // 2:
            self._grow()
        elif self._shared:
            self._move(self._capacity)
        elif self.begin:
            self._buffer[:unread] = self._buffer[self.begin : self._filled]
            self._filled = unread
        self.begin, self.end = 0, whole
        while self.end == whole and not self.is_last:
            if self._filled == self._capacity:
                self._grow()
            self._read()
        return self.end > whole

    def _lines(self, end: int, is_last: bool) -> Lines:
        offset = self._read_bytes - self._filled + self.begin
        return Lines(self.path, self._buffer, self.begin, end, self._spare, self.line, is_last, offset)

    def _text(self, start: int, end: int) -> bytes:
        return self._buffer[start:end].tobytes()

    def _allocate(self, capacity: int) -> None:
        self._capacity = capacity
        self._spare = capacity + PADDING
        size = self._spare + capacity + PADDING
        self._buffer = np.empty(size + self._constants.size, np.uint8)
        self._buffer[size:] = self._constants
        self._shared = False

    def _move(self, capacity: int) -> None:
        """Continues in a new buffer, with the text of the old one that was not taken."""
        unread = self._buffer[self.begin : self._filled]
        self._allocate(capacity)
        self._buffer[: unread.size] = unread
        self.begin, self.end, self._filled = 0, self.end - self.begin, unread.size

    def _grow(self) -> None:
        if self._capacity >= ROW_BYTES:
            line = self.path.line_number(self.line)
            raise DataError(
                f"{self.path}:{line}: the row does not end within {ROW_BYTES >> 20} MiB; is this the"
                f" right kind of file, or does a quote lack its partner (if quotes"
                " are text, set quote: false in the spec's source)?"
            )
        self._move(2 * self._capacity)

    def _read(self) -> None:
        target = self._buffer[self._filled : self._capacity].data
        try:
            count = self._stream.readinto(target)
        except (OSError, EOFError, ValueError, zlib.error, LZMAError) as error:
            reason = getattr(error, "strerror", None) or error
            raise DataError(
                f"{self.path}: cannot be read to its end ({reason}); if it was cut short, fetch it again."
            ) from None
        self._filled += count
        self._read_bytes += count
        self.is_last = count == 0
        if self.is_last:
            self.path.require_unchanged(self._raw)
        buffer, filled = self._buffer, self._filled
        # Up to the line ends at the end of the text, which may turn out to be empty lines.
        text = filled if self.is_last else int(last_line_end(buffer, self.begin, filled))
        if self.keeps_empty:
            if self.is_last and text > self.begin and buffer[text - 1] != _LINE_ENDS[1]:
                buffer[text] = _LINE_ENDS[1]
                text += 1
            self.end = max(text, self.end)
            return
        while text > self.begin and buffer[text - 1] in _LINE_ENDS:
            text -= 1
        if text <= self.begin:
            return
        if self.is_last:
            buffer[text] = _LINE_ENDS[1]
        while buffer[text] != _LINE_ENDS[1]:
            text += 1
        self.end = text + 1
