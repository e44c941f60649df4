"""`localize`: from a batch to its distinct slots and indices into them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctr.features.batches import localize_kernels as kernels
from ctr.features.batches.batch import Batch, Chunk, Slots

_KEEP_BYTES = 64 << 20  # a larger working array is freed after use
_LEAST_TABLE = 64
_PIECE = 1 << 20  # features that are numbered at once, so that the table, of 1 MiB, stays in the cache
_DENSE_WORDS = 1 << 19  # a larger bitmap, of more than 4 MiB, does not fit into the caches

_thread = threading.local()


def localize(batch: Batch | Chunk) -> Chunk:
    """The same examples over sorted, unique slots; a `Chunk` is returned as it is.

    The chunk's `slots`, of the same dtype, and `indices` are new arrays; the others are the batch's own. Any
    slots are allowed, even 0 and the largest of the dtype. Each thread keeps its own working arrays.
    """
    if isinstance(batch, Chunk):
        return batch
    slots: Any = np.ascontiguousarray(batch.slots)
    indices = np.empty(slots.size, np.uint32)
    words = (int(slots.max()) >> 6) + 1 if slots.size else 0
    # Per feature, with 65,536 Criteo rows or more: dense takes 3 ns at 2**22 slots, 5 at 2**24, 8 at 2**25,
    # 11 to 14 at 2**26, 16 to 20 at 2**28; sparse 8 to 14 at any (25 if a million rows were one piece).
    dense = words <= min(slots.size, _DENSE_WORDS)
    unique = _number_dense(slots, words, indices) if dense else _number_sparse(slots, indices)
    return Chunk(batch.indptr, unique, indices, batch.values, batch.labels, batch.weights, batch.fields)


def used_slots(slots: Slots, indices: NDArray[np.uint32]) -> tuple[Slots, NDArray[np.uint32]]:
    """The slots at `indices`, unique and in order, and the positions of all `indices` among them.

    Cheaper than `localize` of the slots themselves, as indices have the order of the slots.
    """
    numbers = np.empty(indices.size, np.uint32)
    if slots.size > indices.size:
        places = _number_dense(indices, (slots.size >> 6) + 1, numbers)
    else:  # slots occur many times: an array with an entry for each takes a quarter of a bitmap's time
        ranks, places = _scratch("ranks", np.uint32, slots.size), np.empty(slots.size + 1, np.uint32)
        ranks.fill(0)
        places = places[: kernels.number_used(indices, ranks, places, numbers)]
    used: Any = np.empty(places.size, slots.dtype)
    kernels.gather(slots, places, used)
    return used, numbers


def merge_slots(lists: Sequence[Slots]) -> tuple[Slots, list[NDArray[np.uint32]]]:
    """The distinct slots of sorted lists without repeats, and for each list the positions of its slots there.

    Merging pairs takes 10 ns per slot with 16 lists of 180,000; a radix sort of all, or a hash table, 25 to
    40. A bitmap is faster, by 6 ns, only if it has hardly more bits than there are slots.
    """
    if len(lists) == 1:
        return lists[0], [np.arange(lists[0].size, dtype=np.uint32)]
    half = len(lists) // 2
    left, left_ranks = merge_slots(lists[:half])
    right, right_ranks = merge_slots(lists[half:])
    merged: Any = np.empty(left.size + right.size, left.dtype)
    from_left, from_right = np.empty(left.size, np.uint32), np.empty(right.size, np.uint32)
    size = kernels.merge(left, right, merged, from_left, from_right)
    for ranks in left_ranks:
        kernels.gather(from_left, ranks, ranks)
    for ranks in right_ranks:
        kernels.gather(from_right, ranks, ranks)
    return merged[:size], left_ranks + right_ranks


def slot_counts(chunk: Chunk) -> NDArray[np.uint32]:
    """How often each of the chunk's slots occurs in it: uint32[u]."""
    counts = np.zeros(chunk.slots.size, np.uint32)
    kernels.count_indices(chunk.indices, counts)
    return counts


def _number_dense(slots: Slots, words: int, indices: NDArray[np.uint32]) -> Any:
    marks = _scratch("marks", np.uint64, words)
    marks.fill(0)
    kernels.mark(slots, marks)
    before = _scratch("before", np.uint32, words)
    unique = np.empty(kernels.count_before(marks, before), slots.dtype)
    kernels.list_marks(marks, unique)
    kernels.rank_marks(slots, marks, before, indices)
    return unique


def _number_sparse(slots: Slots, indices: NDArray[np.uint32]) -> Any:
    pieces = [slice(at, at + _PIECE) for at in range(0, slots.size, _PIECE)]
    numbered = [_number_piece(slots[piece], indices[piece]) for piece in pieces]
    unique, places = merge_slots([ordered for ordered, _ in numbered])
    for piece, (_, ranks), place in zip(pieces, numbered, places, strict=True):
        kernels.gather(place, ranks, ranks)
        kernels.gather(ranks, indices[piece], indices[piece])
    return unique


def _number_piece(slots: Slots, numbers: NDArray[np.uint32]) -> tuple[Any, NDArray[np.uint32]]:
    """Numbers slots in the order in which they first occur; returns them sorted, and each number's rank."""
    entries = max(_LEAST_TABLE, 1 << (slots.size // 4 - 1).bit_length())
    position = count = 0
    unique = np.empty(0, slots.dtype)
    while True:
        table = _scratch("table", np.uint32, entries)
        table.fill(0)
        kernels.fill_table(unique[:count], table)
        previous = unique[:count]
        unique = _scratch("unique", slots.dtype, entries // 2)
        unique[:count] = previous
        position, count = kernels.number_slots(slots, position, table, unique, count, numbers)
        if position == slots.size:
            break
        entries *= 4
    ordered, order = _sort_numbered(unique[:count])
    ranks = np.empty(count, np.uint32)
    kernels.invert(order, ranks)
    return ordered, ranks


def _sort_numbered(unique: Slots) -> tuple[Any, NDArray[np.uint32]]:
    """Sorts distinct slots into a new array; also returns the position of each in `unique`.

    Takes 5 to 9 ns per slot for 160,000 slots; `np.argsort` takes 50 to 60.
    """
    digits = -(-int(unique.max()).bit_length() // kernels.DIGIT) or 1
    counts = np.zeros((digits, kernels.DIGITS), np.uint32)
    kernels.count_digits(unique, counts)
    keys, numbers = unique, np.arange(unique.size, dtype=np.uint32)
    spare = [(np.empty_like(unique), np.empty_like(numbers)) for _ in range(2)]
    for digit in range(digits):
        to_keys, to_numbers = spare[digit % 2]
        kernels.sort_by_digit(keys, numbers, digit, counts[digit], to_keys, to_numbers)
        keys, numbers = to_keys, to_numbers
    return keys, numbers


def _scratch(name: str, dtype: Any, size: int) -> NDArray[Any]:
    """An array of this thread's own, with the content of its last use."""
    key = f"{name}:{np.dtype(dtype).char}"
    array: NDArray[Any] | None = getattr(_thread, key, None)
    if array is None or array.size < size:
        array = np.empty(1 << max(size - 1, 0).bit_length(), dtype)
        if array.nbytes <= _KEEP_BYTES:
            setattr(_thread, key, array)
    return array[:size]
