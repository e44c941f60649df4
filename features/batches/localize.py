"""`localize`: from a batch to its distinct slots and indices into them; `join_chunks`: several as one."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctr.features.batches import localize_kernels as kernels
from ctr.features.batches.batch import Batch, Chunk, Slots, slot_dtype
from ctr.jit import is_cached

_KEEP_BYTES = 64 << 20  # a larger working array is freed after use
_LEAST_TABLE = 64
_PIECE = 1 << 20  # features that are numbered at once: the table, of 1 MiB, is to stay in the cache
_DENSE_WORDS = 1 << 19  # for a larger bitmap, of more than 4 MiB, the caches are too small

_thread = threading.local()


def localize(batch: Batch | Chunk) -> Chunk:
    """The same examples over sorted, unique slots; a `Chunk` is returned as it is.

    The chunk's `slots` (dtype kept) and `indices` are new arrays, the others are the batch's own. Slots may
    be any, 0 and the largest of the dtype included. Each thread keeps its own working arrays.
    """
    if isinstance(batch, Chunk):
        return batch
    slots: Any = np.ascontiguousarray(batch.slots)
    indices = np.empty(slots.size, np.uint32)
    words = (int(slots.max()) >> 6) + 1 if slots.size else 0
    # Per feature, on 65,536 Criteo rows or more: dense takes 3 ns at 2**22 slots, 5 at 2**24, 8 at 2**25,
    # 11 to 14 at 2**26, 16 to 20 at 2**28. Sparse takes 8 to 14 at any (25 for a million rows in one piece).
    dense = words <= min(slots.size, _DENSE_WORDS)
    unique = _number_dense(slots, words, indices) if dense else _number_sparse(slots, indices)
    return Chunk(batch.indptr, unique, indices, batch.values, batch.labels, batch.weights, batch.fields)


def warm_up(bits: int) -> None:
    """Compile, or load from the cache, all that `localize` and its companions may need for such slots."""
    for largest in (0, (1 << bits) - 1):  # the dense way and, from 8 bits on, the sparse one
        slots: Any = np.array([0, largest], slot_dtype(bits))
        chunk = localize(Batch(np.array([0, 1, 2]), slots))
        slot_counts(slice_chunk(chunk, 0, 1))
        join_chunks([chunk, chunk])


def is_compiled() -> bool:
    """Whether that has been done before, by any process."""
    return is_cached(kernels.merge)


def slice_chunk(chunk: Chunk, start: int, stop: int) -> Chunk:
    """Rows `start` to `stop` (exclusive) of a chunk, over the slots that occur in them; all rows: the chunk.

    Cheaper than to `localize` their slots afresh, for a chunk's indices are already in the slots' order.
    Labels, weights and values are views.
    """
    if stop - start == len(chunk):
        return chunk
    first, last = int(chunk.indptr[start]), int(chunk.indptr[stop])
    used = chunk.indices[first:last]
    indices = np.empty(used.size, np.uint32)
    unique = _number_dense(used, (chunk.slots.size >> 6) + 1, indices)
    slots = np.empty(unique.size, chunk.slots.dtype)
    kernels.gather(chunk.slots, unique, slots)
    return Chunk(
        indptr=chunk.indptr[start : stop + 1] - first,
        slots=slots,
        indices=indices,
        values=None if chunk.values is None else chunk.values[first:last],
        labels=None if chunk.labels is None else chunk.labels[start:stop],
        weights=None if chunk.weights is None else chunk.weights[start:stop],
        fields=None if chunk.fields is None else chunk.fields[first:last],
    )


def join_chunks(chunks: Sequence[Chunk]) -> Chunk:
    """The examples of all chunks, in their order, as `localize` would make one chunk of them.

    Takes a fifth of that time: it compares slots that are in order already, and not every feature. Where only
    some chunks have values or weights, the others get ones; there are labels, and field ids, where all have
    some. Copies, unless there is just one chunk.
    """
    if len(chunks) == 1:
        return chunks[0]
    slots, ranks = merge_slots([chunk.slots for chunk in chunks])
    rows, features = sum(map(len, chunks)), sum(chunk.indices.size for chunk in chunks)
    indptr = np.zeros(rows + 1, np.int64)
    indices = np.empty(features, np.uint32)
    row = feature = 0
    for chunk, ranks_of_chunk in zip(chunks, ranks, strict=True):
        end, last = row + len(chunk), feature + chunk.indices.size
        np.add(chunk.indptr[1:], feature, out=indptr[row + 1 : end + 1])
        kernels.gather(ranks_of_chunk, chunk.indices, indices[feature:last])
        row, feature = end, last
    labels = [chunk.labels for chunk in chunks if chunk.labels is not None]
    fields: list[Any] = [chunk.fields for chunk in chunks if chunk.fields is not None]
    return Chunk(
        indptr=indptr,
        slots=slots,
        indices=indices,
        values=_together((chunk.values, chunk.indices.size) for chunk in chunks),
        labels=np.concatenate(labels) if len(labels) == len(chunks) else None,
        weights=_together((chunk.weights, len(chunk)) for chunk in chunks),
        fields=np.concatenate(fields) if len(fields) == len(chunks) else None,
    )


def merge_slots(lists: Sequence[Slots]) -> tuple[Slots, list[NDArray[np.uint32]]]:
    """The distinct slots of sorted lists without repeats, and for each list where its slots are among them.

    Pair by pair takes 10 ns per slot of 16 lists of 180,000, a radix sort of all or a hash table 25 to 40. A
    bitmap is faster, by 6 ns, only where it has hardly more bits than there are slots.
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


def _together(pieces: Iterable[tuple[NDArray[np.float32] | None, int]]) -> NDArray[np.float32] | None:
    """The pieces, of which each may be None for so many ones; None when all are."""
    kept = list(pieces)
    if all(piece is None for piece, _ in kept):
        return None
    return np.concatenate([np.ones(size, np.float32) if piece is None else piece for piece, size in kept])


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
    """Number slots in the order they turn up; return them sorted, and the rank of each number."""
    entries = max(_LEAST_TABLE, 1 << (slots.size // 4 - 1).bit_length())
    position = found = 0
    unique = np.empty(0, slots.dtype)
    while True:
        table = _scratch("table", np.uint32, entries)
        table.fill(0)
        kernels.fill_table(unique[:found], table)
        seen = unique[:found]
        unique = _scratch("unique", slots.dtype, entries // 2)
        unique[:found] = seen
        position, found = kernels.number_slots(slots, position, table, unique, found, numbers)
        if position == slots.size:
            break
        entries *= 4
    ordered, order = _sort_numbered(unique[:found])
    ranks = np.empty(found, np.uint32)
    kernels.invert(order, ranks)
    return ordered, ranks


def _sort_numbered(unique: Slots) -> tuple[Any, NDArray[np.uint32]]:
    """Distinct slots in order (a new array), and each one's position before.

    Takes 5 to 9 ns per slot for 160,000 of them, `np.argsort` 50 to 60.
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
    """An array of this thread's own, its content left over from the last use."""
    key = f"{name}:{np.dtype(dtype).char}"
    kept: NDArray[Any] | None = getattr(_thread, key, None)
    if kept is None or kept.size < size:
        kept = np.empty(1 << max(size - 1, 0).bit_length(), dtype)
        if kept.nbytes <= _KEEP_BYTES:
            setattr(_thread, key, kept)
    return kept[:size]
