"""Cells to hashed features: one transform for training and serving alike."""

from features.transform.hashing import hash_bytes
from features.transform.label_kernels import BAD_LABEL, MINUS_LABEL, ZERO_LABEL
from features.transform.transform import RowStatus, Transform

__all__ = [
    "BAD_LABEL",
    "MINUS_LABEL",
    "ZERO_LABEL",
    "RowStatus",
    "Transform",
    "hash_bytes",
]
