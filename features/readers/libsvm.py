"""`LibsvmReader`: rows of `label index:value index:value ...`, the format of libsvm and svmlight."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ctr.errors import DataError
from features.batches import BatchBuilder
from features.readers.libsvm_kernels import BAD_VALUE, QUERY, parse_rows, split_lines
from features.spec import FeatureSpec
from features.text import READ_BYTES, TextFile, count_lines
from features.transform import BAD_LABEL, MINUS_LABEL, ZERO_LABEL, Transform, hash_bytes

_ROWS = 2048
_BYTES_PER_FEATURE = 4  # at least: `1:1` and a space or newline


_REASONS = {
    BAD_LABEL: "no label (0 or 1, or -1 or 1)",
    MINUS_LABEL: "a label of -1 where other rows have 0",
    ZERO_LABEL: "a label of 0 where other rows have -1",
    QUERY: "query ids",
    BAD_VALUE: "a value that is no finite number",
}


@dataclass(frozen=True, slots=True)
class LibsvmBlock:
    """Rows of a libsvm file, found but not parsed yet."""

    file: TextFile
    spec: FeatureSpec
    labelled: bool
    """Whether a row begins with a label to be read; if not, a label that is there is skipped."""
    starts: NDArray[np.int32]
    """int32[rows]: where in the file's buffer each row begins."""
    ends: NDArray[np.int32]
    """int32[rows]: where it ends, after its newline."""
    status: NDArray[np.uint8]
    token: NDArray[np.int32]
    """int32[rows]: where in the buffer the token is that makes the row bad."""

    def fill(self, builder: BatchBuilder, first: int, last: int) -> int:
        last = min(last, first + builder.room)
        if last == first:
            return first
        size = int(self.ends[last - 1]) - int(self.starts[first])
        builder.reserve(size // _BYTES_PER_FEATURE + 2 * (last - first))
        done, builder.rows = map(
            int,
            parse_rows(
                self.file.buffer,
                self.starts,
                first,
                last,
                self.labelled,
                self.spec.bias,
                np.uint64(hash_bytes(b"index", self.spec.seed)),
                np.uint64((1 << self.spec.bits) - 1),
                self.status,
                self.token,
                builder.indptr,
                builder.slots,
                builder.values,
                builder.labels,
                builder.no_click,
                builder.rows,
            ),
        )
        return done

    def place(self, row: int) -> str:
        line = self.file.line + int(count_lines(self.file.buffer, self.file.begin, int(self.starts[row])))
        return f"{self.file.path}:{line}"

    def problem(self, row: int) -> str:
        rest = self.file.text(int(self.token[row]), min(int(self.ends[row]), int(self.token[row]) + 80))
        token = (rest.partition(b"#")[0].split() or [b""])[0].decode("utf-8", "backslashreplace")
        status = int(self.status[row])
        if status == BAD_LABEL:
            return f"label: found {token!r}, expected 0 or 1, or -1 or 1"
        if status == MINUS_LABEL:
            return f"label: found {token!r}, but other rows have 0 or 1; write all labels one way"
        if status == ZERO_LABEL:
            return f"label: found {token!r}, but other rows have -1 or 1; write all labels one way"
        if status == QUERY:
            return f"found {token!r}: ranking data with query ids is not supported, expected index:value"
        if status == BAD_VALUE:
            return f"found {token!r}, expected a finite number after the colon"
        return f"found {token!r}, expected index:value with a whole number as index"

    def reason(self, row: int) -> str:
        return _REASONS.get(int(self.status[row]), "no index:value with a whole number as index")

    def raw(self, row: int) -> bytes:
        return self.file.text(int(self.starts[row]), int(self.ends[row]))


class LibsvmReader:
    """Reads a libsvm file. Blank lines are no data, nor is everything from the first `#` of a line on.

    The feature `index:value` has the slot of XXH64 of the index's 8 little-endian bytes, seeded by XXH64 of
    "index" with the spec's seed; zero values are left out.
    """

    def __init__(self, path: Path, spec: FeatureSpec, *, read_bytes: int = READ_BYTES) -> None:
        """Opens the file. `read_bytes`: how much to read at a time."""
        self._path = path
        self._spec = spec
        self._file = TextFile(path, read_bytes)

    def close(self) -> None:
        self._file.close()

    @property
    def fraction(self) -> float:
        return self._file.fraction

    def require(self, transform: Transform) -> None:
        """Does nothing: whether a row has its label shows only when it is read."""

    def blocks(self, transform: Transform) -> Iterator[LibsvmBlock]:
        rows = 0
        for starts, ends in self._split():
            rows += starts.size
            status, token = np.zeros(starts.size, np.uint8), np.zeros(starts.size, np.int32)
            yield LibsvmBlock(self._file, self._spec, transform.with_label, starts, ends, status, token)
        if rows == 0:
            raise DataError(f"{self._path}: there are no rows, only comments; leave the file out.")

    def count_rows(self) -> int:
        return sum(starts.size for starts, _ in self._split())

    def _split(self) -> Iterator[tuple[NDArray[np.int32], NDArray[np.int32]]]:
        """Start and end of the rows, block by block."""
        file = self._file
        starts, ends = np.zeros(_ROWS, np.int32), np.zeros(_ROWS, np.int32)
        while True:
            rows, begin = split_lines(file.buffer, file.begin, file.end, starts, ends)
            if rows:
                yield starts[:rows], ends[:rows]
            file.line += int(count_lines(file.buffer, file.begin, int(begin)))
            file.begin = int(begin)
            if file.begin == file.end:
                if file.is_last:
                    return
                file.fill()
