"""`DatasetSource`: reads a hashed data set as chunks, directly from memory maps of its parts."""

from __future__ import annotations

import hashlib
import mmap
from bisect import bisect_right
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from copy import copy
from dataclasses import replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ctr.errors import DataError, SpecError
from ctr.features.batches import Batch, Chunk, join_chunks, slice_rows
from ctr.features.dataset.blocks import StoredBlocks
from ctr.features.dataset.folders import open_folder
from ctr.features.dataset.manifest import DatasetManifest, PartEntry, read_manifest, torn_part
from ctr.features.dataset.raw_rows import raw_rows
from ctr.features.inputs import InputFile
from ctr.features.readable import read_dictionary_bytes
from ctr.features.readers import BadRows
from ctr.features.spec import SPEC, FeatureSpec, read_spec_files, spec_of_files
from ctr.features.threads import in_order
from ctr.features.windows import Windows, load_windows


class DatasetSource:
    """The examples of a hashed data set, in the order in which they were written.

    Threads may share it, each with its own iterator.

    It reads the very folder that it opened: if a new build replaces that, reading ends with an error, and
    never mixes the two.

    Raises DataError, when opening and reading, if the folder is not a data set, its spec was changed, a part
    is missing or has another size than the manifest says, or a part's content is inconsistent (rows, offsets,
    slots out of range). Changed bytes that are still consistent, such as another label or slot, are detected
    only with `verify`.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        verify: bool = False,
        labels: Literal["required", "ignored"] = "required",
        with_fields: bool = False,
        scales: Mapping[str, float] | None = None,
    ) -> None:
        """Reads manifest and spec, and checks the size of every part.

        `verify`: compare each part's SHA-256 with the manifest before its first use (0.6 s per GB). `labels`:
        if ignored, the data set need not have any, and batches have none. `with_fields`: batches have field
        ids; DataError if the data set has none (format 1). `scales`: batches have the values that these
        scales give, and `spec` has the scales; this needs field ids, too.
        """
        self._folder = open_folder(path)
        self.name = self._folder.name
        """Its path or URI, as the user gave it."""
        self.path = self._folder.path
        """A local folder with all of its files; parts may be missing."""
        self.manifest: DatasetManifest = read_manifest(self.path, self.name)
        self.spec: FeatureSpec = self._read_spec()
        self._folder.require_same()
        if labels == "required" and not self.manifest.has_labels:
            raise DataError(
                f"{self.name}: it has no labels; build it from labelled data with `ctr features build`."
            )
        self._with_labels = labels == "required"
        self._with_fields = with_fields
        if with_fields:
            self.manifest.require_fields(self.name, "the field of each feature is needed")
        self._scales: NDArray[np.float32] | None = None
        if scales and (scaled := self.spec.with_scales(scales)).fingerprint != self.spec.fingerprint:
            names = self.manifest.require_fields(self.name, "its features are to be scaled by field")
            self._scales = np.array([1, *(scales.get(name, 1) for name in names)], np.float32)
            self.spec = scaled
        for part in self.manifest.parts:
            self._folder.check(part)
        self._unverified = {part.name for part in self.manifest.parts} if verify else set()
        self.bad_rows = BadRows()  # none: the build left them out
        self.blocks_read = 0  # mapped pages are read during training
        self._row_reached = 0
        self._part_ends = list(accumulate(part.rows for part in self.manifest.parts))

    @property
    def has_fields(self) -> bool:
        """Whether it knows the field of each feature."""
        return self.manifest.fields is not None

    def with_fields(self) -> DatasetSource:
        """A copy whose batches have field ids. Raises DataError if the data set has none."""
        other = copy(self)
        other._with_fields = True
        other.manifest.require_fields(self.name, "the field of each feature is needed")
        return other

    @property
    def inputs(self) -> Sequence[str | Path]:
        """Its path or URI."""
        return [self.name]

    def raw_rows(self, why: str) -> list[InputFile]:
        """The raw rows of its examples, needed for the reason `why`: see `dataset/raw_rows`."""
        raw = raw_rows(self.path, self.name, self.manifest, why)
        self._folder.require_same()
        return raw

    @cached_property
    def windows(self) -> Windows | None:
        """The spec's windows after the last row; None if the spec has no windows."""
        return load_windows(self.spec, self.path) if self.spec.windows else None

    def warnings(self) -> list[str]:
        """None: warnings were printed when the data set was built."""
        return []

    def count_rows(self) -> int:
        """The number of examples."""
        return self.manifest.rows

    def dictionary(self) -> bytes | None:
        """The content of its dictionary of features, if it has one."""
        content = read_dictionary_bytes(self.path)
        self._folder.require_same()
        return content

    @property
    def fraction_read(self) -> float:
        """How far into the data set the latest batch reached, 0 to 1."""
        return self._row_reached / self.manifest.rows

    def part_of(self, row: int) -> int:
        """The number of the part that contains this row."""
        return bisect_right(self._part_ends, row)

    def cached_parts(self) -> set[int] | None:
        """The numbers of the parts that are already here; None if nothing has to be fetched."""
        missing = self._folder.missing(self.manifest.parts)
        if not missing:
            return None
        return {number for number, part in enumerate(self.manifest.parts) if part.name not in missing}

    def batches(self, rows: int, start: int = 0, stop: int | None = None) -> Iterator[Chunk]:
        """The examples from row `start` to row `stop` (exclusive), `rows` per chunk; the last may have fewer.

        A whole stored block is not copied: its arrays are private copy-on-write views of the file, so writing
        to them is allowed and changes nothing on disk. A part stays mapped as long as one of them exists.
        Chunks that span blocks are copies.
        """
        if rows < 1 or start < 0:
            raise ValueError(f"rows is {rows} and start {start}: at least 1 and 0")
        end = self.manifest.rows if stop is None else min(stop, self.manifest.rows)
        self._row_reached = start
        pieces: list[Chunk] = []
        wanted = rows
        for first, block in self._blocks(start, end):
            at, last = max(start - first, 0), min(end - first, len(block))
            while at < last:
                count = min(wanted, last - at)
                pieces.append(slice_rows(block, at, at + count))
                at += count
                wanted -= count
                if wanted == 0:
                    self._row_reached = first + at
                    yield join_chunks(pieces)
                    pieces, wanted = [], rows
        if pieces:
            self._row_reached = end
            yield join_chunks(pieces)

    def sample(self, rows: int) -> Batch:
        """The first `rows` examples, or all if there are fewer."""
        blocks = self._blocks(0, min(rows, self.manifest.rows))
        pieces = [slice_rows(block, 0, min(len(block), rows - first)) for first, block in blocks]
        return join_chunks(pieces).to_batch()

    def chunks(self) -> Iterator[Chunk]:
        """The stored blocks, one after the other."""
        for _, block in self._blocks(0, self.manifest.rows):
            yield block

    def _blocks(self, start: int, end: int) -> Iterator[tuple[int, Chunk]]:
        """The blocks with rows from `start` to `end`, each with the position of its first row."""
        size, parts, firsts = self.manifest.block_rows, [], []
        part_first = 0
        for part in self.manifest.parts:
            if part_first < end and start < part_first + part.rows:
                parts.append(part)
                firsts.append(part_first)
            part_first += part.rows
        with closing(self._open(parts)) as files:
            for part, part_first, file in zip(parts, firsts, files, strict=True):
                low = max(start - part_first, 0) // size
                high = -(-(min(end, part_first + part.rows) - part_first) // size)
                for number, block in zip(range(low, high), self._read(part, file, low, high), strict=True):
                    yield part_first + number * size, block

    def _open(self, parts: Sequence[PartEntry]) -> Generator[BinaryIO]:
        """The files of these parts; if parts must be fetched, the next one is fetched while one is read."""
        if len(self._folder.missing(parts)) < 2:
            yield from map(self._folder.open, parts)
            return
        with closing(in_order(self._fetched, iter(parts), threads=1)) as fetched:
            yield from map(self._folder.open, fetched)

    def _fetched(self, part: PartEntry) -> PartEntry:
        """The same part, once it has been fetched."""
        self._folder.open(part).close()
        return part

    def _read(self, part: PartEntry, file: BinaryIO, low: int, high: int) -> Iterator[Chunk]:
        """Blocks `low` to `high` (exclusive) of a part; closes its file."""
        with file:
            # Copy-on-write rather than read-only: Numba compiles every kernel anew for read-only arrays.
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        self._verify(part, mapped)
        try:
            blocks = StoredBlocks(mapped, self.manifest, self._with_fields or self._scales is not None)
            for number in range(low, high):
                rows = min(self.manifest.block_rows, part.rows - number * self.manifest.block_rows)
                block = self._scaled(blocks.read(number, rows))
                yield block if self._with_labels else replace(block, labels=None)
        except (pa.ArrowException, OSError, ValueError, IndexError) as error:
            raise torn_part(self.name, part, str(error).splitlines()[0]) from error

    def _scaled(self, block: Chunk) -> Chunk:
        """The block with its values scaled by field; without field ids unless these are needed."""
        if self._scales is None:
            return block
        scaled = block.scaled(self._scales)
        return scaled if self._with_fields else replace(scaled, fields=None)

    def _read_spec(self) -> FeatureSpec:
        path = f"{self.name}/{SPEC}"
        again = "build the data set again with `ctr features build`."
        try:
            spec = spec_of_files(read_spec_files(self.path), path)
        except SpecError as error:
            raise DataError(f"{error} Restore the file, or {again}") from error
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({error}); {again}") from error
        if spec.fingerprint != self.manifest.spec_fingerprint:
            raise DataError(
                f"{path}: gives the transform {spec.fingerprint[:12]}, the data was hashed with"
                f" {self.manifest.spec_fingerprint[:12]}; restore the file, or {again}"
            )
        return spec

    def _verify(self, part: PartEntry, mapped: mmap.mmap) -> None:
        if part.name not in self._unverified:
            return
        if hashlib.sha256(mapped).hexdigest() != part.sha256:
            raise torn_part(self.name, part, "its SHA-256 is not the manifest's")
        self._unverified.discard(part.name)
