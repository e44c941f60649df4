"""Numba loops between FTRL's two accumulators as float32 and as one 64-bit integer, which Redis can add to.

The high 32 bits hold `z`, signed, in units of `2**-z_bits`; the low 32 bits hold `n`, unsigned, in units of
`2**-n_bits`. Adding two such integers adds both halves, as long as neither leaves its range: so a push is
limited by what was pulled, and between the limits and the ends of the ranges there is room for what others
push meanwhile. Nobody knows how much that is. So only *light* increments are simply added: it takes 2**16 of
them at one moment, from as many views that are out of date, to use the room up. For the others, which are
few, the slot is read first, under the lock that a push needs anyway, and they are limited by what is there
(`limit_heavy`): no number of them passes the limits. Light ones alone fit an entry of a log, too.

What is below the resolution is rounded up with the probability of its share, so that the sum of many small
steps is right on average (McMahan et al., "Ad Click Prediction: a View from the Trenches", KDD 2013, section
4.2). The random bits come from the token and the slot: a push that is sent again is the same integers.
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
"""No push takes z further than this from 0, or by more than this, in units; its range is twice as wide."""
N_MOST = 1 << 31
"""No push takes n above this, in units, which is half its range."""
N_STEP = 1 << 27
"""No push adds more than this to an n, in units, so that one worker's in flight stay in the range."""
COARSEST_N_BITS, FINEST_N_BITS = 8, 16
"""With 8, n stops at 8,388,608. With 16 it stops at 32,768, so that a guess which is far too low does little
harm: by then, steps are 1/181 of the first ones at a beta of 1."""
LIGHT_Z_BITS = 15
LIGHT_N_BITS = 12
"""Steps that have room in so many bits, z with its sign, are light: with 8 fraction bits, an n of 16 is some
64 examples of a slot in one chunk. Of 14M that could wait on ten million synthetic rows, 0.2% were heavy."""

_HALF = np.float64(2.0**-32)
_LOW = np.int64(0xFFFFFFFF)


def fraction_bits(largest_z: float) -> int:
    """The `z_bits` with which `z` up to `largest_z`, which is above 0, is within the limits."""
    return min(FINEST_Z_BITS, Z_MOST.bit_length() - 1 - ceil(log2(largest_z)))


def n_fraction_bits(expected_n: float) -> int:
    """The `n_bits` with which `n` up to `expected_n`, which is above 0, is within the limits, if any have."""
    return min(max(N_MOST.bit_length() - 1 - ceil(log2(expected_n)), COARSEST_N_BITS), FINEST_N_BITS)


def largest_n(n_bits: int) -> float:
    """Where n stops: the steps of a slot then get no smaller."""
    return float(N_MOST >> n_bits)


def reachable_n(n: Float32, n_bits: int) -> Float32:
    """How far one push may take each `n`, float32[u]."""
    reached: Float32 = np.minimum(n + np.float32(N_STEP >> n_bits), np.float32(largest_n(n_bits)))
    return np.maximum(n, reached, out=reached)


def token_hash(shard: int, number: int) -> np.uint64:
    """64 bits that decide how a push is rounded.

    Without the job's name, which is random: the same work is to be rounded the same way every time.
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

    `pulled`, float32[u, 2], is the state that the delta starts from, as far as is known; None is all zeros.
    z stops at Z_MOST and n at N_MOST; beyond, where others' pushes may have taken them, nothing is added but
    what leads back. n never falls. Returns of how many slots z, and of how many n, was limited so:
    where there are many, values are not scaled, `z_bits` is too large, or training has diverged.
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
        # Against the fraction, not by adding the random number before rounding: that is exact.
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
    """Limits in place the increments at the places `heavy`, int64[h], by the slots' `current`, int64[h].

    As `pack_delta` does, and returns the same. What light pushes have taken beyond the limits stays.
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
    """The random bits at a place of a sequence: SplitMix64 (Steele, Lea and Flood, OOPSLA 2014)."""
    bits = seed + (number + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))
