"""`time_per_example`: what one core spends on an example, and the least that the machine lets it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from benchmarks.measure import ctr
from ctr.features import DatasetSource
from ctr.jit import FAST_MATH, njit
from ctr.optimizers.ftrl import Ftrl

ROUNDS = 7
CHUNK = 65_536
PARTS = {
    "read": "waiting for examples, which another thread reads ahead",
    "pull": "the state of a chunk's slots: from the table into the chunk's own",
    "train": "the optimizer: predict and learn, progressive metrics included",
    "push": "the changes: from the chunk's own into the table",
}
"""Of `worker_seconds` in the summary of `ctr train`; a hashed data set has its unique slots, one worker waits
for none."""


@njit(fastmath=FAST_MATH)
def move(indptr: NDArray[np.int64], indices: NDArray[np.uint32], state: NDArray[np.float32]) -> None:
    """Read both numbers of each feature's state, and write them back."""
    for e in range(indptr.size - 1):
        for k in range(indptr[e], indptr[e + 1]):
            i = indices[k]
            state[i, 0] += np.float32(1e-9)
            state[i, 1] += np.float32(1e-9)


@njit(fastmath=FAST_MATH, error_model="numpy")
def divide(examples: int, width: int, rows: NDArray[np.float32]) -> np.float32:
    """Two square roots, a division and a few products for each of a row's features: FTRL, without memory."""
    total = np.float32(0)
    for _ in range(examples):
        margin = np.float32(0)
        for j in range(width):
            root = np.sqrt(rows[0, j])
            w = rows[1, j] / (root * np.float32(10) + np.float32(10))
            margin += w
            rows[2, j] = root
            rows[3, j] = w
        for j in range(width):
            rows[1, j] = margin - (np.sqrt(rows[0, j] + margin * margin) - rows[2, j]) * rows[3, j]
        total += margin
        rows[1, 0] = total * np.float32(1e-6)
    return total


def _least(run: Callable[[], object]) -> float:
    """Seconds of the fastest of several runs, after one that compiles."""
    run()
    taken = []
    for _ in range(ROUNDS):
        begun = perf_counter()
        run()
        taken.append(perf_counter() - begun)
    return min(taken)


def time_per_example(log: Path, folder: Path) -> list[tuple[str, float]]:
    """Lines of what, and nanoseconds per example: the parts of training from hashed data, and the limits."""
    hashed, model = folder / "limits.hashed", folder / "limits.model"
    ctr("features", "build", "--spec", "criteo", log, "--out", hashed)
    chunks = list(DatasetSource(hashed).batches(CHUNK))
    rows = sum(map(len, chunks))
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, [min(allowed)])
    try:
        done = min(
            (ctr("train", hashed, "--model", model, cores=1) for _ in range(ROUNDS)),
            key=lambda each: each["seconds"],
        )
        states = [np.full((chunk.slots.size, 2), 0.5, np.float32) for chunk in chunks]
        optimizer = Ftrl()

        def learn() -> None:
            for chunk, state in zip(chunks, states, strict=True):
                optimizer.train(chunk, state)

        def touch() -> None:
            for chunk, state in zip(chunks, states, strict=True):
                move(chunk.indptr, chunk.indices, state)

        width = round(chunks[0].indices.size / len(chunks[0]))
        # Rows so far apart that the loops over them are vectorised, as those of the kernel are.
        scratch = np.ones((4, max(width, 64)), np.float32)
        kernel, moved, divided = _least(learn), _least(touch), _least(lambda: divide(rows, width, scratch))
    finally:
        os.sched_setaffinity(0, allowed)
    lines = [("`ctr train`, learning, one core", done["seconds"])]
    lines += [(f"  of it {what}", done["worker_seconds"][key]) for key, what in PARTS.items()]
    lines += [
        (f"the FTRL kernel alone, {width} features per example", kernel),
        ("limit of memory: read and write the state of each feature, and nothing else", moved),
        (
            "limit of arithmetic: two roots and a division for each feature, without memory",
            divided,
        ),
    ]
    return [(what, seconds / rows * 1e9) for what, seconds in lines]
