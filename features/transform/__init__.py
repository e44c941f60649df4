"""Cells to hashed features: one transform for training and serving alike."""

from features.transform.plan import seed_of
from features.transform.transform import History, Transform
