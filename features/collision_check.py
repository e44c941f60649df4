"""`collisions`: how many features of raw rows share a slot."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ctr.errors import DataError
from ctr.features.readable import CollisionCounter, Collisions
from ctr.features.source import RawSource
from ctr.features.spec import FeatureSpec
from ctr.features.windows import Windows

_BATCH_ROWS = 8_192


def collisions(spec: FeatureSpec, paths: Sequence[str | Path], rows: int = 100_000) -> Collisions:
    """The features of the first `rows` rows of raw files, by field, and how many of them share a slot.

    Bad rows are left out, and so are the features of windows. Raises DataError, also where all rows are bad,
    and SpecError as `RawSource` does.
    """
    source = RawSource(spec, paths, on_bad_rows="skip", labels="ignored", windows=Windows(spec))
    counter = CollisionCounter(spec, source.columns)
    source.watch = counter.add
    for _ in source.batches(_BATCH_ROWS, stop=rows):
        pass
    counted = counter.collisions()
    if not counted.rows:
        raise DataError(
            f"no row can be read: {source.bad_rows.examples[0]}; give raw rows such as the data set was made"
            " from."
        )
    return counted
