"""Numba loops that convert FTRL's two accumulators from float32 to one 64-bit integer, and back.

Redis can add such integers. The high 32 bits hold `z`, signed, in units of `2**-z_bits`; the low 32 bits hold
`n`, unsigned, in units of `2**-n_bits`. Adding two integers adds both halves, as long as neither leaves its
range. So the state that was pulled limits a push, and a margin between the limits and the ends of the ranges
absorbs what others push meanwhile, however much that is. Only *light* increments are simply added: to use up
the margin, 2**16 of them would have to arrive at the same moment, computed from as many outdated states. The
other increments are rare. A push reads their slots first, under a lock that it needs anyway, and limits them
by the current state (`limit_heavy`), so that any number of them stays within the limits. An entry of a log
has space for light increments only.

A fraction below the resolution is rounded up with a probability equal to the fraction, so that the sum of
many small steps is right on average (McMahan et al., "Ad Click Prediction: a View from the Trenches", KDD
2013, section 4.2). The random bits come from the token and the slot: a push that is sent again has the same
integers.
"""

from __future__ import annotations

import hashlib
from math import ceil, log2

import numpy as np
from numpy.typing import NDArray

from ctr.jit import njit

Float32 = NDArray[np.float32]
Int64 = NDArray[np.int64]
Slots = NDArray[np.uint32] | NDArray[np.uint64]

FINEST_Z_BITS = 13
"""Finer steps of z change no log loss."""
Z_MOST = 1 << 30
"""In units: no push takes z further from 0 than this, or changes it by more; its range is twice as wide."""
N_MOST = 1 << 31
"""In units: no push takes n above this, which is half its range."""
N_STEP = 1 << 27
"""In units: no push adds more than this to n, so that one worker's pending pushes stay in the range."""
COARSEST_N_BITS, FINEST_N_BITS = 8, 16
"""With 8, n stops at 8,388,608. With 16 it stops at 32,768, so that a far too low estimate does little harm:
at that point, steps are 1/181 of the first ones with a beta of 1."""
LIGHT_Z_BITS = 15
LIGHT_N_BITS = 12
"""Increments that fit these bits, z with its sign, are light: with 8 fraction bits, an n of 16 is some 64
examples of a slot in one chunk. Of 14M increments from ten million synthetic rows, 0.2% were heavy."""

_HALF = np.float64(2.0**-32)
_LOW = np.int64(0xFFFFFFFF)


def fraction_bits(largest_z: float) -> int:
    """The most `z_bits` that keep `z` up to `largest_z`, which is above 0, within the limits."""
    return min(FINEST_Z_BITS, Z_MOST.bit_length() - 1 - ceil(log2(largest_z)))


def n_fraction_bits(expected_n: float) -> int:
    """The most `n_bits` that keep `n` up to `expected_n`, which is above 0, within the limits, if any do."""
    return min(max(N_MOST.bit_length() - 1 - ceil(log2(expected_n)), COARSEST_N_BITS), FINEST_N_BITS)


def largest_n(n_bits: int) -> float:
    """The value at which n stops: from then on, the steps of a slot get no smaller."""
    return float(N_MOST >> n_bits)


def reachable_n(n: Float32, n_bits: int) -> Float32:
    """The largest value, float32[u], to which one push may raise each `n`."""
    reached: Float32 = np.minimum(n + np.float32(N_STEP >> n_bits), np.float32(largest_n(n_bits)))
    return np.maximum(n, reached, out=reached)


def token_hash(shard: int, number: int) -> np.uint64:
    """64 bits that decide how a push is rounded.

    They leave out the job's name, which is random: the same work is rounded the same way every time.
    """
    parts = shard.to_bytes(8, "little") + number.to_bytes(8, "little")
    return np.uint64(int.from_bytes(hashlib.blake2b(parts, digest_size=8).digest(), "little"))


@njit(nogil=True, cache=True, error_model="numpy")
def unpack(packed: Int64, z_bits: int, n_bits: int, out: Float32) -> None:
    """Writes z and n of each integer to `out`, float32[u, 2]. `z_bits` is -96 to 30, `n_bits` 0 to 31."""
    z_unit = np.float32(np.float64(2.0) ** -z_bits)
    n_unit = np.float32(1.0 / (np.int64(1) << n_bits))
    for i in range(packed.size):
        out[i, 0] = np.float32(np.int32(packed[i] >> 32)) * z_unit
        out[i, 1] = np.float32(np.uint32(packed[i] & _LOW)) * n_unit


@njit(nogil=True, cache=True)
def pack_delta(
    delta: Float32,
    pulled: Float32 | None,
    slots: Slots,
    token_hash: np.uint64,
    z_bits: int,
    n_bits: int,
    out: Int64,
) -> tuple[int, int]:
    """Writes to `out` the integers that add `delta`, finite float32[u, 2], to the state of `slots`.

    `pulled`, float32[u, 2], is the state that the delta starts from; None is all zeros. z stops at Z_MOST and
    n at N_MOST. Pushes of others may have taken them further; then only steps that lead back are added. n
    never falls. Returns the numbers of slots whose z, and whose n, was limited. If there are many, values are
    not scaled, `z_bits` is too large, or training has diverged.
    """
    scale, n_scale = np.float64(2.0) ** z_bits, np.float64(np.int64(1) << n_bits)
    z_limited = n_limited = 0
    for i in range(slots.size):
        z, n = np.float64(0), np.float64(0)
        if pulled is not None:
            z = np.rint(np.float64(pulled[i, 0]) * scale)
            n = np.rint(np.float64(pulled[i, 1]) * n_scale)
        bits = mix(token_hash, np.uint64(slots[i]))
        dz = np.float64(delta[i, 0]) * scale
        dn = np.float64(delta[i, 1]) * n_scale
        # Whole units, so that rounding up cannot pass them.
        z_up = min(max(Z_MOST - z, 0.0), 1.0 * Z_MOST)
        z_down = max(min(-Z_MOST - z, 0.0), -1.0 * Z_MOST)
        n_up = min(max(N_MOST - n, 0.0), 1.0 * N_STEP)
        z_step = min(max(dz, z_down), z_up)
        n_step = min(max(dn, 0.0), n_up)
        z_limited += z_step != dz
        n_limited += n_step != dn
        z_whole = np.floor(z_step)
        n_whole = np.floor(n_step)
        # Comparing with the fraction is exact; adding a random number before rounding would not be.
        z_units = np.int64(z_whole) + (np.float64(bits >> np.uint64(32)) * _HALF < z_step - z_whole)
        n_units = np.int64(n_whole) + (np.float64(bits & np.uint64(_LOW)) * _HALF < n_step - n_whole)
        out[i] = (z_units << 32) + n_units
    return z_limited, n_limited


@njit(nogil=True, cache=True)
def find_heavy(increments: Int64, out: NDArray[np.uint8]) -> int:
    """Marks with 1 the increments that are not light, in uint8[u]; returns how many there are."""
    count = 0
    for i in range(increments.size):
        z_bits = (increments[i] >> 32) + (1 << (LIGHT_Z_BITS - 1))
        heavy = (z_bits >> LIGHT_Z_BITS != 0) | ((increments[i] & _LOW) >> LIGHT_N_BITS != 0)
        out[i] = heavy
        count += heavy
    return count


@njit(nogil=True, cache=True)
def limit_heavy(current: Int64, heavy: Int64, increments: Int64) -> tuple[int, int]:
    """Limits `increments[heavy]` in place, as `pack_delta` does, by the `current` values of their slots.

    `heavy` and `current` are int64[h]. Values that light pushes have taken beyond the limits stay. Returns
    the same numbers as `pack_delta`.
    """
    z_limited = n_limited = 0
    for i in range(heavy.size):
        z, n = current[i] >> 32, current[i] & _LOW
        z_step, n_step = increments[heavy[i]] >> 32, increments[heavy[i]] & _LOW
        z_after = min(max(z + z_step, min(z, -Z_MOST)), max(z, Z_MOST))
        n_after = min(n + n_step, max(n, N_MOST))
        z_limited += z_after != z + z_step
        n_limited += n_after != n + n_step
        increments[heavy[i]] = ((z_after - z) << 32) + (n_after - n)
    return z_limited, n_limited


@njit(nogil=True, cache=True, inline="always")
def mix(seed: np.uint64, number: np.uint64) -> np.uint64:
    """The random bits at position `number` of a sequence: SplitMix64 (Steele, Lea and Flood, OOPSLA 2014)."""
    bits = seed + (number + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))
