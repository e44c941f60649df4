"""`minimise`: L-BFGS, and OWL-QN where there are L1 penalties."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from threading import Event

from ctr.batch import orthant_kernels as orthants
from ctr.batch.history import History
from ctr.batch.line_search import search_line, search_orthant
from ctr.batch.objective import Objective, Point


@dataclass(frozen=True, slots=True)
class Minimum:
    """Where a minimisation ended."""

    point: Point
    iterations: int
    converged: bool
    """Whether the tolerance was reached, or no step makes the objective less in the numbers' precision."""
    stopped: bool = False
    """Whether it was told to stop before that."""


def minimise(
    objective: Objective,
    *,
    iterations: int,
    tolerance: float,
    stop: Event,
    on_iteration: Callable[[int, Point], None] = lambda *_: None,
) -> Minimum:
    """From `objective.x` to the minimum, in so many iterations at most, until `stop` is set.

    It has converged when half the gradient's squares, what a step along it would gain by the curvature of the
    single coordinates, is at most `tolerance` times the objective.
    """
    point = objective.point(objective.x, objective.margins(objective.x))
    history = History(point.x.size, objective.blocks, objective.threads)
    for number in range(iterations):
        if point.squares / 2 <= tolerance * point.value:
            return Minimum(point, number, True)
        if stop.is_set():
            return Minimum(point, number, False, stopped=True)
        found = _step(objective, history, point)
        if found is None and len(history):
            history.forget()
            found = _step(objective, history, point)
        if found is None:
            return Minimum(point, number, True)
        history.add(point.x, found.x, point.gradient, found.gradient, found.ascent)
        point = found
        on_iteration(number + 1, point)
    return Minimum(point, iterations, point.squares / 2 <= tolerance * point.value)


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
        there = search_orthant(objective, point, d, 1.0)
        return None if there is None else objective.point(*there)
    line = objective.line(point, d)
    t = search_line(line, slope)
    if t is None:
        return None
    return objective.point(point.x + t * d, point.margins + t * line.moves)
