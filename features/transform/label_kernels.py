"""The labels and weights of a tile's rows.

A label of 1 is a click. No click is either 0 or -1, but not both in one source.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ctr.features.text.number_kernels import NUMBER, parse_number
from ctr.features.text.row_status import RowStatus
from ctr.features.text.spelling_kernels import parse_label
from ctr.features.transform.plan_kernels import Tile
from ctr.jit import njit

BAD_LABEL, BAD_WEIGHT = RowStatus.LABEL.value, RowStatus.WEIGHT.value
MINUS_LABEL, ZERO_LABEL = RowStatus.LABEL_MINUS.value, RowStatus.LABEL_ZERO.value

_U1 = np.uint64(1)
_ZERO, _ONE = np.uint8(ord("0")), np.uint8(ord("1"))


@njit(nogil=True, cache=True)
def label_problem(number: float | np.float32, no_click: NDArray[np.int8]) -> int:
    """0 for a label, BAD_LABEL for other numbers, MINUS_LABEL or ZERO_LABEL for a label of the wrong kind.

    `no_click` (int8[1]) is the label of rows without a click, 0 or -1. It is 1 until the first such row,
    which sets it.
    """
    if number == 1.0:
        return 0
    if number != 0.0 and number != -1.0:  # noqa: PLR1714  (a tuple loads Numba's lists)
        return BAD_LABEL
    if no_click[0] == 1:
        no_click[0] = np.int8(number)
    if no_click[0] == number:
        return 0
    return ZERO_LABEL if number == 0.0 else MINUS_LABEL


@njit(nogil=True, cache=True)
def write_labels(tile: Tile, column: int, labels: NDArray[np.float32], no_click: NDArray[np.int8]) -> None:
    """Writes the labels of the tile's rows; marks rows whose label is bad."""
    cells, buffer = tile.cells, tile.cells.buffer
    for t in range(tile.numbers.size):
        k = cells.at[t] + np.uint64(column)
        start, end = np.uint64(cells.starts[k]), np.uint64(cells.ends[k])
        if end - start == _U1 and (buffer[start] == _ONE or (buffer[start] == _ZERO and no_click[0] == 0)):
            labels[t] = np.float32(buffer[start] - _ZERO)
            continue
        kind, value = parse_label(buffer, start, end)
        problem = label_problem(value, no_click) if kind == NUMBER else BAD_LABEL
        labels[t] = np.float32(value == 1.0)
        if problem != 0:
            tile.status[tile.numbers[t]] = problem
            tile.bad_column[tile.numbers[t]] = tile.columns[column]


@njit(nogil=True, cache=True)
def write_weights(tile: Tile, column: int, weights: NDArray[np.float32]) -> None:
    """Writes the weights of the tile's rows; marks rows whose weight is bad."""
    cells = tile.cells
    for t in range(tile.numbers.size):
        k = cells.at[t] + np.uint64(column)
        kind, value = parse_number(cells.buffer, np.uint64(cells.starts[k]), np.uint64(cells.ends[k]))
        weight = np.float32(value)
        if kind == NUMBER and weight > 0 and np.isfinite(weight):
            weights[t] = weight
        elif tile.status[tile.numbers[t]] == 0:
            tile.status[tile.numbers[t]] = BAD_WEIGHT
            tile.bad_column[tile.numbers[t]] = tile.columns[column]
