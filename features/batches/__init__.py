"""Batches and chunks of hashed examples, conversion between them, and operations on their rows."""

from ctr.features.batches.batch import MOST_FIELDS, Batch, Chunk, FieldIds, Slots, field_id_dtype, slot_dtype
from ctr.features.batches.builder import BatchBuilder, BatchLayout, MoreFeaturesError
from ctr.features.batches.label_order import sorted_by_label
from ctr.features.batches.localize import localize, merge_slots, slot_counts
from ctr.features.batches.rows import (
    is_compiled,
    join_batches,
    join_chunks,
    slice_rows,
    take_rows,
    warm_up,
)
