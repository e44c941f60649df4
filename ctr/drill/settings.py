"""`DrillSettings`: what `ctr drill` does, and to what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ctr.defaults import STALENESS
from ctr.drill.fault_plan import FAULTS

if TYPE_CHECKING:  # the command's defaults come from here, without what it runs
    from ctr.workers import Consistency


@dataclass(frozen=True, slots=True)
class DrillSettings:
    """What is done, and to what."""

    rows: int = 250_000
    seed: int = 0
    """Of the data, and of the faults' order, moments and victims."""
    nodes: int = 3
    """Primaries at the beginning; from three on, a replica can take over."""
    replicas: int = 1
    """Of each primary."""
    workers: int = 3
    chunk: int = 500
    consistency: Consistency = "ssp"
    staleness: int = STALENESS
    faults: tuple[str, ...] = tuple(FAULTS)
    rounds: int = 1
    """Jobs that meet all the faults, each in another order."""
    freezes: int = 20
    """Of independent servers, after the jobs."""
    freeze_s: float = 7.0
    lag_s: float = 2.0
    node_timeout_s: float = 1.5
    """After which a silent server counts as failed."""
    allowance_s: float = 3.0
    """After that time, training must have gone on within so much more."""
    tolerance: float = 0.003
    """By how much of it the log loss may be worse: several workers never train twice alike."""
    fault_s: float = 4.0
    """How long the job is to train for each fault, and once more, without what the faults take; so pushes
    are slowed down.
    """

    @property
    def recovery_s(self) -> float:
        """After a primary was killed, training must go on within this."""
        return self.node_timeout_s + self.allowance_s
