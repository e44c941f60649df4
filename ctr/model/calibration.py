"""`Calibration`: a map from a model's margins to the log-odds observed on validation rows."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from ctr.errors import ModelError
from ctr.optimizers import Float32

Float64 = NDArray[np.float64]
Method = Literal["isotonic", "platt"]
METHODS: tuple[Method, ...] = get_args(Method)


@dataclass(frozen=True)
class Calibration:
    """A non-decreasing map of log-odds: linear between its points, with slope `slope` beyond them.

    Isotonic regression has one point per block and the slope 0; Platt's line is one point and its slope.
    Immutable, so any number of threads may use one object.
    """

    method: Method
    margins: Float64
    """float64[k], k at least 1, ascending: the model's log-odds, the sum of weights times values."""
    log_odds: Float64
    """float64[k], non-decreasing, finite: the log-odds that the margins are mapped to."""
    slope: float
    """At least 0."""
    facts: dict[str, Any] = field(default_factory=dict, compare=False)
    """A description of the rows it was fitted on, as JSON."""

    def __post_init__(self) -> None:
        margins, log_odds = self.margins, self.log_odds
        sound = margins.ndim == 1 and margins.shape == log_odds.shape and margins.size > 0
        sound = sound and bool(np.isfinite(margins).all() and np.isfinite(log_odds).all())
        sound = sound and bool((np.diff(margins) > 0).all() and (np.diff(log_odds) >= 0).all())
        if not sound or not 0 <= self.slope < np.inf:
            raise ModelError("a calibration's points are out of order, or not numbers.")

    def __call__(self, margins: Float32) -> Float32:
        """The calibrated log-odds float32[n]; each depends on its own margin only, to the last bit."""
        wide = margins.astype(np.float64)
        log_odds = np.interp(wide, self.margins, self.log_odds)
        if self.slope:
            log_odds += self.slope * (wide - np.clip(wide, self.margins[0], self.margins[-1]))
        return log_odds.astype(np.float32)

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of the map."""
        digest = hashlib.sha256(np.float64(self.slope).tobytes())
        digest.update(self.margins.tobytes())
        digest.update(self.log_odds.tobytes())
        return digest.digest()

    def to_json(self) -> dict[str, Any]:
        """The manifest's entry; a file beside it has the points."""
        return {"method": self.method, "slope": self.slope, "points": self.margins.size, **self.facts}
