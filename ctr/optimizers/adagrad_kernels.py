"""AdaGrad loops over one chunk's local state.

Method: Duchi, Hazan, Singer, "Adaptive Subgradient Methods for Online Learning and Stochastic Optimization"
(JMLR 2011), composite mirror descent with diagonal matrices, section 5.1 for L1. Symbols are as there, except
for `n`, the sum of squared gradients, which includes the gradient of the step.

Scratch rows, `error_model="numpy"`, and slots that occur twice in an example are handled as in FTRL's
kernels; the dither is explained in `state_kernels.py`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ctr.jit import FAST_MATH, njit
from ctr.optimizers.state_kernels import GOLDEN, LAST_PLACE, add_pair, gather_pairs, unit

SCRATCH_ROWS = 1


@njit(nogil=True, cache=True, fastmath=FAST_MATH, error_model="numpy")
def train(
    indptr: NDArray[np.int64],
    indices: NDArray[np.uint32],
    values: NDArray[np.float32] | None,
    labels: NDArray[np.float32],
    weights: NDArray[np.float32] | None,
    state: NDArray[np.float32],
    alpha: np.float32,
    beta: np.float32,
    l1: np.float32,
    l2: np.float32,
    penalised: np.uint32,
    copies: np.float32,
    dither: np.uint32,
    scratch: NDArray[np.float32],
    margins: NDArray[np.float32],
) -> None:
    """One pass over a chunk: predict, then learn, example by example.

    `state` float32[u, 2], a slot's weight and `n`, is trained in place. Penalties are for the local indices
    from `penalised` on. `scratch` is float32[1, 2 * longest example]; the rest is as in FTRL's `train`.
    """
    one, zero = np.float32(1), np.float32(0)
    wn = scratch[0]  # w and n alternating
    penalties = l1 > 0 or l2 > 0
    for e in range(labels.size):
        first = indptr[e]
        m = indptr[e + 1] - first
        local = indices[first : first + m]
        margin = zero
        gather_pairs(state, indices, first, m, wn)
        for j in range(m):
            if values is None:
                margin += wn[2 * j]
            else:
                margin += wn[2 * j] * values[first + j]
        margins[e] = margin
        loss_slope = one / (one + np.exp(-margin)) - labels[e]
        if weights is not None:
            loss_slope *= weights[e]
        dither = np.uint32(dither + GOLDEN)
        last_place = np.float32(np.int32(dither)) * LAST_PLACE
        for j in range(m):
            g = loss_slope if values is None else loss_slope * values[first + j]
            gg = g * g * copies
            eta = copies * alpha / (beta + np.sqrt(wn[2 * j + 1] + gg))
            w = wn[2 * j]
            wn[2 * j + 1] = gg
            rounding = last_place * unit(w)
            if penalties:
                most = eta * l1 if local[j] >= penalised else zero
                shrink = eta * l2 if local[j] >= penalised else zero
                kept = w - eta * g
                # From the step, not from the new weight, whose rounding would make the dither useless.
                moved = (min(max(-kept, -most), most) - eta * g - shrink * w) / (one + shrink) + rounding
                wn[2 * j] = -w if abs(kept) <= most else moved
            else:
                wn[2 * j] = rounding - eta * g
        for j in range(m):
            add_pair(state, local[j], wn[2 * j], wn[2 * j + 1])


@njit(nogil=True, cache=True, fastmath=FAST_MATH, error_model="numpy")
def filter_updates(
    seen: NDArray[np.float32],
    mine: NDArray[np.float32],
    least: np.float32,
    zeros: bool,
    out: NDArray[np.uint8],
) -> None:
    """Which slots' updates are worth pushing: 0 for those that are, 1 if too small, 2 if zero stays zero.

    As in FTRL's kernel, an update is small if the other workers lose less than `least` nats with the old
    weight, about `(n - n0) (w - w0)**2 / 2`.
    """
    for j in range(seen.shape[0]):
        moved = mine[j, 0] - seen[j, 0]
        loss = np.float32(0.5) * (mine[j, 1] - seen[j, 1]) * moved * moved
        stays_zero = zeros and seen[j, 0] == 0 and mine[j, 0] == 0
        out[j] = np.uint8(2) if stays_zero else np.uint8(loss < least)
