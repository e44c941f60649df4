"""Log loss and AUC on real data, beside scikit-learn's on the same features in the same run."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Case:
    """A data set, its split, and ctr's settings for it."""

    name: str
    spec: str
    train: str
    test: str | None
    """None: the rest of the rows of `train`."""
    train_rows: int | None
    suffix: str
    header: bool
    c: float
    """scikit-learn's best C."""
    options: Sequence[object] = ()


def measure(data: Path, folder: Path) -> None:
    """Print both log losses and AUCs for every data set found in `data`."""


def split(data: Path, folder: Path, case: Case) -> tuple[Path, Path]:
    """Write the train and test rows of a case as files of their own."""
    lines = gzip.decompress((data / case.train).read_bytes()).splitlines(keepends=True)
    head, lines = (lines[:1], lines[1:]) if case.header else ([], lines)
    train, test = (folder / f"{case.name}-{part}{case.suffix}" for part in ("train", "test"))
    train.write_bytes(b"".join(head + lines[: case.train_rows]))
    if case.test is None:
        test.write_bytes(b"".join(head + lines[case.train_rows :]))
    else:
        test.write_bytes(gzip.decompress((data / case.test).read_bytes()))
    return train, test
