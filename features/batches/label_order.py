"""`sorted_by_label`: whether rows are in the order of their labels; a model would learn nothing else."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_FEWER = 50  # in rows with bursts, or a click rate that drifts, labels change only a few times less often


def sorted_by_label(labels: NDArray[np.float32], rate: float) -> bool:
    """Whether labels, float32[n], change far less often than they would differ from labels with click rate
    `rate`."""
    changes, own_rate = int(np.count_nonzero(labels[1:] != labels[:-1])), float(labels.mean())
    return _FEWER * (changes + 1) < labels.size * (own_rate * (1 - rate) + rate * (1 - own_rate))
