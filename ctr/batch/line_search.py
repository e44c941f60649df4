"""How far to go into a direction: along a line without L1 penalties, within an orthant with them."""

from __future__ import annotations

from functools import partial

import numpy as np

from ctr.batch import orthant_kernels as orthants
from ctr.batch.objective import Line, Objective, Point
from ctr.optimizers import Float64

_DECREASE, _SLOPE = 1e-4, 0.5  # of Wolfe's conditions
_MOST_TRIALS = 30


def search_line(line: Line, slope: float) -> float | None:
    """A step that satisfies the strong Wolfe conditions, first 1; None where the value does not get less.

    `slope` is that at 0, below 0. The objective is convex along the line, so Newton's steps, kept between
    where it still falls and where it rises, find it. A trial takes the margins alone, none of the features.
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


def search_orthant(
    objective: Objective, start: Point, d: Float64, t: float
) -> tuple[Float64, Float64] | None:
    """The first of the steps t, t / 2, ... with enough of a decrease: where it leads, with the margins."""
    x = np.empty(d.size)
    for _ in range(_MOST_TRIALS):
        promised = sum(
            objective.threads.over(
                objective.blocks,
                partial(_step, objective, start, d, t, x),
            )
        )
        margins = objective.margins(x)
        if promised < 0 and objective.value(x, margins) <= start.value + _DECREASE * promised:
            return x, margins
        t /= 2
    return None


def _step(
    objective: Objective, start: Point, d: Float64, t: float, x: Float64, first: int, last: int
) -> float:
    return orthants.step(start.x, d, start.ascent, objective.l1, t, first, last, x)
