"""What windows read from the cells of a row, and the features that they give it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ctr.features.text.column_kernels import TextColumn
from ctr.features.text.hashing import xxh64
from ctr.features.text.number_kernels import MISSING, NUMBER, log_bucket, log_bucket_of_whole
from ctr.features.text.spelling_kernels import hash_spelling, may_be_respelt, parse_label
from ctr.features.windows.ring_kernels import (
    CLICKS,
    COUNT,
    DECAYS,
    KNOWN,
    KNOWN_CLICKS,
    KNOWN_ROWS,
    RATE,
    ROWS,
    Layout,
)
from ctr.jit import njit

NO_KEY = np.uint64(0)
UNKNOWN = np.int8(-1)


class WindowRows(NamedTuple):
    """What a window reads from rows."""

    keys: NDArray[np.uint64]
    """uint64[rows]; NO_KEY if a part of the key is missing."""
    times: NDArray[np.int64]
    """int64[rows], with `timed`, bool[rows], and `problem`, uint8[rows]: see `Times`."""
    timed: NDArray[np.bool_]
    problem: NDArray[np.uint8]
    clicks: NDArray[np.int8]
    """int8[rows]: 1 for a click, 0 for none, UNKNOWN if the label is invalid."""

    @property
    def counts(self) -> NDArray[np.bool_]:
        """bool[rows]: rows with a time and a valid label; they count if they also have a key."""
        known: NDArray[np.bool_] = self.clicks != UNKNOWN
        return self.timed & known


@njit(nogil=True, cache=True)
def hash_key_part(column: TextColumn, keys: NDArray[np.uint64]) -> None:
    """Replaces each of `keys` (uint64[n]) by the hash of a cell, seeded with it; NO_KEY if it is missing.

    Texts of the same category give the same key. Bad rows, and rows with NO_KEY, are left unchanged.
    """
    buffer, starts, ends, status = column
    for i in range(keys.size):
        if status[i] != 0 or keys[i] == NO_KEY:
            continue
        start, end = np.uint64(starts[i]), np.uint64(ends[i])
        if start == end:
            keys[i] = NO_KEY
        elif may_be_respelt(buffer, start, end):
            present, hashed = hash_spelling(buffer, start, end, keys[i])
            keys[i] = max(hashed, np.uint64(1)) if present else NO_KEY
        else:
            keys[i] = max(xxh64(buffer, start, end, keys[i]), np.uint64(1))


@njit(nogil=True, cache=True)
def read_clicks(column: TextColumn, clicks: NDArray[np.int8]) -> None:
    """Writes 1 for a label of 1; 0 for 0, -1 or a missing label; UNKNOWN for all others (int8[n])."""
    buffer, starts, ends, status = column
    for i in range(clicks.size):
        clicks[i] = UNKNOWN
        if status[i] == 0:
            kind, value = parse_label(buffer, np.uint64(starts[i]), np.uint64(ends[i]))
            if kind == MISSING or (kind == NUMBER and (value == 0.0 or abs(value) == 1.0)):
                clicks[i] = np.int8(kind == NUMBER and value == 1.0)


_FINER = 10.0
"""Decayed counts are in tenths, so that a row counts for something until it is old."""


@njit(nogil=True, cache=True, error_model="numpy", _nrt=False)
def is_other_part(spans: NDArray[np.int64], clock: NDArray[np.int64], overall: NDArray[np.int64]) -> bool:
    """Whether a click rate of all keys must be computed anew for this time."""
    other = False
    for span in range(spans.shape[0]):
        other |= spans[span, RATE] >= 0 and overall[span] != clock[span, KNOWN]
    return other


@njit(nogil=True, cache=True, error_model="numpy", _nrt=False)
def keep_share(
    spans: NDArray[np.int64],
    clock: NDArray[np.int64],
    sums: NDArray[np.float64],
    overall: NDArray[np.int64],
    share: NDArray[np.float64],
) -> None:
    """Stores the click rates of all keys, whose sums are `sums`."""
    for span in range(spans.shape[0]):
        rows = sums[span, KNOWN_ROWS]
        overall[span] = clock[span, KNOWN]
        share[span] = sums[span, KNOWN_CLICKS] / rows if rows > 0.0 else -1.0


@njit(nogil=True, cache=True, error_model="numpy", _nrt=False)
def write_features(
    layout: Layout,
    sums: NDArray[np.float64],
    share: NDArray[np.float64],
    time: np.int64,
    last: np.int64,
    i: int,
    words: NDArray[np.uint64],
    present: NDArray[np.bool_],
) -> None:
    """Writes column `i`, for a row whose key has these sums, and whose previous row was at `last`."""
    numbers, spans, edges = layout.numbers, layout.spans, layout.edges
    f = numbers.since_last
    if f >= 0:
        words[f, i] = np.uint64(log_bucket(max(time - last, np.int64(0)) / 1e6))
        present[f, i] = time - last <= numbers.expires
    for span in range(spans.shape[0]):
        for f, which in ((spans[span, COUNT], ROWS), (spans[span, CLICKS], KNOWN_CLICKS)):
            if f >= 0:
                if spans[span, DECAYS] != 0:
                    words[f, i] = np.uint64(log_bucket(_FINER * sums[span, which]))
                else:
                    words[f, i] = log_bucket_of_whole(
                        np.uint64(np.int64(sums[span, which])), layout.log_lowest, layout.log_threshold
                    )
                present[f, i] = True
        f = spans[span, RATE]
        if f >= 0:
            clicked, rows = sums[span, KNOWN_CLICKS], sums[span, KNOWN_ROWS]
            rate = (clicked + numbers.strength * share[span]) / (rows + numbers.strength)
            bucket = np.int64(0)
            for k in range(edges.size):  # for so few edges, faster than a binary search
                bucket += np.int64(edges[k] <= rate)
            words[f, i] = np.uint64(bucket)
            present[f, i] = share[span] >= 0.0
