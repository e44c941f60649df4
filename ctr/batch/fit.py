"""`fit`: the weights that minimise an objective over examples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from threading import Event

import numpy as np

from ctr.batch.matrix import Matrix
from ctr.batch.minimise import Minimum, minimise
from ctr.batch.objective import Objective, Point
from ctr.features.threads import Threads
from ctr.optimizers import Float32, Float64, Lbfgs


@dataclass(frozen=True, slots=True)
class Fit:
    """What was found."""

    weights: Float32
    """float32[u], at the slots of the examples."""
    margins: Float64
    """float64[n]: what they make of the examples."""
    minimum: Minimum


def fit(
    examples: Matrix,
    optimizer: Lbfgs,
    start: Float32,
    threads: Threads,
    *,
    stop: Event | None = None,
    on_iteration: Callable[[int, Point], None] = lambda *_: None,
) -> Fit:
    """Minimise from the weights `start` float32[u] at the slots of the examples, until `stop` is set."""
    w = np.empty(start.size)
    w[examples.coordinates] = start
    objective = Objective(examples, optimizer.l1, optimizer.l2, w, threads)
    found = minimise(
        objective,
        iterations=int(optimizer.iterations),
        tolerance=optimizer.tolerance,
        stop=stop or Event(),
        on_iteration=on_iteration,
    )
    weights = objective.weights(found.point.x)[examples.coordinates].astype(np.float32)
    return Fit(weights, found.point.margins, found)
