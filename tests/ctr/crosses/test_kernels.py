"""The loops of the search for crosses, against plain Python."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from ctr.crosses import kernels
from tests.reference.ftrl import SequentialFtrl
from tests.reference.suggest import gain_of_cross

pytestmark = pytest.mark.kernel

ALPHA, BETA, L2 = 0.05, 1.0, 20.0


def columns(rows: int, seed: int) -> dict[str, NDArray[np.float32]]:
    random = np.random.default_rng(seed)
    return {
        "margins": random.normal(-1, 2, rows).astype(np.float32),
        "labels": random.integers(0, 2, rows).astype(np.float32),
        "weights": random.choice([0.5, 1, 3], rows).astype(np.float32),
    }


def score(
    first: NDArray[np.uint32],
    second: NDArray[np.uint32],
    given: dict[str, NDArray[np.float32]],
    shift: int = 0,
) -> tuple[float, float]:
    odds = np.empty(first.size, np.float32)
    kernels.odds_against(given["margins"], given["labels"], odds)
    stride = int(second.max(initial=0)) + 1
    cells = 1 << (64 - shift) if shift else (int(first.max(initial=0)) + 1) * stride
    table = np.full((cells, 2), np.nan, np.float32)
    settings = (np.float32(ALPHA), np.float32(BETA), np.float32(L2))
    found: tuple[float, float] = kernels.score_cross(
        first, second, np.uint64(stride), np.uint64(shift), odds, given["labels"], given["weights"],
        *settings, table,
    )  # fmt: skip
    return found


@pytest.mark.parametrize("rows", [0, 1, 500])
@pytest.mark.parametrize("sizes", [(2, 2), (4, 30), (1, 5)])
@pytest.mark.parametrize("shift", [0, 44])  # 2**20 cells for at most 120 values: none shares one with another
def test_a_score_is_the_gain_in_progressive_log_loss(rows: int, sizes: tuple[int, int], shift: int) -> None:
    random = np.random.default_rng(rows)
    first, second = (random.integers(0, size + 1, rows).astype(np.uint32) for size in sizes)
    given = columns(rows, seed=1)
    gain, squares = score(first, second, given, shift)
    expected = gain_of_cross(
        first.tolist(),
        second.tolist(),
        given["margins"].tolist(),
        given["labels"].tolist(),
        given["weights"].tolist(),
        SequentialFtrl(alpha=ALPHA, beta=BETA, l2=L2),
    )
    assert gain == pytest.approx(expected[0], rel=1e-3, abs=1e-4)
    assert squares == pytest.approx(expected[1], rel=1e-3, abs=1e-5)


def test_no_row_is_predicted_from_its_own_label() -> None:
    """With either label a row has the same prediction: their probabilities add up to one."""
    random = np.random.default_rng(3)
    first, second = (random.integers(1, 4, 200).astype(np.uint32) for _ in range(2))
    given = columns(200, seed=2) | {"weights": np.ones(200, np.float32)}
    for rows in (50, 120, 200):
        part = {name: values[:rows].copy() for name, values in given.items()}
        before = score(first[: rows - 1], second[: rows - 1], {n: v[:-1] for n, v in part.items()})[0]
        click = 1 / (1 + math.exp(-float(part["margins"][-1])))
        total = 0.0
        for label, probability in ((1, click), (0, 1 - click)):
            part["labels"][-1] = label
            total += probability * math.exp(score(first[:rows], second[:rows], part)[0] - before)
        assert total == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("with_values", [False, True])
def test_features_of_crosses_come_behind_a_rows_own(with_values: bool) -> None:
    indptr = np.array([0, 2, 2, 3])
    indices = np.array([4, 0, 3], np.uint32)
    values = np.array([2, 3, 4], np.float32) if with_values else None
    crosses = np.array([[1, 0], [0, 0], [2, 5]], np.uint32)
    to_indptr, to_indices = np.empty(4, np.int64), np.empty(6, np.uint32)
    to_values = np.empty(6, np.float32) if with_values else None
    kernels.append_features(
        indptr, indices, values, crosses, np.array([10, 20, 30]), to_indptr, to_indices, to_values
    )
    assert to_indptr.tolist() == [0, 3, 3, 6]
    assert to_indices.tolist() == [4, 0, 11, 3, 12, 25]
    if to_values is not None:
        assert to_values.tolist() == [2, 3, 1, 4, 1, 1]
