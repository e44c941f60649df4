"""`fit`: the weights that minimise an objective, by L-BFGS, or by OWL-QN with L1 penalties."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from threading import Event

import numpy as np

from ctr.batch import step_kernels as orthants
from ctr.batch.history import History
from ctr.batch.matrix import Matrix
from ctr.batch.objective import Line, Objective, Point
from ctr.features.threads import Threads
from ctr.optimizers import Float32, Float64, Lbfgs

_DECREASE, _SLOPE = 1e-4, 0.5  # of Wolfe's conditions
_MOST_TRIALS = 30


def search_line(line: Line, slope: float) -> float | None:
    """A step that satisfies the strong Wolfe conditions, first 1; None if no step decreases the value.

    `slope` is the derivative at 0, which is negative. The objective is convex along the line, so Newton steps
    within a bracket converge. A trial only needs the margins, not the features.
    """
    begin, below, above, t = line.start.value, 0.0, float("inf"), 1.0
    for _ in range(_MOST_TRIALS):
        value, rise, curvature = line.at(t)
        if value <= begin + _DECREASE * t * slope and abs(rise) <= -_SLOPE * slope:
            return t
        if rise < 0 and value < begin:
            below = t
        else:
            above = t
        newton = t - rise / curvature if curvature > 0 else 10 * t
        if above == float("inf"):
            t = min(max(newton, 1.5 * t), 10 * t)
        else:
            margin = 0.1 * (above - below)
            t = min(max(newton, below + margin), above - margin)
    return below or None


def search_orthant(objective: Objective, start: Point, d: Float64) -> tuple[Float64, Float64] | None:
    """The point and its margins after the first of the steps 1, 1/2, ... with a sufficient decrease."""
    x, t = np.empty(d.size), 1.0
    for _ in range(_MOST_TRIALS):
        step = partial(orthants.step, start.x, d, start.ascent, objective.l1, t, out=x)
        promised = sum(objective.threads.over(objective.blocks, step))
        margins = objective.margins(x)
        if promised < 0 and objective.value(x, margins) <= start.value + _DECREASE * promised:
            return x, margins
        t /= 2
    return None


@dataclass(frozen=True, slots=True)
class Fit:
    """The result of a minimisation."""

    weights: Float32
    """float32[u], for the slots of the examples."""
    point: Point
    iterations: int
    converged: bool
    """True if the tolerance was reached, or no step decreases the objective within float precision."""
    stopped: bool
    """True if `stop` was set before that."""


def fit(
    examples: Matrix,
    optimizer: Lbfgs,
    start: Float32,
    threads: Threads,
    *,
    stop: Event | None = None,
    on_iteration: Callable[[int, Point], None] = lambda *_: None,
) -> Fit:
    """Minimise, starting from the weights `start` float32[u] of the examples' slots, until `stop` is set.

    It has converged when half the squared norm of the gradient is at most the optimizer's `tolerance` times
    the objective. In scaled coordinates, that is the gain that a step along the gradient can be expected to
    have.
    """
    w = np.empty(start.size)
    w[examples.coordinates] = start
    objective = Objective(examples, optimizer.l1, optimizer.l2, w, threads)
    point = objective.point(objective.x, objective.margins(objective.x))
    history = History(point.x.size, objective.blocks, threads)
    number, stopped = 0, False
    while True:
        converged = point.squares / 2 <= optimizer.tolerance * point.value
        if converged or number >= optimizer.iterations:
            break
        stopped = stop is not None and stop.is_set()
        if stopped:
            break
        next_point = _step(objective, history, point)
        if next_point is None and len(history):
            history.forget()
            next_point = _step(objective, history, point)
        if next_point is None:
            converged = True
            break
        history.add(point.x, next_point.x, point.gradient, next_point.gradient, next_point.ascent)
        point, number = next_point, number + 1
        on_iteration(number, point)
    weights = objective.weights(point.x)[examples.coordinates].astype(np.float32)
    return Fit(weights, point, number, converged, stopped)


def _step(objective: Objective, history: History, point: Point) -> Point | None:
    d = history.direction(point.ascent) if len(history) else -point.ascent
    slope = sum(
        objective.threads.over(
            objective.blocks,
            lambda first, last: orthants.align(d, point.ascent, objective.l1, first, last),
        )
    )
    if not slope < 0:
        return None
    if objective.sparse:
        result = search_orthant(objective, point, d)
        return None if result is None else objective.point(*result)
    line = objective.line(point, d)
    t = search_line(line, slope)
    if t is None:
        return None
    return objective.point(point.x + t * d, point.margins + t * line.moves)
