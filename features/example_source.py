"""`ExampleSource`: examples in a fixed order, from any kind of input."""

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
    """Examples in a fixed order, which can be read any number of times."""

    @property
    def spec(self) -> FeatureSpec:
        """The spec whose features the examples have."""

    @property
    def inputs(self) -> Sequence[str | Path | InputFile]:
        """The inputs; another source with these inputs reads the same rows, or raises DataError."""

    @property
    def windows(self) -> Windows | None:
        """The spec's windows after the rows of a pass; None if the spec has none."""

    @property
    def fraction_read(self) -> float:
        """How much of the latest pass is done, 0 to 1."""

    @property
    def blocks_read(self) -> int:
        """Grows while rows are read or skipped, so that a hanging disk is noticed."""

    @property
    def bad_rows(self) -> BadRows:
        """The rows that passes have left out so far, each once."""

    def batches(self, rows: int, start: int = 0, stop: int | None = None) -> Iterator[Batch | Chunk]:
        """A pass over the rows `start..stop-1`, `rows` examples at a time; the last batch may have fewer."""

    def sample(self, rows: int) -> Batch:
        """The first `rows` examples, or all when there are fewer."""

    def warnings(self) -> list[str]:
        """Warnings for users about the features of the rows."""

    def count_rows(self) -> int:
        """The number of rows, as `start` and `stop` count them."""
