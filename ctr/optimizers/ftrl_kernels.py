"""FTRL-Proximal loops over one chunk's local state.

Method: McMahan et al., "Ad Click Prediction: a View from the Trenches" (KDD 2013), algorithm 1.
The symbols are the same: `z`, `n` (sum of squared gradients), `g`, `sigma`, `w`.

For each example, a kernel gathers the state of its slots into contiguous scratch rows, computes there (where
LLVM can vectorise square roots and divisions), and adds the change back. Computing the change in the loop
that adds it has 0.92 of the speed. Caching `w` beside `z` and `n`, to save a square root and a division, has
0.72 of the speed, as the larger state does not fit into the L2 cache.

`error_model="numpy"` omits the check of every divisor, which keeps LLVM from vectorising: the training loop
takes 0.66 of the time.

All features of an example start from the same state, so a slot that occurs twice counts as two features that
share one weight: both changes are added.

Sums of `z` are rounded with a dither; see `state_kernels.py`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ctr.jit import FAST_MATH, njit
from ctr.optimizers.state_kernels import GOLDEN, LAST_PLACE, add_pair, gather_pairs, unit

SCRATCH_ROWS = 3


# No reciprocals for divisions: LLVM would use them only in the vectorised part of a loop, so a weight would
# depend on the position of its state. This is not slower.
@njit(nogil=True, cache=True, fastmath={"contract"}, error_model="numpy")
def weights_of(
    state: NDArray[np.float32],
    alpha: np.float32,
    beta: np.float32,
    l1: np.float32,
    l2: np.float32,
    out: NDArray[np.float32],
) -> None:
    """Write the weight of each row `(z, n)` of `state` to `out`."""
    rate = np.float32(1) / alpha
    base = beta * rate + l2
    for j in range(state.shape[0]):
        z = state[j, 0]
        # soft threshold: 0 while |z| <= l1, then z moved towards 0 by l1
        out[j] = (min(max(z, -l1), l1) - z) / (np.sqrt(state[j, 1]) * rate + base)


@njit(nogil=True, cache=True, fastmath=FAST_MATH, error_model="numpy", inline="always")
def _predict(
    indices: NDArray[np.uint32],
    values: NDArray[np.float32] | None,
    first: int,
    m: int,
    state: NDArray[np.float32],
    l1: np.float32,
    rate: np.float32,
    base: np.float32,
    zn: NDArray[np.float32],
    root: NDArray[np.float32],
    w: NDArray[np.float32],
) -> np.float32:
    """The log-odds of one example; writes its state, roots and weights to the scratch rows.

    Inlined like this, the training loop is as fast as a single function. As a plain call, with `local.size`
    for `m`, or with the other half of the loop in here, it takes 1.1 to 1.2 of the time.
    """
    gather_pairs(state, indices, first, m, zn)
    margin = np.float32(0)
    for j in range(m):
        z = zn[2 * j]
        root[j] = np.sqrt(zn[2 * j + 1])
        w[j] = (min(max(z, -l1), l1) - z) / (root[j] * rate + base)
        if values is None:
            margin += w[j]
    if values is not None:
        own = values[first : first + m]  # a slice: see `gather_pairs`; without it, 1.2 of the time
        for j in range(m):
            margin += w[j] * own[j]
    return margin


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
    copies: np.float32,
    dither: np.uint32,
    scratch: NDArray[np.float32],
    margins: NDArray[np.float32],
) -> None:
    """One pass of sequential FTRL over a chunk: predict, then learn, example by example.

    `state` float32[u, 2] is trained in place. `margins` float32[n] receives the log-odds of each example
    before it is learnt. `scratch` float32[3, 2 * longest example] is overwritten. An example's gradient
    counts as that of `copies` equal examples at the same state. `dither` is the start of the sequence by
    which sums are rounded. `values` and `weights` may be None: Numba compiles their branches away.
    """
    rate = np.float32(1) / alpha
    base = beta * rate + l2
    one = np.float32(1)
    zn, root, w = scratch[0], scratch[1], scratch[2]  # zn: z and n alternating
    for e in range(labels.size):
        first = indptr[e]
        m = indptr[e + 1] - first
        local = indices[first : first + m]
        margin = _predict(indices, values, first, m, state, l1, rate, base, zn, root, w)
        margins[e] = margin
        loss_slope = one / (one + np.exp(-margin)) - labels[e]
        if weights is not None:
            loss_slope *= weights[e]
        dither = np.uint32(dither + GOLDEN)
        last_place = np.float32(np.int32(dither)) * LAST_PLACE
        if values is None:
            gg = loss_slope * loss_slope * copies
            g = loss_slope * copies
            for j in range(m):
                sigma = (np.sqrt(zn[2 * j + 1] + gg) - root[j]) * rate
                w[j] = g - sigma * w[j] + last_place * unit(zn[2 * j])
            for j in range(m):
                add_pair(state, local[j], w[j], gg)
        else:
            own = values[first : first + m]
            for j in range(m):
                g = loss_slope * own[j]
                gg = g * g * copies
                sigma = (np.sqrt(zn[2 * j + 1] + gg) - root[j]) * rate
                w[j] = g * copies - sigma * w[j] + last_place * unit(zn[2 * j])
                root[j] = gg
            for j in range(m):
                add_pair(state, local[j], w[j], root[j])


@njit(nogil=True, cache=True, fastmath=FAST_MATH, error_model="numpy")
def filter_updates(
    seen: NDArray[np.float32],
    mine: NDArray[np.float32],
    alpha: np.float32,
    beta: np.float32,
    l1: np.float32,
    l2: np.float32,
    least: np.float32,
    zeros: bool,
    out: NDArray[np.uint8],
) -> None:
    """Which slots' updates are worth pushing: 0 for those that are, 1 if too small, 2 if zero stays zero.

    `seen` float32[u, 2] is the state that other workers see, `mine` the one with the updates. The loss of
    other workers with the old weight is about `(w - w0)**2 / 2` times the curvature of the loss. The sum of
    squared gradients estimates this curvature (it is the Fisher information), so on as many examples as this
    worker had, the loss is `(n - n0) (w - w0)**2 / 2` nats. An update is small if this is below `least`.
    With `zeros`, slots with `|z| <= l1` before and after get a 2.
    """
    rate = np.float32(1) / alpha
    base = beta * rate + l2
    for j in range(seen.shape[0]):
        z0, z = seen[j, 0], mine[j, 0]
        w0 = (min(max(z0, -l1), l1) - z0) / (np.sqrt(seen[j, 1]) * rate + base)
        w = (min(max(z, -l1), l1) - z) / (np.sqrt(mine[j, 1]) * rate + base)
        loss = np.float32(0.5) * (mine[j, 1] - seen[j, 1]) * (w - w0) * (w - w0)
        stays_zero = zeros and abs(z0) <= l1 and abs(z) <= l1
        out[j] = np.uint8(2) if stays_zero else np.uint8(loss < least)
