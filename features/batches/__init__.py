"""Batches and chunks of hashed examples, and the way from one to the other."""

from features.batches.batch import Batch, Slots, slot_dtype
from features.batches.builder import BatchBuilder
from features.batches.chunk import Chunk
from features.batches.localize import localize, slice_chunk, slot_counts, take, warm_up

__all__ = [
    "Batch",
    "BatchBuilder",
    "Chunk",
    "Slots",
    "localize",
    "slice_chunk",
    "slot_counts",
    "slot_dtype",
    "take",
    "warm_up",
]
