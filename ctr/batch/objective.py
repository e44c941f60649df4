"""`Objective`: the penalised log loss of all examples, in coordinates of about equal curvature."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ctr.batch import gradient_kernels as kernels
from ctr.batch import step_kernels as orthants
from ctr.batch.matrix import Matrix, equal_blocks
from ctr.features.threads import Threads
from ctr.optimizers import Float64

BLOCK = 1 << 17  # coordinates of vectors that are processed at a time


@dataclass(frozen=True, slots=True)
class Point:
    """A point of a minimisation, with the objective's value and gradient there."""

    x: Float64
    """float64[u], scaled coordinates."""
    margins: Float64
    """float64[n]."""
    losses: float
    """The weighted sum of the log losses."""
    value: float
    """The objective: `losses` and the penalties."""
    gradient: Float64
    """float64[u], without L1 penalties."""
    ascent: Float64
    """float64[u]: the pseudo-gradient, with L1 penalties; without any, the gradient itself."""
    squares: float
    """The squared norm of `ascent`."""


@dataclass(frozen=True, slots=True)
class Line:
    """The objective at `x + t * d`, without L1 penalties, as a function of `t`."""

    objective: Objective
    start: Point
    moves: Float64
    """float64[n]: the derivative of the margins by `t`."""
    penalty: float
    slope: float
    curvature: float
    """The penalties at t = 0, and their first and second derivative."""

    def at(self, t: float) -> tuple[float, float, float]:
        """The value, and its first and second derivative by `t`."""
        parts = self.objective.losses_along(self.start.margins, self.moves, t)
        value = self.penalty + t * (self.slope + t * self.curvature / 2)
        return parts[0] + value, parts[1] + self.slope + t * self.curvature, parts[2] + self.curvature


class Objective:
    """`sum(weight * log loss) + l1 * |w| + l2 / 2 * w**2`, the bias without penalties.

    It is a function of scaled coordinates `x = w / scale`, with `1 / scale**2` the second derivative by each
    weight at the start. L-BFGS's first approximation of the Hessian is then right on the diagonal. In hashed
    logs some features occur in every example, and most in a single one.
    """

    def __init__(self, examples: Matrix, l1: float, l2: float, w: Float64, threads: Threads) -> None:
        """`w` float64[u]: the weights at the start, by coordinate."""
        self.examples, self.threads = examples, threads
        size = examples.slots.size
        self._row_blocks, self._coordinate_blocks = examples.row_blocks, examples.coordinate_blocks
        self.blocks = equal_blocks(size, BLOCK)
        self._slopes, self._curvatures = np.empty(len(examples)), np.empty(len(examples))
        penalised = np.ones(size)
        if size and examples.slots[0] == 0:
            penalised[examples.coordinates[0]] = 0
        self.scale = np.ones(size)
        self._scale_by(w, l2 * penalised)
        self.l1, self.l2 = l1 * penalised * self.scale, l2 * penalised * self.scale**2
        self.x = w / self.scale
        self.sparse = l1 > 0

    def _scale_by(self, w: Float64, l2: Float64) -> None:
        self._losses(self.margins(w))
        diagonal, of = np.empty(w.size), self.examples
        self.threads.over(
            self._coordinate_blocks,
            lambda first, last: kernels.curvatures_of(
                of.starts, of.rows, of.values_by_coordinate, self._curvatures, first, last, diagonal
            ),
        )
        diagonal += l2
        self.scale = 1 / np.sqrt(np.maximum(diagonal, diagonal.max(initial=0) * 1e-12 + 1e-30))

    def weights(self, x: Float64) -> Float64:
        """The weights float64[u], by coordinate."""
        return x * self.scale

    def margins(self, x: Float64) -> Float64:
        """The log-odds float64[n] of the examples."""
        of, w, out = self.examples, self.weights(x), np.empty(len(self.examples))
        self.threads.over(
            self._row_blocks,
            lambda first, last: kernels.margins_of(of.indptr, of.indices, of.values, w, first, last, out),
        )
        return out

    def value(self, x: Float64, margins: Float64) -> float:
        """The objective at `x`, whose margins are given."""
        return self._losses(margins) + self.penalty(x)

    def point(self, x: Float64, margins: Float64) -> Point:
        """The point `x`, whose margins are given."""
        of, gradient = self.examples, np.empty(x.size)
        losses = self._losses(margins)
        self.threads.over(
            self._coordinate_blocks,
            lambda first, last: kernels.gradients_of(
                of.starts, of.rows, of.values_by_coordinate,
                self._slopes, self.scale, self.l2, x, first, last, gradient,
            ),
        )  # fmt: skip
        ascent = np.empty(x.size)
        squares = self.threads.over(
            self.blocks,
            lambda first, last: orthants.steepest(gradient, self.l1, x, first, last, ascent),
        )
        return Point(x, margins, losses, losses + self.penalty(x), gradient, ascent, sum(squares))

    def line(self, start: Point, d: Float64) -> Line:
        """The line from a point in a direction float64[u]."""
        parts = self.threads.over(
            self.blocks, lambda first, last: kernels.penalty_along(self.l2, start.x, d, first, last)
        )
        slope, curvature = map(sum, zip(*parts, strict=True))
        return Line(self, start, self.margins(d), self.penalty(start.x), slope, curvature)

    def losses_along(self, margins: Float64, moves: Float64, t: float) -> tuple[float, float, float]:
        """The sum of the losses of `margins + t * moves`, and its first and second derivative by `t`."""
        of = self.examples
        parts = self.threads.over(
            self._row_blocks,
            lambda first, last: kernels.losses_along(margins, moves, of.labels, of.weights, t, first, last),
        )
        value, slope, curvature = map(sum, zip(*parts, strict=True))
        return value, slope, curvature

    def penalty(self, x: Float64) -> float:
        """The sum of the penalties."""
        return sum(
            self.threads.over(
                self.blocks, lambda first, last: kernels.penalty_of(self.l1, self.l2, x, first, last)
            )
        )

    def _losses(self, margins: Float64) -> float:
        of = self.examples
        return sum(
            self.threads.over(
                self._row_blocks,
                lambda first, last: kernels.losses_of(
                    margins, of.labels, of.weights, first, last, self._slopes, self._curvatures
                ),
            )
        )
