"""`join_chunks`: consecutive chunks as one, by merging their sorted slots."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctr.features.batches import localize_kernels as kernels
from ctr.features.batches.batch import Chunk, Slots


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
