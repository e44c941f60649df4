"""Vowpal Wabbit, the peer: the same examples in its text format, and its learner from its wheel."""

from __future__ import annotations

import math
import sys
from functools import lru_cache
from pathlib import Path

from benchmarks.measure import run

BITS = 22


def write_text(log: Path, out: Path) -> None:
    """Write a Criteo log as VW text with the features that the spec `criteo` makes."""
    if out.exists():
        return
    partial = out.with_suffix(".partial")
    with log.open() as rows, partial.open("w") as text:
        for row in rows:
            cells = row.rstrip("\n").split("\t")
            features = [f"I{i}={bucket(cell)}" for i, cell in enumerate(cells[1:14], 1)]
            features += [f"C{i}={cell}" for i, cell in enumerate(cells[14:], 1) if cell]
            text.write(f"{1 if cells[0] == '1' else -1} | {' '.join(features)}\n")
    partial.rename(out)


@lru_cache(maxsize=100_000)
def bucket(cell: str) -> str:
    """The log bucket of an integer's text; empty when it is missing."""
    if not cell:
        return ""
    value = int(cell)
    return str(value if value <= 2 else 2 + math.floor(math.log(value) ** 2))


def learn(text: Path, cache: Path | None = None, bits: int = BITS) -> float:
    """Seconds of one pass of VW `--ftrl` with ctr's default settings, from text or from its binary cache."""
    command = [sys.executable, "-m", "vowpalwabbit", "--quiet", "--data", str(text)]
    command += ["--ftrl", "--ftrl_alpha", "0.1", "--ftrl_beta", "1", "--loss_function", "logistic"]
    command += ["--bit_precision", str(bits), "--final_regressor", str(text.with_suffix(".model"))]
    if cache is not None:
        command += ["--cache_file", str(cache)]
    return run(command)
