"""Numba loops over the entries of a log, see `ctr.ps.redis.packed_push`.

An entry is 6 bytes, the lowest first: 21 bits for an offset, 15 for the increment of `z`, signed, and 12 for
that of `n`: enough for light increments (see `ctr.ps.fixed_point_kernels`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ctr.jit import njit
from ctr.ps.fixed_point_kernels import LIGHT_N_BITS, LIGHT_Z_BITS

ENTRY_BYTES = 6
OFFSET_BITS = 8 * ENTRY_BYTES - LIGHT_Z_BITS - LIGHT_N_BITS

_N_AT = OFFSET_BITS + LIGHT_Z_BITS
_LOW = np.int64(0xFFFFFFFF)


@njit(nogil=True, cache=True)
def encode_entries(
    offsets: NDArray[np.uint32], increments: NDArray[np.int64], out: NDArray[np.uint8]
) -> bool:
    """Writes an entry for each offset and its increment to `out`, uint8[6 * k]; returns whether all fit."""
    beyond = np.int64(0)
    for i in range(np.uint64(offsets.size)):
        offset, z, n = np.int64(offsets[i]), increments[i] >> 32, increments[i] & _LOW
        z_bits = z + (1 << (LIGHT_Z_BITS - 1))
        beyond |= offset >> OFFSET_BITS | z_bits >> LIGHT_Z_BITS | n >> LIGHT_N_BITS
        entry = offset | (z & ((1 << LIGHT_Z_BITS) - 1)) << OFFSET_BITS | n << _N_AT
        for k in range(ENTRY_BYTES):  # compiled to two stores
            out[np.uint64(ENTRY_BYTES) * i + np.uint64(k)] = np.uint8((entry >> (8 * k)) & 0xFF)
    return bool(beyond == 0)


@njit(nogil=True, cache=True)
def decode_entries(
    raw: NDArray[np.uint8], offsets: NDArray[np.uint32], increments: NDArray[np.int64]
) -> None:
    """Writes the offset, uint32[k], and the increment, int64[k], of each entry of `raw`, uint8[6 * k]."""
    for i in range(np.uint64(offsets.size)):
        entry = np.uint64(0)
        for k in range(ENTRY_BYTES):  # compiled to two loads
            entry |= np.uint64(raw[np.uint64(ENTRY_BYTES) * i + np.uint64(k)]) << np.uint64(8 * k)
        offsets[i] = np.uint32(entry & np.uint64((1 << OFFSET_BITS) - 1))
        z = np.int64(entry << np.uint64(64 - _N_AT)) >> (64 - LIGHT_Z_BITS)
        increments[i] = (z << 32) + np.int64(entry >> np.uint64(_N_AT))
