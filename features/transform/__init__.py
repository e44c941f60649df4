"""Cells to hashed features: one transform for training and serving alike."""

from features.transform.columns import Bag, Column, Numbers, Words
from features.transform.hashing import hash_bytes
from features.transform.steps import STEPS, Fit, Step, register_step
from features.transform.transform import RowStatus, Transform

__all__ = [
    "STEPS",
    "Bag",
    "Column",
    "Fit",
    "Numbers",
    "RowStatus",
    "Step",
    "Transform",
    "Words",
    "hash_bytes",
    "register_step",
]
