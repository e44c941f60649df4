"""`sorted_by_label`: whether rows come in the order of their labels, of which a model learns nothing else."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_FEWER = 50  # rows in bursts, or with a click rate that drifts, change theirs a few times less often


def sorted_by_label(labels: NDArray[np.float32], rate: float) -> bool:
    """Whether labels, float32[n], change far less often than they differ from others with this click rate."""
    changes, own = int(np.count_nonzero(labels[1:] != labels[:-1])), float(labels.mean())
    return _FEWER * (changes + 1) < labels.size * (own * (1 - rate) + rate * (1 - own))
