"""`write_dataset`: writes examples as localized blocks into the Arrow files of a hashed data set."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from io import BufferedWriter, FileIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ctr.errors import DataError
from ctr.features.batches import Batch, Chunk, localize, slot_dtype
from ctr.features.dataset.blocks import block_of, block_schema
from ctr.features.dataset.manifest import (
    RAW_ROWS,
    DatasetManifest,
    PartEntry,
    RawFileEntry,
    require_dataset_or_nothing,
)
from ctr.features.dataset.raw_rows import RowNote
from ctr.features.dataset.unfinished import Done, Unfinished
from ctr.features.folder import replace_folders, sha256_of
from ctr.features.readable import DICTIONARY, Dictionary, dictionary_bytes
from ctr.features.spec import SPEC, FeatureSpec, spec_files
from ctr.features.threads import in_order
from ctr.features.windows import Windows, write_windows

BLOCK_ROWS = 65_536
BLOCKS_PER_PART = 4
"""A reader maps one part at a time, so this limits the memory of its pages."""


def write_dataset(
    batches: Iterable[Batch | Chunk], spec: FeatureSpec, out: str | Path, *, block_rows: int = BLOCK_ROWS
) -> DatasetManifest:
    """Writes examples as the hashed data set `out`, a folder that appears complete or not at all.

    Uses `DatasetDraft`; an older data set at `out` stays until the new one is on disk. Raises DataError if
    there is no row, `out` holds anything but a data set, or the disk refuses.
    """
    with dataset_folders([out]) as (folder,):
        draft = DatasetDraft(spec, folder, block_rows=block_rows)
        draft.write(batches)
        return draft.finish()


@contextmanager
def dataset_folders(outs: Sequence[str | Path]) -> Iterator[list[Path]]:
    """Folders for `DatasetDraft`s that become the data sets `outs` on leaving, all of them or none.

    Raises DataError if anything but a data set is there, or the disk refuses.
    """
    places = [Path(out) for out in outs]
    for place in places:
        require_dataset_or_nothing(place)
    try:
        with replace_folders(places) as folders:
            yield folders
    except OSError as error:
        replaces = any(place.exists() for place in places)
        kept = "the data set that was there is unchanged" if replaces else "nothing was left behind"
        raise DataError(
            f"{' and '.join(map(str, places))}: the data set could not be written ({error}); {kept}."
        ) from error


class DatasetDraft:
    """A data set that is being written."""

    def __init__(
        self,
        spec: FeatureSpec,
        folder: Path,
        *,
        block_rows: int = BLOCK_ROWS,
        unfinished: Unfinished | None = None,
    ) -> None:
        """Writes into `folder`, from `dataset_folders`; `spec` is the one that made the slots.

        `unfinished` has the parts of an earlier build, and keeps those of this one if it is interrupted.
        """
        self.folder = folder
        """The folder of its files once it is finished."""
        self._spec, self._unfinished = spec, unfinished
        self._block_rows = block_rows
        self._done = Done() if unfinished is None else unfinished.done.model_copy(deep=True)
        self._part: _Part | None = None

    def write(
        self,
        batches: Iterable[Batch | Chunk],
        position: Callable[[], int] = lambda: 0,
        progress: Callable[[int], None] | None = None,
    ) -> int:
        """Writes the rows after those of `unfinished`; returns the total number of rows.

        If `unfinished` has all rows, no batch is requested. Each batch becomes one block, with exactly
        `block_rows` rows; only the last may have fewer (ValueError). `position` returns how many rows of the
        input the batches so far stand for. `progress` is called with the number of rows written so far.
        """
        if self._done.ended:
            return self._done.rows
        try:
            # On a thread, while the next batch is made.
            placed = ((batch, position()) for batch in _reading(batches))
            with closing(in_order(lambda each: self._add(*each), placed, threads=1)) as written:
                for rows in written:
                    if progress is not None:
                        progress(rows)
            self._done.ended = True
            self._end_part(position())
        finally:
            if self._part is not None:
                self._part.sink.close()
        return self._done.rows

    @property
    def done(self) -> Done:
        """What has been written."""
        return self._done

    def take(self, done: Done) -> dict[str, str]:
        """Counts the parts that another draft has written, which follow those of this one.

        The caller must move their files: returns the new names by the old ones.
        """
        names = {}
        for part in done.parts:
            names[part.name] = _part_name(len(self._done.parts))
            self._done.parts.append(part.model_copy(update={"name": names[part.name]}))
        if done.rows:
            self._done.count(done)
        return names

    def finish(
        self,
        *,
        shuffled: int | None = None,
        dictionary: Dictionary | None = None,
        windows: Windows | None = None,
        windows_before: int | None = None,
        raw_files: tuple[RawFileEntry, ...] | None = None,
        row_note: RowNote | None = None,
    ) -> DatasetManifest:
        """Completes the folder. Raises DataError if there is no row.

        `shuffled`: the seed, if rows are in random order. `dictionary`: has counted the features. `windows`:
        their state after the last row; `windows_before`: how many keys they knew before the first.
        `raw_files`: where the rows come from; `row_note`: which of their rows were left out.
        """
        done, folder = self._done, self.folder
        if not done.rows:
            raise DataError("the input has no row, so there is no data set to write: check the input.")
        if self._unfinished is not None:
            self._unfinished.move_to(folder)
        for name, content in spec_files(self._spec).items():
            (folder / name).write_bytes(content)
        manifest = DatasetManifest(
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            spec_fingerprint=self._spec.fingerprint,
            bits=self._spec.bits,
            block_rows=self._block_rows,
            has_labels=bool(done.labelled),
            fields=self._spec.names if done.has_fields else None,
            shuffled=shuffled,
            windows_before=windows_before,
            parts=tuple(done.parts),
            **done.model_dump(include={"rows", "positives", "features", "has_values", "has_weights"}),
        )
        if raw_files is not None:
            total = sum(file.rows for file in raw_files)
            note = None if row_note is None else row_note.content(total)
            if note is not None:
                (folder / RAW_ROWS).write_bytes(note)
            digest = None if note is None else hashlib.sha256(note).hexdigest()
            manifest = manifest.model_copy(update={"raw_files": raw_files, "raw_rows_sha256": digest})
        if dictionary is not None:
            content = dictionary_bytes(dictionary.table())
            (folder / DICTIONARY).write_bytes(content)
            manifest.sha256[DICTIONARY] = hashlib.sha256(content).hexdigest()
        if windows is not None:
            for name in write_windows(windows, folder, folder / SPEC):
                manifest.sha256[name] = sha256_of(folder / name)
        manifest.write(folder)
        return manifest

    def _add(self, batch: Batch | Chunk, position: int) -> int:
        """Writes the next block; batches now stand for `position` input rows. Returns the total rows."""
        chunk = localize(batch)
        self._count(chunk)
        if self._part is None:
            folder = self.folder if self._unfinished is None else self._unfinished.folder
            name = _part_name(len(self._done.parts))
            self._part = _Part(folder / name, block_schema(self._spec.bits, self._block_rows))
        self._part.add(chunk)
        if self._part.blocks == BLOCKS_PER_PART:
            self._end_part(position)
        return self._done.rows

    def _count(self, chunk: Chunk) -> None:
        """Checks a block, and counts what the manifest will say."""
        rows, bits, done = len(chunk), self._spec.bits, self._done
        if rows == 0 or rows > self._block_rows or done.rows % self._block_rows:
            raise ValueError(
                f"a batch of {rows} rows after {done.rows}: each must have {self._block_rows} rows, only the"
                " last may have fewer"
            )
        if chunk.slots.dtype != slot_dtype(bits):
            raise ValueError(f"slots are {chunk.slots.dtype}, a spec of {bits} bits has another dtype")
        if chunk.slots.size and int(chunk.slots[-1]) >> bits:
            raise ValueError(f"slot {chunk.slots[-1]} is out of range for {bits} bits")
        if chunk.values is not None and not np.isfinite(chunk.values).all():
            raise ValueError("a value is not finite")
        if chunk.weights is not None and not (np.isfinite(chunk.weights) & (chunk.weights > 0)).all():
            raise ValueError("a weight is not finite and above 0")
        labelled = chunk.labels is not None
        if done.labelled not in (None, labelled):
            raise ValueError("some batches have labels and some have none")
        done.labelled = labelled
        done.rows += rows
        done.features += chunk.indices.size
        done.positives += 0 if chunk.labels is None else int(np.count_nonzero(chunk.labels > 0))
        done.has_values |= chunk.values is not None
        done.has_weights |= chunk.weights is not None
        done.has_fields &= chunk.fields is not None

    def _end_part(self, position: int) -> None:
        """Completes the part that is being written, if any."""
        if self._part is not None:
            self._done.parts.append(self._part.end())
            self._part = None
        elif not self._done.parts:
            return
        if self._unfinished is not None:
            self._done.position = position
            self._unfinished.note(self._done)


def _part_name(number: int) -> str:
    return f"shard-{number:05d}.arrow"


def _reading(batches: Iterable[Batch | Chunk]) -> Iterator[Batch | Chunk]:
    """The same batches; an OSError of reading them must not be mistaken for one of writing."""
    try:
        yield from batches
    except OSError as error:
        raise DataError(f"the input could not be read ({error}).") from error


class _Part:
    """A part that is being written: an Arrow file, hashed as it is written."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self.path = path
        self.sink = _HashingFile(path)
        self.blocks = self.rows = 0
        self._schema = schema
        self._file = pa.ipc.new_file(self.sink, schema)

    def add(self, chunk: Chunk) -> None:
        self._file.write_batch(block_of(chunk, self._schema))
        self.blocks += 1
        self.rows += len(chunk)

    def end(self) -> PartEntry:
        """Completes the file."""
        self._file.close()
        size = self.sink.tell()
        self.sink.close()
        return PartEntry(name=self.path.name, rows=self.rows, bytes=size, sha256=self.sink.sha256.hexdigest())


class _HashingFile(BufferedWriter):
    """The file that Arrow writes to, and its SHA-256."""

    def __init__(self, path: Path) -> None:
        super().__init__(FileIO(path, "xb"))
        self.sha256 = hashlib.sha256()

    def write(self, data: Any) -> int:
        self.sha256.update(data)
        return super().write(data)
