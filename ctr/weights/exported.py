"""`Exported`: what of a model goes into a file for other programs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ctr.features import FeatureSpec


class Calibration(Protocol):
    """A map of log-odds: linear between its points, and with `slope` beyond them."""

    @property
    def margins(self) -> NDArray[np.float64]: ...
    @property
    def log_odds(self) -> NDArray[np.float64]: ...
    @property
    def slope(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Exported:
    """What of a model goes into a file."""

    model: str
    """Its id."""
    spec: FeatureSpec
    weights: pa.Table
    """See `weight_table`."""
    calibration: Calibration | None = None
