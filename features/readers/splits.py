"""`file_splits`: raw files cut into parts of about equal size, which tasks can read side by side."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import closing

from ctr.features.inputs import InputFile, SplitFile
from ctr.features.readers.opening import format_of, open_reader
from ctr.features.spec import FORMATS, FeatureSpec
from ctr.features.text import BYTE_ORDER_MARK, is_compressed


def file_splits(files: Sequence[InputFile], spec: FeatureSpec, split_bytes: int) -> list[list[InputFile]]:
    """Of each file, its splits in the order of their rows, of about `split_bytes` or as it has to be.

    Uncompressed text is cut behind lines, unless cells in quotes may hold line ends, and Parquet between row
    groups. Compressed text and Arrow files are read by one task each. Raises DataError.
    """
    return [list(_splits_of(file, spec, split_bytes)) for file in files]


def _splits_of(file: InputFile, spec: FeatureSpec, split_bytes: int) -> Iterator[InputFile]:
    of_file = format_of(file) or FORMATS[spec.source.format]
    if file.size > split_bytes and file.chosen_rows is None:
        if of_file.name == "parquet":
            return _groups_of(file, split_bytes)
        if of_file.name != "arrow" and not spec.source.quote and not is_compressed(file):
            open_reader(file, spec, "required").close()  # which looks at the first bytes, that splits lack
            header = of_file.name == "delimited" and spec.source.header
            return _lines_of(file, split_bytes, has_header=header)
    return iter([file])


def _groups_of(file: InputFile, split_bytes: int) -> Iterator[InputFile]:
    from pyarrow import parquet

    metadata = parquet.read_metadata(file.seekable())
    sizes = [metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups)]
    most = split_bytes * sum(sizes) // file.size  # `split_bytes` is of the file, where they are compressed
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


def _opened(file: InputFile) -> io.BufferedReader:
    """To be read at any place."""
    return io.BufferedReader(file.seekable()) if file.is_remote else file.open()


def _header(opened: io.BufferedReader, has_header: bool) -> bytes:
    """Read what comes before the rows, and return the header, if there is one."""
    if opened.read(len(BYTE_ORDER_MARK)) != BYTE_ORDER_MARK:
        opened.seek(0)
    return opened.readline() if has_header else b""


def _bounds(file: InputFile, first: int, split_bytes: int) -> list[int]:
    """The ends of parts of about `split_bytes` of what comes from the byte `first` on."""
    count = -(-file.size // split_bytes)
    places = (number * file.size // count for number in range(1, count))
    return [first, *(at for at in places if at > first), file.size]


def _line_end(opened: io.BufferedReader, at: int) -> int | None:
    """The first end of a line behind `at` that has text on both sides; None if there is none.

    Empty lines at the end of a file are no rows, and those in its middle are.
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
