"""Numba kernels that find the distinct slots of a batch and rewrite it to indices into them.

There are two ways. The *dense* one marks slots in a bitmap, and the rank of a slot is the number of marks
below it. It needs no sort, and is faster as long as the bitmap fits into the caches and has no more words
than the batch has features. The *sparse* one numbers the slots of a piece of the batch with a hash table, in
the order in which they first occur, sorts only the distinct ones, and merges the pieces.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctr.jit import njit

WORD = np.uint64(6)  # log2 of the 64 bits of a word
IN_WORD = np.uint64(63)
ONE = np.uint64(1)
GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2**64 / golden ratio: Knuth's multiplicative hashing
DIGIT = 11  # bits per radix pass: 2048 counters stay in the first-level cache
DIGITS = 1 << DIGIT
_LARGEST = np.finfo(np.float32).max


@njit(nogil=True, cache=True, inline="always")
def count_ones(word: Any) -> Any:
    """The number of ones in a uint64; LLVM compiles this idiom to a single instruction, if there is one."""
    word = word - ((word >> ONE) & np.uint64(0x5555555555555555))
    word = (word & np.uint64(0x3333333333333333)) + ((word >> np.uint64(2)) & np.uint64(0x3333333333333333))
    word = (word + (word >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return (word * np.uint64(0x0101010101010101)) >> np.uint64(56)


@njit(nogil=True, cache=True)
def mark(slots: NDArray[Any], words: NDArray[np.uint64]) -> None:
    """Sets the bit of every slot."""
    for k in range(slots.size):
        slot = np.uint64(slots[k])
        words[slot >> WORD] |= ONE << (slot & IN_WORD)


@njit(nogil=True, cache=True)
def count_marks(words: NDArray[np.uint64]) -> int:
    """The number of bits set."""
    n = np.uint64(0)
    for w in range(words.size):
        n += count_ones(words[w])
    return int(n)


@njit(nogil=True, cache=True)
def count_before(words: NDArray[np.uint64], before: NDArray[np.uint32]) -> int:
    """Writes, per word, the number of bits set in the words below it; returns the number of all bits set."""
    n = np.uint32(0)
    for w in range(words.size):
        before[w] = n
        n += np.uint32(count_ones(words[w]))
    return int(n)


@njit(nogil=True, cache=True)
def list_marks(words: NDArray[np.uint64], unique: NDArray[Any]) -> None:
    """Writes the positions of the bits set, ascending."""
    n = 0
    for w in range(words.size):
        rest = words[w]
        base = np.uint64(w) << WORD
        while rest:
            lowest = rest & (~rest + ONE)
            unique[n] = base + count_ones(lowest - ONE)
            n += 1
            rest ^= lowest


@njit(nogil=True, cache=True)
def rank_marks(
    slots: NDArray[Any], words: NDArray[np.uint64], before: NDArray[np.uint32], ranks: NDArray[np.uint32]
) -> None:
    """Writes, per slot, the number of bits set below its own."""
    for k in range(slots.size):
        slot = np.uint64(slots[k])
        w = slot >> WORD
        below = (ONE << (slot & IN_WORD)) - ONE
        ranks[k] = before[w] + np.uint32(count_ones(words[w] & below))


@njit(nogil=True, cache=True)
def number_slots(
    slots: NDArray[Any],
    start: int,
    table: NDArray[np.uint32],
    unique: NDArray[Any],
    known: int,
    numbers: NDArray[np.uint32],
) -> tuple[int, int]:
    """Numbers slots in the order in which they first occur, from position `start`, after `known` others.

    `table` is an open-addressing table with a power of two entries, each a number plus 1, or 0 if free; the
    slots themselves are in `unique`. Stops at the end, or when the table is half full. Returns the position
    to continue from, and how many slots then have numbers.
    """
    mask = np.uint64(table.size - 1)
    shift = np.uint64(64) - count_ones(mask)
    limit = np.uint32(table.size >> 1)
    n = np.uint32(known)
    for k in range(start, slots.size):
        slot = slots[k]
        p = (np.uint64(slot) * GOLDEN) >> shift
        while True:
            entry = table[p]
            if entry == 0:
                if n == limit:
                    return k, int(n)
                unique[n] = slot
                numbers[k] = n
                n += np.uint32(1)
                table[p] = n
                break
            if unique[entry - np.uint32(1)] == slot:
                numbers[k] = entry - np.uint32(1)
                break
            p = (p + ONE) & mask
    return slots.size, int(n)


@njit(nogil=True, cache=True)
def fill_table(unique: NDArray[Any], table: NDArray[np.uint32]) -> None:
    """Enters distinct slots, numbered by their position, into an empty table for `number_slots`."""
    mask = np.uint64(table.size - 1)
    shift = np.uint64(64) - count_ones(mask)
    for n in range(unique.size):
        p = (np.uint64(unique[n]) * GOLDEN) >> shift
        while table[p] != 0:
            p = (p + ONE) & mask
        table[p] = np.uint32(n + 1)


@njit(nogil=True, cache=True)
def count_digits(keys: NDArray[Any], counts: NDArray[np.uint32]) -> None:
    """Adds to `counts[d, v]` the number of keys whose digit `d` (11 bits each, lowest first) is `v`."""
    for k in range(keys.size):
        rest = np.uint64(keys[k])
        for d in range(counts.shape[0]):
            counts[d, rest & np.uint64(DIGITS - 1)] += np.uint32(1)
            rest >>= np.uint64(DIGIT)


@njit(nogil=True, cache=True)
def sort_by_digit(
    keys: NDArray[Any],
    numbers: NDArray[np.uint32],
    digit: int,
    counts: NDArray[np.uint32],
    sorted_keys: NDArray[Any],
    sorted_numbers: NDArray[np.uint32],
) -> None:
    """One stable pass of a least-significant-digit radix sort of pairs; overwrites `counts`."""
    total = np.uint32(0)
    for v in range(counts.size):
        count = counts[v]
        counts[v] = total
        total += count
    shift = np.uint64(digit * DIGIT)
    for k in range(keys.size):
        value = (np.uint64(keys[k]) >> shift) & np.uint64(DIGITS - 1)
        to = counts[value]
        counts[value] = to + np.uint32(1)
        sorted_keys[to] = keys[k]
        sorted_numbers[to] = numbers[k]


@njit(nogil=True, cache=True)
def merge(
    left: NDArray[Any],
    right: NDArray[Any],
    merged: NDArray[Any],
    left_ranks: NDArray[np.uint32],
    right_ranks: NDArray[np.uint32],
) -> int:
    """Merges two lists of sorted, unique slots into one such list; returns its length.

    Writes where each slot went to `left_ranks` and `right_ranks`. `merged` has room for both lists.
    """
    i, j, n = np.uint64(0), np.uint64(0), np.uint64(0)
    lefts, rights = np.uint64(left.size), np.uint64(right.size)
    # No branch depends on the slots, as it would be mispredicted; a rank is overwritten until it is final.
    while i < lefts and j < rights:
        a, b = left[i], right[j]
        merged[n] = min(a, b)
        left_ranks[i] = np.uint32(n)
        right_ranks[j] = np.uint32(n)
        i += np.uint64(a <= b)
        j += np.uint64(b <= a)
        n += ONE
    while i < lefts:
        merged[n] = left[i]
        left_ranks[i] = np.uint32(n)
        i += ONE
        n += ONE
    while j < rights:
        merged[n] = right[j]
        right_ranks[j] = np.uint32(n)
        j += ONE
        n += ONE
    return int(n)


@njit(nogil=True, cache=True)
def number_used(
    indices: NDArray[np.uint32],
    ranks: NDArray[np.uint32],
    places: NDArray[np.uint32],
    numbers: NDArray[np.uint32],
) -> int:
    """Writes the indices that occur, ascending, to `places`, and the position of each of `indices` there to
    `numbers`.

    `ranks` is all zeros, and longer than the largest index; `places` has one element more than `ranks`.
    Returns how many indices occur.
    """
    for k in range(indices.size):
        ranks[indices[k]] = 1
    count = np.uint32(0)
    for j in range(ranks.size):
        places[count] = np.uint32(j)
        count += ranks[j]
        ranks[j] = count
    for k in range(indices.size):
        numbers[k] = ranks[indices[k]] - np.uint32(1)
    return int(count)


@njit(nogil=True, cache=True)
def invert(order: NDArray[np.uint32], ranks: NDArray[np.uint32]) -> None:
    """Writes the inverse of a permutation."""
    for k in range(order.size):
        ranks[order[k]] = np.uint32(k)


@njit(nogil=True, cache=True)
def gather(table: NDArray[Any], indices: NDArray[np.uint32], out: NDArray[Any]) -> None:
    """Writes `table[indices]`; `out` may be `indices`. NumPy takes 2 to 3 times as long."""
    for k in range(indices.size):
        out[k] = table[indices[k]]


@njit(nogil=True, cache=True)
def count_indices(indices: NDArray[np.uint32], counts: NDArray[np.uint32]) -> None:
    """Adds to `counts[i]` the number of times `i` occurs."""
    for k in range(indices.size):
        counts[indices[k]] += np.uint32(1)


@njit(nogil=True, cache=True)
def scale_values(
    fields: NDArray[Any],
    values: NDArray[np.float32] | None,
    scales: NDArray[np.float32],
    out: NDArray[np.float32],
) -> None:
    """Writes the value of each feature times the scale of its field, limited as in the transform."""
    for k in range(fields.size):
        scale = scales[fields[k]]
        out[k] = scale if values is None else min(max(values[k] * scale, -_LARGEST), _LARGEST)


@njit(nogil=True, cache=True)
def copy_rows(
    indptr: NDArray[np.int64],
    cells: NDArray[Any],
    order: NDArray[np.int64],
    placed: NDArray[np.int64],
    out: NDArray[Any],
) -> None:
    """Copies the cells of the rows `order`; `placed` are the boundaries of the copies in `out`."""
    for i in range(order.size):
        row = order[i]
        # Unsigned, so that no index is checked for being negative.
        source = np.uint64(indptr[row])
        target = np.uint64(placed[i])
        for k in range(np.uint64(indptr[row + 1]) - source):
            out[target + np.uint64(k)] = cells[source + np.uint64(k)]
