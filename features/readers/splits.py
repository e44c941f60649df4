"""`file_splits`: raw files cut into splits of about equal size, which tasks can read in parallel.

`count_splits`, `splits_at`: splits with known numbers of rows, found in one pass over a file.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from ctr.features.inputs import InputFile, SplitFile
from ctr.features.readers.opening import format_of, open_reader
from ctr.features.spec import FORMATS, FeatureSpec
from ctr.features.text import (
    BYTE_ORDER_MARK,
    QUOTE_STATES,
    READ_BYTES,
    ROW,
    follow_quotes,
    is_compressed,
    quote_steps,
)

if TYPE_CHECKING:
    from pyarrow.parquet import FileMetaData

    from ctr.features.lines import Labels

SplitRows = tuple[int, int]
"""The first byte or row group of a split, and how many rows it has."""


@dataclass(frozen=True, slots=True)
class FollowedLines:
    """The result of following a piece of text, for each state in which it may begin (see `follow_quotes`)."""

    states: Sequence[int]
    """The state at the end of the piece."""
    rows: Sequence[int]
    """The first of its bytes before which the text can be cut; -1 if there is none."""


def file_splits(
    files: Sequence[InputFile],
    spec: FeatureSpec,
    split_bytes: int,
    follow: Callable[[Sequence[InputFile]], Sequence[FollowedLines]],
) -> list[list[InputFile]]:
    """The splits of each file, in row order, of about `split_bytes` or as its format allows.

    Uncompressed text is cut between rows, and Parquet between row groups. Compressed text and Arrow files are
    not cut. If quoted cells may contain line ends, `follow` must run `follow_lines` for each of the pieces
    that it gets. Raises DataError.
    """
    by_file = [_splits_of(file, spec, split_bytes) for file in files]
    quoted = [each for each in by_file if isinstance(each, _QuotedText)]
    followed = iter(follow([piece for text in quoted for piece in text.pieces()]) if quoted else ())
    return [list(each.splits(followed) if isinstance(each, _QuotedText) else each) for each in by_file]


def count_splits(file: InputFile, spec: FeatureSpec, labels: Labels, split_bytes: int) -> list[SplitRows]:
    """The splits of a file, of `split_bytes` or a little more, and how many rows each has.

    The file is cut as by `file_splits`; its text is read once, to its end. Raises DataError.
    """
    of_file = format_of(file) or FORMATS[spec.source.format]
    is_part = isinstance(file, SplitFile) or file.chosen_rows is not None
    if is_part or of_file.name == "arrow" or is_compressed(file):
        with closing(open_reader(file, spec, labels)) as reader:
            return [(0, reader.count_rows())]
    if of_file.name == "parquet":
        metadata = _metadata(file)
        groups = [each.row_groups or range(0) for each in _groups_of(file, split_bytes)]
        rows = [sum(metadata.row_group(group).num_rows for group in each) for each in groups]
        return [(each.start, count) for each, count in zip(groups, rows, strict=True) if count] or [(0, 0)]
    splits: list[SplitRows] = []
    ends_with_text = False
    with closing(of_file.open(file, spec, labels)) as reader:
        for piece in reader.pieces([]):
            lines = piece.lines
            if not splits or (ends_with_text and lines.offset - splits[-1][0] >= split_bytes):
                splits.append((lines.offset, piece.rows))
            else:
                splits[-1] = splits[-1][0], splits[-1][1] + piece.rows
            # Empty lines are rows in the middle of a file, but not at its end.
            before_end = lines.text(max(lines.end - 3, lines.begin), lines.end - 1).rstrip(b"\r")
            ends_with_text = before_end[-1:] not in (b"", b"\n")
    return splits


def splits_at(file: InputFile, spec: FeatureSpec, starts: Sequence[int]) -> list[InputFile]:
    """The splits of a file that `count_splits` found to begin at these places."""
    if len(starts) < 2:
        return [file]
    if (of_file := format_of(file) or FORMATS[spec.source.format]).name == "parquet":
        bounds = pairwise([*starts, _metadata(file).num_row_groups])
        return [SplitFile(file, groups=range(*each)) for each in bounds]
    with closing(_opened(file)) as opened:
        header = _header(opened, of_file.name == "delimited" and spec.source.header)
    return [SplitFile(file, lines=range(*each), header=header) for each in pairwise([*starts, file.size])]


def follow_lines(delimiter: str, piece: InputFile) -> FollowedLines:
    """Follows a piece of text from each state in which it may begin."""
    steps, buffer = quote_steps(delimiter), np.empty(READ_BYTES, np.uint8)
    states, rows = np.arange(QUOTE_STATES), np.full(QUOTE_STATES, -1)
    at = 0
    with closing(piece.open()) as opened:
        while size := opened.readinto(buffer.data):
            before = states.copy()
            for state in set(before.tolist()):  # soon only one or two are left
                states[before == state], row = follow_quotes(buffer, size, state, steps)
                if row >= 0:
                    rows[(before == state) & (rows < 0)] = at + row
            at += size
    piece.require_unchanged()
    return FollowedLines(states.tolist(), rows.tolist())


@dataclass(frozen=True, slots=True)
class _QuotedText:
    """A text file with cells that may be quoted."""

    file: InputFile
    header: bytes
    bounds: Sequence[int]
    """Bounds of pieces of about the size of a split, in bytes, from the first row to the end."""

    def pieces(self) -> Iterator[InputFile]:
        return (SplitFile(self.file, lines=range(*each)) for each in pairwise(self.bounds))

    def splits(self, followed: Iterator[FollowedLines]) -> Iterator[InputFile]:
        """The text, cut between rows; `followed` gives the results of its pieces next."""
        first, *others, end = self.bounds
        state = next(followed).states[ROW]
        cuts = [first]
        for begin, piece in zip(others, followed, strict=False):
            if piece.rows[state] >= 0:
                cuts.append(begin + piece.rows[state])
            state = piece.states[state]
        for lines in pairwise([*cuts, end]):
            yield SplitFile(self.file, lines=range(*lines), header=self.header)


def _splits_of(file: InputFile, spec: FeatureSpec, split_bytes: int) -> Iterator[InputFile] | _QuotedText:
    of_file = format_of(file) or FORMATS[spec.source.format]
    if file.size > split_bytes and file.chosen_rows is None:
        if of_file.name == "parquet":
            return _groups_of(file, split_bytes)
        if of_file.name != "arrow" and not is_compressed(file):
            open_reader(file, spec, "required").close()  # checks the file's first bytes, which splits lack
            delimited = of_file.name == "delimited"
            cut = _quoted_text if delimited and spec.source.quote else _lines_of
            return cut(file, split_bytes, has_header=delimited and spec.source.header)
    return iter([file])


def _metadata(file: InputFile) -> FileMetaData:
    from pyarrow import parquet

    return parquet.read_metadata(file.seekable())


def _groups_of(file: InputFile, split_bytes: int) -> Iterator[InputFile]:
    metadata = _metadata(file)
    sizes = [metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups)]
    most = split_bytes * sum(sizes) // file.size  # `split_bytes` counts compressed bytes
    first = group_bytes = 0
    for group, size in enumerate(sizes):
        if group > first and group_bytes + size > most:
            yield SplitFile(file, groups=range(first, group))
            first, group_bytes = group, 0
        group_bytes += size
    yield SplitFile(file, groups=range(first, len(sizes)))


def _lines_of(file: InputFile, split_bytes: int, *, has_header: bool) -> Iterator[InputFile]:
    with closing(_opened(file)) as opened:
        header = _header(opened, has_header)
        first, *others, end = _bounds(file, opened.tell(), split_bytes)
        for at in others:
            cut = _line_end(opened, at)
            if cut is not None and cut > first:
                yield SplitFile(file, lines=range(first, cut), header=header)
                first = cut
    yield SplitFile(file, lines=range(first, end), header=header)


def _quoted_text(file: InputFile, split_bytes: int, *, has_header: bool) -> _QuotedText:
    with closing(_opened(file)) as opened:
        header = _header(opened, has_header)
        return _QuotedText(file, header, _bounds(file, opened.tell(), split_bytes))


def _opened(file: InputFile) -> io.BufferedReader:
    """A file in which one can seek."""
    return io.BufferedReader(file.seekable()) if file.is_remote else file.open()


def _header(opened: io.BufferedReader, has_header: bool) -> bytes:
    """Reads up to the first row; returns the header, if there is one."""
    if opened.read(len(BYTE_ORDER_MARK)) != BYTE_ORDER_MARK:
        opened.seek(0)
    return opened.readline() if has_header else b""


def _bounds(file: InputFile, first: int, split_bytes: int) -> list[int]:
    """The bounds of pieces of about `split_bytes`, from byte `first` to the end of the file."""
    count = -(-file.size // split_bytes)
    places = (number * file.size // count for number in range(1, count))
    return [first, *(at for at in places if at > first), file.size]


def _line_end(opened: io.BufferedReader, at: int) -> int | None:
    """The first end of a line after `at` with text in the lines on both sides; None if there is none.

    Empty lines are rows in the middle of a file, but not at its end.
    """
    opened.seek(at)
    has_text = not _is_blank(opened.readline())
    while True:
        end = opened.tell()
        if not (line := opened.readline()):
            return None
        if has_text and not _is_blank(line):
            return end
        has_text = not _is_blank(line)


def _is_blank(line: bytes) -> bool:
    return not line.strip(b"\r\n")
