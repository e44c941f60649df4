"""`Candidate`: the features that trials may learn by: those of a spec, with crosses, with scales, or both."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from ctr.tune.examples import Examples
from ctr.tune.folds import Fold
from ctr.tune.scales import find_scales
from features import BLOCK_ROWS, DatasetSource, ExampleSource, FeatureSpec, write_dataset

Reopen = Callable[[FeatureSpec], ExampleSource]
"""Opens the same raw rows for another spec."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """The rows of all trials as examples with some features."""

    by_fold: tuple[Examples, ...]
    """As each fold is learnt and judged: scales are found in what it learns."""
    crosses: int = 0
    """Of the suggested ones, how many there are."""
    scales: Mapping[str, float] = field(default_factory=dict)
    """Found in all rows; empty: all are 1."""


def hashed(
    source: ExampleSource, folder: Path, end: int | None, on_rows: Callable[[int], None] = lambda rows: None
) -> DatasetSource:
    """The rows before `end` as a data set in `folder`, or as the one that they are."""
    if isinstance(source, DatasetSource):
        return source
    write_dataset(source.batches(BLOCK_ROWS, stop=end), source.spec, folder, progress=on_rows)
    return DatasetSource(folder)


def scaled(candidate: Candidate, spec: FeatureSpec, folds: Sequence[Fold], workers: int) -> Candidate:
    """The same, with scales that are found on all rows, and for each fold on those that it learns.

    Its examples have codes (see `scale_kernels`).
    """
    (examples, *_) = candidate.by_fold
    everything = (range(examples.rows),)
    find = partial(find_scales, examples, len(spec.names), examples.suited_beta)
    with ThreadPoolExecutor(workers, "scales") as pool:
        found = list(pool.map(find, [everything, *(fold.learnt for fold in folds)]))
    written = [float(f"{scale:.2g}") for scale in found[0][1:].tolist()]
    return Candidate(
        tuple(examples.scaled(each) for each in found[1:]),
        candidate.crosses,
        dict(zip(spec.names, written, strict=True)),
    )
