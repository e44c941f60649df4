"""Ways to combine the updates of workers that trained at the same time, side by side on one click log.

The product has only safe adding (and plain adding, as its scale 0); the other two stand here in NumPy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from ctr.features import Batch, Chunk, RawSource, load_spec
from ctr.features.batches import localize
from ctr.learn.learner import Learner
from ctr.metrics.metrics import Metrics
from ctr.model.linear import LinearModel
from ctr.optimizers.ftrl import Ftrl

TRAIN_ROWS = 16_000
OPTIMIZER = Ftrl()
State = NDArray[np.float32]
Combine = Callable[[State, list[Chunk]], None]


def combine_updates(state: State, chunks: list[Chunk], scale: float, share: float) -> None:
    """Every worker trains its chunk from the same state; `share` of each update is added."""
    learner = Learner(scale)
    updates = [
        learner.learn(chunk, state[chunk.slots], OPTIMIZER, number=number, first_pass=True, peers=len(chunks))
        for number, chunk in enumerate(chunks)
    ]
    for chunk, update in zip(chunks, updates, strict=True):
        state[chunk.slots] += np.float32(share) * update


def safe(state: State, chunks: list[Chunk]) -> None:
    combine_updates(state, chunks, scale=0.75, share=1)


def add(state: State, chunks: list[Chunk]) -> None:
    combine_updates(state, chunks, scale=0, share=1)


def average(state: State, chunks: list[Chunk]) -> None:
    combine_updates(state, chunks, scale=0, share=1 / len(chunks))


def minibatch_gradient(state: State, chunks: list[Chunk]) -> None:
    """One FTRL step per worker and slot, with the gradient of the whole chunk."""
    gradients = []
    for chunk in chunks:
        w = OPTIMIZER.weights(state[chunk.slots])
        lengths = np.diff(chunk.indptr)
        row = np.repeat(np.arange(len(chunk)), lengths)
        margins = np.bincount(row, w[chunk.indices], minlength=len(chunk))
        assert chunk.labels is not None
        slope = 1 / (1 + np.exp(-margins)) - chunk.labels
        gradients.append(np.bincount(chunk.indices, slope[row], minlength=chunk.slots.size))
    for chunk, g in zip(chunks, gradients, strict=True):
        z, n = state[chunk.slots].T.astype(np.float64)
        sigma = (np.sqrt(n + g * g) - np.sqrt(n)) / OPTIMIZER.alpha
        w = OPTIMIZER.weights(state[chunk.slots])
        state[chunk.slots] = np.stack([z + g - sigma * w, n + g * g], axis=1)


@pytest.fixture(scope="module")
def rows(click_log: Path) -> RawSource:
    return RawSource(load_spec("criteo"), [click_log])


@pytest.fixture(scope="module")
def held_out(rows: RawSource) -> Batch:
    return next(rows.batches(20_000, start=TRAIN_ROWS))


@cache
def chunks_of(rows: RawSource, chunk: int) -> list[Chunk]:
    return [localize(batch) for batch in rows.batches(chunk, stop=TRAIN_ROWS)]


def logloss(rows: RawSource, held_out: Batch, workers: int, chunk: int, combine: Combine) -> float:
    """Log loss on the held-out rows after one pass in rounds."""
    state = np.zeros((1 << rows.spec.bits, 2), np.float32)
    chunks = chunks_of(rows, chunk)
    for first in range(0, len(chunks), workers):
        combine(state, chunks[first : first + workers])
    slots = np.flatnonzero(state[:, 1]).astype(np.uint32)
    model = LinearModel.of_weights(slots, OPTIMIZER.weights(state[slots]))
    metrics = Metrics()
    assert held_out.labels is not None
    metrics.add(model.margins(held_out), held_out.labels)
    return metrics.logloss


@pytest.fixture(scope="module")
def sequential(rows: RawSource, held_out: Batch) -> float:
    """With one worker."""
    return logloss(rows, held_out, 1, TRAIN_ROWS, add)


@pytest.mark.parametrize(
    ("workers", "chunk", "adding_diverges"),
    [(8, 100, False), (4, 250, False), (8, 500, True), (4, 1_000, True)],
)
def test_safe_adding_is_the_best_of_four(
    rows: RawSource, held_out: Batch, sequential: float, workers: int, chunk: int, adding_diverges: bool
) -> None:
    found_by = partial(logloss, rows, held_out)
    found = {way.__name__: found_by(workers, chunk, way) for way in (safe, add, average, minibatch_gradient)}
    print({"sequential": sequential} | found)  # the table's row, for whoever runs pytest -s
    assert found["safe"] == min(found.values())
    assert found["safe"] < sequential * 1.01
    assert (found["add"] > sequential * 2) == adding_diverges


def test_what_one_worker_met_is_added_as_it_is() -> None:
    """A slot that occurs once in the chunk, and has no state yet, gets what it would get from one worker."""
    chunk = Chunk(np.arange(5), np.arange(4, dtype=np.uint32), np.arange(4, dtype=np.uint32))
    chunk = replace(chunk, labels=np.array([0, 1, 0, 1], np.float32))
    alone, one_of_eight = (
        Learner(0.75).learn(
            chunk, np.zeros((4, 2), np.float32), OPTIMIZER, number=0, first_pass=True, peers=peers
        )
        for peers in (1, 8)
    )
    np.testing.assert_allclose(one_of_eight, alone, rtol=1e-6)
    np.testing.assert_allclose(alone, [[0.5, 0.25], [-0.5, 0.25]] * 2, rtol=1e-6)
