"""Checkpoints: folders from which a job with a store in Redis can be resumed."""

from ctr.checkpoint.checkpoint import (
    MANIFEST,
    Checkpoint,
    read_checkpoint,
    read_job,
    read_position,
    restore_checkpoint,
)
from ctr.checkpoint.writer import (
    draft_checkpoint,
    remove_checkpoint,
    require_checkpoint_or_nothing,
    sole_writer,
)
