"""What a store counts: saturations, and bytes."""

from __future__ import annotations

from dataclasses import dataclass
from threading import Lock


@dataclass(frozen=True, slots=True)
class Saturations:
    """How often, over all pushes, a slot's numbers could not go as far as training moved them.

    A slot counts once for each push.
    """

    z: int = 0
    """The sum that gives the weight: it has come to the end of what `z_bits` leaves it."""
    n: int = 0
    """The sum of squared gradients: it has come to the end of its range, or to a 16th of that at once."""

    def __add__(self, other: Saturations) -> Saturations:
        return Saturations(self.z + other.z, self.n + other.n)

    @property
    def advice(self) -> str:
        """What that means, and what to do about it; empty if there were none."""
        if self.z:
            return (
                f"in {self.z:,} updates a weight could not go as far as training took it, because its sum "
                f"has a limited range in Redis, and in {self.n:,} a sum of squared gradients was cut off: "
                "training in memory would give a better model. Scale large values to about 1 (those of a "
                "libsvm file, say), or train with --store memory://"
            )
        if self.n:
            return (
                f"in {self.n:,} updates a sum of squared gradients was cut off at its limit in Redis, so "
                "that the steps of these features get no smaller. That does no harm to features of very many "
                "examples; but scale values that are much larger than 1"
            )
        return ""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes that a store has exchanged with its servers."""

    sent: int
    received: int


class SaturationCount:
    """The saturations of all pushes so far; thread-safe."""

    def __init__(self) -> None:
        self.total = Saturations()
        self._lock = Lock()

    def add(self, z: int, n: int) -> None:
        """Count slots whose z and n came to their limits."""
        if z or n:
            with self._lock:
                self.total += Saturations(z, n)
