"""Cells to hashed features: one transform for training and serving alike."""

from ctr.features.transform.plan import seed_of
from ctr.features.transform.transform import History, Transform
