"""`History`: the last steps of a minimisation, and the search direction computed from them."""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from ctr.batch import step_kernels as kernels
from ctr.batch.matrix import Bounds
from ctr.features.threads import Threads
from ctr.optimizers import Float64

_STEPS = 10


class History:
    """The two-loop recursion of L-BFGS (Nocedal and Wright, Numerical Optimization, algorithm 7.4).

    It runs on dot products of its vectors instead of the vectors (Chen, Wang, Zhou, "Large-scale L-BFGS using
    MapReduce", NIPS 2014): each vector is read twice per iteration, on all cores, not four times in sequence.
    """

    def __init__(self, size: int, blocks: Bounds, threads: Threads) -> None:
        self._vectors = np.zeros((2 * _STEPS, size), np.float32)
        """Steps, then changes of the gradient: that of step `i` is at `_STEPS + i`."""
        self._products = np.zeros((2 * _STEPS, 2 * _STEPS))
        self._order: list[int] = []
        """The indices of the steps in use, oldest first."""
        self._with_gradient = np.zeros(2 * _STEPS)
        self._blocks, self._threads = blocks, threads

    def __len__(self) -> int:
        return len(self._order)

    def forget(self) -> None:
        """Drop all steps."""
        self._order = []

    def add(self, x0: Float64, x: Float64, g0: Float64, g: Float64, ascent: Float64) -> None:
        """Add the step from `x0` to `x`, with gradients `g0` and `g`; `ascent`: the pseudo-gradient at `x`.

        A step along which the gradient does not grow is skipped, as it says nothing about the curvature.
        """
        new = self._order.pop(0) if len(self._order) == _STEPS else len(self._order)
        if new in self._order:  # after a step was skipped
            new = next(i for i in range(_STEPS) if i not in self._order)
        s, y = self._vectors[new], self._vectors[_STEPS + new]
        self._threads.over(
            self._blocks, lambda first, last: kernels.remember(x0, x, g0, g, first, last, s, y)
        )
        self._order.append(new)
        used = self._used
        parts = self._threads.over(self._blocks, partial(self._multiplied, used, new, ascent))
        products = np.sum(parts, axis=0)
        self._products[used, new] = self._products[new, used] = products[:, 0]
        self._products[used, _STEPS + new] = self._products[_STEPS + new, used] = products[:, 1]
        self._with_gradient[used] = products[:, 2]
        if not self._products[new, _STEPS + new] > 0:
            self._order.remove(new)

    def direction(self, ascent: Float64) -> Float64:
        """The search direction, downhill from the last point."""
        used, (factors, of_ascent) = self._used, self._factors()
        out = np.empty(ascent.size)
        self._threads.over(
            self._blocks,
            lambda first, last: kernels.combine(
                self._vectors, used, factors, ascent, of_ascent, first, last, out
            ),
        )
        return out

    @property
    def _used(self) -> NDArray[np.int64]:
        order = np.array(self._order, np.int64)
        return np.concatenate([order, order + _STEPS])

    def _multiplied(self, used: NDArray[np.int64], new: int, g: Float64, first: int, last: int) -> Float64:
        out = np.zeros((used.size, 3))
        kernels.products(self._vectors, used, new, _STEPS + new, g, first, last, out)
        return out

    def _factors(self) -> tuple[Float64, float]:
        """The factors of the used vectors and of the gradient, whose sum is the direction."""
        factors, of_gradient = np.zeros(2 * _STEPS), -1.0
        products, with_gradient = self._products, self._with_gradient
        alphas: dict[int, float] = {}
        for s in reversed(self._order):
            y = s + _STEPS
            alphas[s] = (factors @ products[:, s] + of_gradient * with_gradient[s]) / products[s, y]
            factors[y] -= alphas[s]
        if self._order:
            s = self._order[-1]
            gamma = products[s, s + _STEPS] / products[s + _STEPS, s + _STEPS]
            factors *= gamma
            of_gradient *= gamma
        for s in self._order:
            y = s + _STEPS
            beta = (factors @ products[:, y] + of_gradient * with_gradient[y]) / products[s, y]
            factors[s] += alphas[s] - beta
        return factors[self._used], of_gradient
