"""What windows read of a row's cells: its key, its time, and whether there was a click."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ctr.features.text.hashing import xxh64
from ctr.features.text.number_kernels import MISSING, NUMBER, parse_number
from ctr.features.text.spelling_kernels import hash_spelling, may_be_respelt
from ctr.numba_cache import njit

NO_KEY = np.uint64(0)
UNKNOWN = np.int8(-1)


@njit(nogil=True, cache=True)
def hash_key_part(
    buffer: NDArray[np.uint8],
    starts: NDArray[np.int32],
    ends: NDArray[np.int32],
    status: NDArray[np.uint8],
    keys: NDArray[np.uint64],
) -> None:
    """Replaces each of `keys` (uint64[n]) by the hash of a cell seeded with it; NO_KEY where one is missing.

    Texts that are one category are one key. Rows whose status is not 0 are left as they are.
    """
    for i in range(keys.size):
        if status[i] != 0 or keys[i] == NO_KEY:
            continue
        start, end = np.uint64(starts[i]), np.uint64(ends[i])
        if start == end:
            keys[i] = NO_KEY
        elif may_be_respelt(buffer, start, end):
            present, found = hash_spelling(buffer, start, end, keys[i])
            keys[i] = max(found, np.uint64(1)) if present else NO_KEY
        else:
            keys[i] = max(xxh64(buffer, start, end, keys[i]), np.uint64(1))


@njit(nogil=True, cache=True)
def read_clicks(
    buffer: NDArray[np.uint8],
    starts: NDArray[np.int32],
    ends: NDArray[np.int32],
    status: NDArray[np.uint8],
    clicks: NDArray[np.int8],
) -> None:
    """Writes 1 for a label of 1, 0 for 0, -1 and a missing one, and UNKNOWN for what is none (int8[n])."""
    for i in range(clicks.size):
        clicks[i] = UNKNOWN
        if status[i] == 0:
            kind, value = parse_number(buffer, np.uint64(starts[i]), np.uint64(ends[i]))
            if kind == MISSING or (kind == NUMBER and (value == 0.0 or abs(value) == 1.0)):
                clicks[i] = np.int8(kind == NUMBER and value == 1.0)
