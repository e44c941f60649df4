"""Which raw rows became rows of a data set: `RowNote` records it, `raw_rows` reads these rows again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ctr.errors import DataError
from ctr.features.dataset.manifest import RAW_ROWS, DatasetManifest, RawFileEntry
from ctr.features.folder import read_verified
from ctr.features.inputs import ChosenRows, InputFile, LocalFile, StandardInput, input_files, is_uri

_BATCH_ROWS = 1 << 20
"""Rows of every batch in the file; the last may have fewer."""
_SCHEMA = pa.schema([pa.field("kept", pa.bool_(), nullable=False)])


class RowNote:
    """Records which rows of raw files a build leaves out.

    One bit per row, compressed: a run of rows that are all left out, or all kept, takes almost no space.
    """

    def __init__(self) -> None:
        self._done = pa.BufferOutputStream()
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        self._file = pa.ipc.new_file(self._done, _SCHEMA, options=options)
        self._first = 0
        self._kept = np.ones(_BATCH_ROWS, np.bool_)
        self._left_out = 0

    def leave_out(self, positions: NDArray[np.int64]) -> None:
        """The rows at these positions are left out; they are ascending and follow those of earlier calls."""
        self._left_out += positions.size
        while positions.size:
            inside = int(np.searchsorted(positions, self._first + _BATCH_ROWS))
            self._kept[positions[:inside] - self._first] = False
            positions = positions[inside:]
            if positions.size:
                self._end_batch(_BATCH_ROWS)

    def content(self, rows: int) -> bytes | None:
        """The file's content for `rows` raw rows; None if no row was left out. Call it once."""
        while self._left_out and self._first < rows:
            self._end_batch(min(_BATCH_ROWS, rows - self._first))
        self._file.close()
        return self._done.getvalue().to_pybytes() if self._left_out else None

    def _end_batch(self, rows: int) -> None:
        bits = pa.py_buffer(np.packbits(self._kept[:rows], bitorder="little"))
        kept = pa.Array.from_buffers(pa.bool_(), rows, [None, bits])
        self._file.write_batch(pa.record_batch([kept], schema=_SCHEMA))
        self._kept[:] = True
        self._first += rows


def raw_file_entries(files: Sequence[InputFile], rows: Sequence[int]) -> tuple[RawFileEntry, ...] | None:
    """The manifest's entries for raw files with these numbers of rows; None if they cannot be read again."""
    if any(isinstance(file, StandardInput) or not _is_text(file.location) for file in files):
        return None
    return tuple(
        RawFileEntry(location=file.location, rows=count, bytes=file.size, modified_ns=file.state.modified_ns)
        for file, count in zip(files, rows, strict=True)
    )


def _is_text(path: str) -> bool:
    """Whether JSON can represent it."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def raw_rows(folder: Path, name: str, manifest: DatasetManifest, why: str) -> list[InputFile]:
    """The raw rows of a data set's examples, in the same order, as files for a `RawSource`.

    `folder` has the data set's files; `name` is the user's name for it. Raises DataError, which says `why`
    the rows are needed, if the data set does not know them, or if a file is missing or has changed.
    """
    entries = manifest.raw_files
    if manifest.shuffled is not None:
        raise DataError(
            f"{name}: {why}, and as the data set was built with --shuffle, its rows cannot be found in the"
            " raw files; build it without, or give raw files if the model has no windows."
        )
    if entries is None:
        raise DataError(
            f"{name}: {why}, and the data set does not say which raw rows it was built from (an earlier"
            " version did not note them, nor does a build from standard input); build it again from files, or"
            " give those if the model has no windows."
        )
    chosen = _Chosen(folder, name, manifest)
    files = [_unchanged(name, each, why) for each in entries]
    starts = accumulate((each.rows for each in entries), initial=0)
    for file, each, start in zip(files, entries, starts, strict=False):
        file.chosen_rows = ChosenRows(each.rows, partial(chosen.of, start), f"the data set {name}")
    return files


def _unchanged(name: str, entry: RawFileEntry, why: str) -> InputFile:
    """A raw file, which must not have changed since the data set was built.

    Compares size and time only: device and file numbers change when a file system is mounted again, and
    between machines.
    """
    again = "restore the file, or build the data set again."
    try:
        file = input_files([entry.location])[0] if is_uri(entry.location) else LocalFile(Path(entry.location))
        now = file.state
    except DataError as error:
        raise DataError(f"{name}: {why}, but {str(error).removesuffix('.')}; {again}") from None
    if change := replace(now, size=entry.bytes, modified_ns=entry.modified_ns).change(now):
        raise DataError(f"{name}: {why}, but {file}: {change} since the data set was built; {again}")
    return file


class _Chosen:
    """Which rows of all raw files became examples."""

    def __init__(self, folder: Path, name: str, manifest: DatasetManifest) -> None:
        """Raises DataError if the file that says so is torn, or does not fit the manifest."""
        self._batches: pa.ipc.RecordBatchFileReader | None = None
        place, total = folder / RAW_ROWS, sum(each.rows for each in manifest.raw_files or ())
        again = "build the data set again"
        if manifest.raw_rows_sha256 is None:
            if total != manifest.rows:
                raise DataError(f"{name}/{RAW_ROWS}: torn or changed since it was written; {again}.")
        else:
            content = read_verified(place, manifest.raw_rows_sha256, again)
            self._batches = pa.ipc.open_file(pa.BufferReader(content))

    def of(self, start: int, first: int, last: int) -> NDArray[np.bool_]:
        """Which rows `first..last-1` of a file are chosen; its first row is row `start` of all."""
        if self._batches is None:
            return np.ones(last - first, np.bool_)
        low, high = start + first, start + last
        numbers = range(low // _BATCH_ROWS, -(-high // _BATCH_ROWS))
        batches = [self._batch(number) for number in numbers]
        base = low - low % _BATCH_ROWS
        return np.concatenate([np.empty(0, np.bool_), *batches])[low - base : high - base]

    def _batch(self, number: int) -> NDArray[np.bool_]:
        assert self._batches is not None
        kept = self._batches.get_batch(number).column(0)
        return np.unpackbits(
            np.frombuffer(kept.buffers()[1], np.uint8), count=len(kept), bitorder="little"
        ).view(np.bool_)
