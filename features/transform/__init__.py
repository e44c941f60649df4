"""Cells to hashed features: one transform for training and serving alike."""

from features.transform.columns import Arrays, Bag, Column, Hashes, Words
from features.transform.hashing import hash_bytes
from features.transform.kernels import RowStatus
from features.transform.number_steps import buckets_of
from features.transform.plan import seed_of
from features.transform.steps import STEPS, Fit, Step, register_step
from features.transform.transform import History, Transform
