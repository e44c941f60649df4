"""`RawFiles`: raw files, and how to read them."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ctr.features.block import Block, Piece, Reader, blocks_of
from ctr.features.inputs import InputFile, StandardInput
from ctr.features.readers.opening import open_reader
from ctr.features.spec import FeatureSpec

if TYPE_CHECKING:
    from ctr.features.lines import Labels
    from ctr.features.readers.condition import RowChoice
    from ctr.features.readers.splits import SplitRows


_MOST_SPLITS = 8_192
"""Enough for the data shards of hundreds of workers; a job's description has 20 bytes for each."""
_LEAST_BYTES = 1 << 20  # of a split, which takes about 0.2 ms to open


@dataclass(frozen=True, slots=True)
class RawFiles:
    """Raw files read with a spec, one after the other, each time from the start; see `open_reader`."""

    files: Sequence[InputFile]
    spec: FeatureSpec
    labels: Labels = "ignored"
    """What the label column is for."""
    choice: RowChoice | None = None
    """Other rows have the status `RowStatus.ELSEWHERE`; None: all rows are chosen."""

    def open(self, file: InputFile) -> Reader:
        """Opens one of the files."""
        return open_reader(file, self.spec, self.labels, self.choice)

    def readers(self) -> Generator[tuple[InputFile, Reader], None, None]:
        """Each file and its reader, which stays open until the next one."""
        for file in self.files:
            with closing(self.open(file)) as reader:
                yield file, reader

    def any_has(self, column: str) -> bool:
        """Whether any file has this column, in its header or its first rows."""
        return any(column in reader.columns for _, reader in self.readers())

    def pieces(self, columns: Sequence[str]) -> Generator[Piece, None, None]:
        """All rows, with the cells of these columns."""
        for file in self.files:
            with closing(self.open(file)) as reader:
                yield from reader.pieces(columns)

    def blocks(self, columns: Sequence[str]) -> Generator[Block, None, None]:
        """All rows, block by block; each block is valid until the next one."""
        for file in self.files:
            with closing(self.open(file)) as reader:
                yield from blocks_of(reader, columns)

    def count_rows(self) -> list[int]:
        """The number of rows in each file, good or bad, chosen or not."""
        self.require_rereadable()
        return [reader.count_rows() for _, reader in self.readers()]

    def count_splits(self) -> list[list[SplitRows]]:
        """The splits of each file; see `ctr.features.readers.count_splits`."""
        from ctr.features.readers import splits  # with kernels that a hashed data set does not need

        self.require_rereadable()
        split_bytes = max(sum(file.size for file in self.files) // _MOST_SPLITS, _LEAST_BYTES)
        return [splits.count_splits(file, self.spec, self.labels, split_bytes) for file in self.files]

    def require_rereadable(self) -> None:
        """Raises DataError for standard input: a pass other than that over the examples would consume it."""
        for file in self.files:
            if isinstance(file, StandardInput):
                raise file.once()
