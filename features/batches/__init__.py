"""Batches and chunks of hashed examples, and the way from one to the other."""

from features.batches.batch import Batch, Slots, slot_dtype
from features.batches.builder import BatchBuilder
from features.batches.chunk import Chunk
from features.batches.join import join_chunks, merge_slots
from features.batches.localize import localize, slice_chunk, slot_counts, warm_up
