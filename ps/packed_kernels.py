"""Numba loops over increments in packed fixed-point form, and over partitions' strings of such integers.

An increment, int64, is what a push adds to a slot. Additions wrap around, so any order and any grouping of
pushes give the same sum. Slots are sorted and unique, and both sides of a call have the same dtype. A string
holds 64-bit big-endian integers, as in Redis (see `resp_kernels`).

The merges do not branch on how two slots compare, as processors cannot predict it. They alternate between two
positions, because each step depends on the previous one and would leave the processor idle. Together this
takes 1.2 to 2 ns per slot of either side; with branches it takes 3.6, with one position 2.7 to 3.4. Indices
are unsigned, because Numba checks whether a signed index is negative.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ctr.jit import njit

Int64 = NDArray[np.int64]
Bytes = NDArray[np.uint8]
Offsets = NDArray[np.uint32]
Slots = NDArray[np.uint32] | NDArray[np.uint64]

_BLOCK = 1 << 14  # bytes of a string that are copied, and then added to while they are in the L1 cache

_FEW = 16  # with this many times fewer slots on one side, searching for each is faster than merging


@njit(nogil=True, cache=True)
def add_to_range(raw: Bytes, first_offset: int, offsets: Offsets, increments: Int64, out: Bytes) -> None:
    """Writes to `out` the range `raw` of a partition's string, with the increments added at their offsets.

    `raw` and `out` begin with the integer at `first_offset`. `out` reaches at least to the last offset, with
    8 bytes each. Where `raw` is shorter, it counts as zeros, as in Redis; where it is longer, it is ignored.
    Both are contiguous and may begin at any address, but do not overlap. `offsets` are sorted and unique;
    none is below `first_offset`.
    """
    first = np.uint64(first_offset)
    count = np.uint64(offsets.size)
    added = np.uint64(0)
    begin = np.uint64(0)
    while begin < np.uint64(out.size):
        end = min(begin + np.uint64(_BLOCK), np.uint64(out.size))
        raw_end = min(max(begin, np.uint64(raw.size)), end)
        for at in range(begin, raw_end):
            out[at] = raw[at]
        for at in range(raw_end, end):
            out[at] = np.uint8(0)
        while added < count:
            place = (np.uint64(offsets[added]) - first) << np.uint64(3)
            if place >= end:
                break
            _add_at(out, place, increments[added])
            added += np.uint64(1)
        begin = end


@njit(nogil=True, cache=True)
def add_scattered(string: Bytes, offsets: NDArray[np.uint32], increments: NDArray[np.int64]) -> None:
    """Adds to the integers at these offsets of a whole string; offsets may be unsorted and repeated."""
    for i in range(np.uint64(offsets.size)):
        _add_at(string, np.uint64(offsets[i]) * np.uint64(8), increments[i])


@njit(nogil=True, cache=True, inline="always")
def _add_at(string: Bytes, at: np.uint64, increment: np.int64) -> None:
    """Adds to the big-endian integer at `string[at:at + 8]`."""
    number = np.uint64(0)
    for k in range(8):  # compiled to one load
        number = number << np.uint64(8) | np.uint64(string[at + np.uint64(k)])
    number += np.uint64(increment)
    for k in range(8):  # compiled to one store
        string[at + np.uint64(k)] = np.uint8((number >> np.uint64(56 - 8 * k)) & np.uint64(0xFF))


@njit(nogil=True, cache=True)
def add_matching(
    from_slots: Slots, from_increments: Int64, slots: Slots, packed: Int64, mask: Bytes, shift: int
) -> None:
    """Adds the increments of `from_slots` to `packed`, the integers of `slots`, where the slots are equal.

    Skips partitions whose byte in `mask` is 0; the partition of a slot is `slot >> shift`.
    """
    # Counting the additions as well would make LLVM branch: 3.4 ns instead of 1.2.
    i_end, j_end = np.uint64(from_slots.size), np.uint64(slots.size)
    i, j = np.uint64(0), np.uint64(0)
    if i_end * np.uint64(_FEW) < j_end:
        while i < i_end:
            j = _search(slots, j, np.uint64(from_slots[i]))
            if j == j_end:
                break
            _match(from_slots, from_increments, slots, packed, mask, shift, i, j)
            i += np.uint64(1)
        return
    if j_end * np.uint64(_FEW) < i_end:
        while j < j_end:
            i = _search(from_slots, i, np.uint64(slots[j]))
            if i == i_end:
                break
            _match(from_slots, from_increments, slots, packed, mask, shift, i, j)
            j += np.uint64(1)
        return
    i_half, j_half = _halve(from_slots, slots)
    i2, j2 = i_half, j_half
    while i < i_half and j < j_half and i2 < i_end and j2 < j_end:
        i, j = _match(from_slots, from_increments, slots, packed, mask, shift, i, j)
        i2, j2 = _match(from_slots, from_increments, slots, packed, mask, shift, i2, j2)
    while i < i_half and j < j_half:
        i, j = _match(from_slots, from_increments, slots, packed, mask, shift, i, j)
    while i2 < i_end and j2 < j_end:
        i2, j2 = _match(from_slots, from_increments, slots, packed, mask, shift, i2, j2)


@njit(nogil=True, cache=True, inline="always")
def _match(
    from_slots: Slots,
    from_increments: Int64,
    slots: Slots,
    packed: Int64,
    mask: Bytes,
    shift: int,
    i: np.uint64,
    j: np.uint64,
) -> tuple[np.uint64, np.uint64]:
    """Make one step of `add_matching`; returns the next `i` and `j`."""
    a, b = np.uint64(from_slots[i]), np.uint64(slots[j])
    chosen = np.uint64(a == b) & np.uint64(mask[b >> np.uint64(shift)] != 0)
    packed[j] += from_increments[i] & -np.int64(chosen)
    return i + np.uint64(a <= b), j + np.uint64(b <= a)


@njit(nogil=True, cache=True)
def find_slots(rows: Slots, slots: Slots, at: Int64, present: Bytes) -> None:
    """Writes each slot's position in `rows`, or where it would be, and 1 if it is there, else 0."""
    j = np.uint64(0)
    for i in range(np.uint64(slots.size)):
        j = _search(rows, j, np.uint64(slots[i]))
        at[i] = np.int64(j)
        present[i] = j < np.uint64(rows.size) and rows[j] == slots[i]


@njit(nogil=True, cache=True)
def merge_newer(
    a_slots: Slots,
    a_packed: Int64,
    a_clocks: Int64,
    b_slots: Slots,
    b_packed: Int64,
    b_clocks: Int64,
    oldest: int,
    out_slots: Slots,
    out_packed: Int64,
    out_clocks: Int64,
) -> int:
    """Writes the rows of `b`, and those of `a` whose slots are not in `b`, unless they are before `oldest`.

    The outputs are as long as both together. Returns how many rows were written.
    """
    i, k = np.uint64(0), np.uint64(0)
    for j in range(np.uint64(b_slots.size)):
        slot = b_slots[j]
        while i < np.uint64(a_slots.size) and a_slots[i] < slot:
            out_slots[k], out_packed[k], out_clocks[k] = a_slots[i], a_packed[i], a_clocks[i]
            k += np.uint64(a_clocks[i] >= oldest)
            i += np.uint64(1)
        i += np.uint64(i < np.uint64(a_slots.size) and a_slots[i] == slot)
        out_slots[k], out_packed[k], out_clocks[k] = slot, b_packed[j], b_clocks[j]
        k += np.uint64(b_clocks[j] >= oldest)
    for rest in range(i, np.uint64(a_slots.size)):
        out_slots[k], out_packed[k], out_clocks[k] = a_slots[rest], a_packed[rest], a_clocks[rest]
        k += np.uint64(a_clocks[rest] >= oldest)
    return int(np.int64(k))


@njit(nogil=True, cache=True)
def add_logged(
    log_slots: Slots,
    log_increments: NDArray[np.int64],
    log_folds: NDArray[np.int32],
    slots: Slots,
    packed: NDArray[np.int64],
    folds: NDArray[np.int64],
    shift: int,
) -> None:
    """Adds the entries of a log, sorted by slot, to `packed`, the integers of `slots`; slots may repeat.

    Skips entries whose `log_folds` is below the `folds` of their partition, `slot >> shift`.
    """
    i = np.uint64(0)
    for j in range(np.uint64(slots.size)):
        slot = np.uint64(slots[j])
        i = _search(log_slots, i, slot)
        while i < np.uint64(log_slots.size) and np.uint64(log_slots[i]) == slot:
            chosen = log_folds[i] >= folds[slot >> np.uint64(shift)]
            packed[j] += log_increments[i] & -np.int64(chosen)
            i += np.uint64(1)


@njit(nogil=True, cache=True)
def merge_logged(
    a_slots: Slots,
    a_increments: Int64,
    a_folds: NDArray[np.int32],
    b_slots: Slots,
    b_increments: Int64,
    b_folds: NDArray[np.int32],
    out_slots: Slots,
    out_increments: Int64,
    out_folds: NDArray[np.int32],
) -> None:
    """Writes the entries of `a` and `b`, sorted by slot; the outputs are as long as both together."""
    j, k = np.uint64(0), np.uint64(0)
    for i in range(np.uint64(a_slots.size)):
        while j < np.uint64(b_slots.size) and b_slots[j] < a_slots[i]:
            out_slots[k], out_increments[k], out_folds[k] = b_slots[j], b_increments[j], b_folds[j]
            j += np.uint64(1)
            k += np.uint64(1)
        out_slots[k], out_increments[k], out_folds[k] = a_slots[i], a_increments[i], a_folds[i]
        k += np.uint64(1)
    for rest in range(j, np.uint64(b_slots.size)):
        out_slots[k], out_increments[k], out_folds[k] = b_slots[rest], b_increments[rest], b_folds[rest]
        k += np.uint64(1)


@njit(nogil=True, cache=True, inline="always")
def _halve(a_slots: Slots, b_slots: Slots) -> tuple[np.uint64, np.uint64]:
    """The cuts of both sides for two independent merges: equal slots lie on the same side of the cuts."""
    half = np.uint64(b_slots.size) >> np.uint64(1)
    if b_slots.size == 0:
        return np.uint64(a_slots.size), half
    return _lower(a_slots, np.uint64(0), np.uint64(a_slots.size), np.uint64(b_slots[half])), half


@njit(nogil=True, cache=True, inline="always")
def _search(slots: Slots, low: np.uint64, slot: np.uint64) -> np.uint64:
    """The first position from `low` with `slots[position] >= slot`, or the end; fast if it is near."""
    step = np.uint64(1)
    high = low
    while high < np.uint64(slots.size) and np.uint64(slots[high]) < slot:
        low = high + np.uint64(1)
        high = low + step
        step += step
    return _lower(slots, low, min(high, np.uint64(slots.size)), slot)


@njit(nogil=True, cache=True, inline="always")
def _lower(slots: Slots, low: np.uint64, high: np.uint64, slot: np.uint64) -> np.uint64:
    """The first position in `low..high` with `slots[position] >= slot`, or `high`."""
    while low < high:
        middle = (low + high) >> np.uint64(1)
        if np.uint64(slots[middle]) < slot:
            low = middle + np.uint64(1)
        else:
            high = middle
    return low
