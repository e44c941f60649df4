"""`SplitPass`: what a task met in its split of the raw files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class SplitPass:
    """One pass over the rows of a split, whose positions count from its first row."""

    rows: int
    """The number of its data rows, good or bad."""
    bad: NDArray[np.int64]
    left_out: NDArray[np.int64]
    """int64: the positions of bad rows, and of rows that are bad or not chosen; both ascending."""
    examples: Sequence[str]
    """What was wrong with the first few bad rows."""
    reasons: Counter[str]
    kept: Path
    """The file of the bad rows, if they are kept and there are any."""
    no_click: int
    """The label of rows without a click, see `BatchBuilder.no_click`."""
