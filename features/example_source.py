"""`ExampleSource`: examples in a fixed order, from wherever they come."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from ctr.features.batches import Batch, Chunk
from ctr.features.inputs import InputFile
from ctr.features.readers import BadRows
from ctr.features.spec import FeatureSpec
from ctr.features.windows import Windows


class ExampleSource(Protocol):
    """Examples in a fixed order, to be read as often as wanted."""

    @property
    def spec(self) -> FeatureSpec:
        """The spec whose features the examples have."""

    @property
    def inputs(self) -> Sequence[str | Path | InputFile]:
        """What is read; another source that is opened with it reads the very same, or raises DataError."""

    @property
    def windows(self) -> Windows | None:
        """What the spec's windows know after the rows of a pass; None if it has none."""

    @property
    def fraction_read(self) -> float:
        """How much of the latest pass is done, 0 to 1."""

    @property
    def blocks_read(self) -> int:
        """Grows while rows are read, those that are only skipped too: a disk that hangs shows."""

    @property
    def bad_rows(self) -> BadRows:
        """The rows that passes have left out so far, each once however many passes there were."""

    def batches(self, rows: int, start: int = 0, stop: int | None = None) -> Iterator[Batch | Chunk]:
        """A pass over the rows `start..stop-1`, `rows` examples at a time; the last may be fewer."""

    def sample(self, rows: int) -> Batch:
        """The first `rows` examples, or all when there are fewer."""

    def warnings(self) -> list[str]:
        """What is odd about the features of the rows read so far, for users."""

    def count_rows(self) -> int:
        """How many rows there are for `start` and `stop` to count in."""
