"""Parsing the text `|namespace:scale name:value ...` to hashes and values."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ctr.features.text.column_kernels import TextColumn
from ctr.features.text.hashing import xxh64
from ctr.features.text.number_kernels import NUMBER, parse_number
from ctr.features.text.row_status import RowStatus
from ctr.jit import njit

BAD_NAMED = RowStatus.NAMED.value

_U0, _U1 = np.uint64(0), np.uint64(1)
_SPACE, _TAB, _RETURN, _COLON, _BAR = (np.uint8(ord(c)) for c in " \t\r:|")


@njit(nogil=True, cache=True)
def hash_named(
    column: TextColumn,
    seed: np.uint64,
    bounds: NDArray[np.int64],
    hashes: NDArray[np.uint64],
    values: NDArray[np.float32],
    problem: NDArray[np.uint8],
) -> None:
    """Writes the features of each cell `i` of a column to `bounds[i]..bounds[i + 1] - 1`.

    A feature has the hash of its name, seeded with the hash of its namespace; a bar before a space begins the
    empty namespace. Values of 0 are left out. A cell with a value that is not a number has no features, and
    `problem[i]` is BAD_NAMED.
    """
    buffer, starts, ends, status = column
    n = _U0
    bounds[0] = 0
    for i in range(starts.size):
        first = n
        at, end = np.uint64(starts[i]), np.uint64(ends[i]) if status[i] == 0 else np.uint64(starts[i])
        namespace, scale = seed, 1.0
        while at < end:
            if buffer[at] == _SPACE or buffer[at] == _TAB or buffer[at] == _RETURN:
                at += _U1
                continue
            is_namespace = buffer[at] == _BAR
            at += np.uint64(is_namespace)
            begin = at
            at = _token_end(buffer, at, end)
            name, value, is_number = _parts(buffer, begin, at)
            if not is_number:
                problem[i] = BAD_NAMED
                n = first
                break
            if is_namespace:
                namespace, scale = xxh64(buffer, begin, name, seed), value
                continue
            number = np.float32(value * scale)
            if not np.isfinite(number):
                problem[i] = BAD_NAMED
                n = first
                break
            hashes[n] = xxh64(buffer, begin, name, namespace)
            values[n] = number
            n += np.uint64(number != 0)
        bounds[i + 1] = np.int64(n)


@njit(nogil=True, cache=True, forceinline=True)
def _parts(buffer: NDArray[np.uint8], begin: np.uint64, end: np.uint64) -> tuple[np.uint64, float, bool]:
    """Where the name of a token ends, its value, and whether that is a number."""
    name = begin
    while name < end and buffer[name] != _COLON:
        name += _U1
    if name == end:
        return name, 1.0, True
    kind, value = parse_number(buffer, name + _U1, end)
    return name, value, kind == NUMBER


@njit(nogil=True, cache=True, forceinline=True)
def _token_end(buffer: NDArray[np.uint8], at: np.uint64, end: np.uint64) -> np.uint64:
    while (
        at < end
        and buffer[at] != _SPACE
        and buffer[at] != _TAB
        and buffer[at] != _RETURN
        and buffer[at] != _BAR
    ):
        at += _U1
    return at
