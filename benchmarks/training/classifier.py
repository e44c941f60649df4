"""`FTRLClassifier.fit` beside `SGDClassifier(loss="log_loss")`: one pass each over the same sparse matrix."""

from __future__ import annotations

from statistics import median
from time import perf_counter, process_time
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

COLUMNS = 1 << 20
_ONES = 39  # in a row, as many as Criteo's fields


def measure(rows: int, rounds: int) -> None:
    """Print seconds of both, in turns, after a fit each that compiles what is to be compiled."""
    from sklearn.linear_model import SGDClassifier

    from ctr import FTRLClassifier

    examples, y = _examples(rows)
    sides = {
        "SGDClassifier": lambda: SGDClassifier(loss="log_loss", max_iter=1, tol=None, random_state=1),
        "FTRLClassifier": FTRLClassifier,
    }
    for make in sides.values():
        make().fit(examples[:1_000], y[:1_000])
    wall: dict[str, list[float]] = {name: [] for name in sides}
    cpu: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, make in sides.items():
            started, used = perf_counter(), process_time()
            make().fit(examples, y)
            wall[name].append(perf_counter() - started)
            cpu[name].append(process_time() - used)
    print(f"\nfit, one pass: {rows:,} rows of {_ONES} ones over {COLUMNS:,} columns, median of {rounds}")
    print(f"  {'':20}{'seconds':>10}{'processor':>11}{'rows/s':>14}")
    for name in sides:
        seconds = median(wall[name])
        print(f"  {name:20}{seconds:10.2f}{median(cpu[name]):11.2f}{rows / seconds:14,.0f}")
    ratios = [peer / ours for peer, ours in zip(*wall.values(), strict=True)]
    ratio = f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
    print(f"  FTRLClassifier is {ratio} times as fast, asked at least 3")


def _examples(rows: int) -> tuple[csr_matrix, np.ndarray]:
    """Rows of distinct columns, a few of which are most of what occurs, and labels that depend on them."""
    from scipy.sparse import csr_matrix

    rng = np.random.default_rng(1)
    # Each of the ones has a range of columns of its own, and the logarithm of its rank is even.
    width = COLUMNS // _ONES
    ranks = np.exp(rng.random((rows, _ONES), np.float32) * np.log(width)).astype(np.int32) - 1
    columns = np.minimum(ranks, width - 1) + np.arange(_ONES, dtype=np.int32) * width
    indptr = np.arange(0, rows * _ONES + 1, _ONES, dtype=np.int32)
    examples = csr_matrix((np.ones(columns.size), columns.ravel(), indptr), shape=(rows, COLUMNS))
    margins = examples @ rng.normal(size=COLUMNS) * 0.2 - 1
    return examples, (rng.random(rows) < 1 / (1 + np.exp(-margins))).astype(np.int64)
