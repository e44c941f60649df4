"""Batches and chunks of hashed examples, and the way from one to the other."""

from ctr.features.batches.batch import MOST_FIELDS, Batch, Chunk, FieldIds, Slots, field_id_dtype, slot_dtype
from ctr.features.batches.builder import BatchBuilder
from ctr.features.batches.localize import (
    is_compiled,
    join_chunks,
    localize,
    merge_slots,
    slice_chunk,
    slot_counts,
    warm_up,
)
