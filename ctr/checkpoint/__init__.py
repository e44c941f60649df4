"""The folder that a job through Redis can go on from."""

from ctr.checkpoint.checkpoint import MANIFEST, Checkpoint, read_checkpoint, read_job, restore_checkpoint
from ctr.checkpoint.writer import (
    CheckpointDraft,
    draft_checkpoint,
    require_checkpoint_or_nothing,
    sole_writer,
)
