"""Numba loops over hash tables of slots, one table per partition.

A table is uint64[capacity, words]: its capacity is a power of two, and records are probed linearly. A
record's first word is its slot plus 1, or 0 if it is free; the rest holds the state as float32 (padded to
whole words), so that a lookup costs one cache miss. Kernels for requests take addresses of tables: passing a
list of arrays to Numba is slow, and one call per partition costs more than a small request. The caller keeps
the arrays alive and holds the locks of the partitions `first..last - 1`.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from numba import types
from numba.np.numpy_support import carray
from numpy.typing import NDArray

from ctr.jit import intrinsic, njit

Float32 = NDArray[np.float32]
Int64 = NDArray[np.int64]
Slots = NDArray[np.uint32] | NDArray[np.uint64]

# 2**64 divided by the golden ratio: Knuth, The Art of Computer Programming, volume 3, section 6.4.
MIX = np.uint64(0x9E3779B97F4A7C15)
STATE_AT = 2
"""The start of the state in a record that is read as float32: after the word that holds the slot."""


def _pointer_code(typing_context: Any, address: Any) -> Any:
    """Numba's type and code for an integer address that is read as a pointer."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return types.voidptr(address), generate


def _pointer_in_python(address: np.uint64) -> Any:
    """The same for kernels that run as plain Python (`NUMBA_DISABLE_JIT=1`)."""
    return ctypes.c_void_p(int(address))


_pointer: Any = intrinsic(_pointer_code, _pointer_in_python)


@njit(nogil=True, cache=True, inline="always")
def _home(slot: np.uint64, capacity: np.uint64) -> np.uint64:
    """The record at which probing for a slot begins; mixed twice, so that regular strides do not cluster."""
    mixed = slot * MIX
    mixed ^= mixed >> np.uint64(32)
    mixed *= MIX
    return (mixed >> np.uint64(24)) & (capacity - np.uint64(1))


@njit(nogil=True, cache=True)
def _find(table: NDArray[np.uint64], key: np.uint64, capacity: np.uint64) -> np.uint64:
    """The record with this key, or the free record for it. Tables always have a free record."""
    at = _home(key, capacity)
    while table[at, 0] != key and table[at, 0] != np.uint64(0):
        at = (at + np.uint64(1)) & (capacity - np.uint64(1))
    return at


@njit(nogil=True, cache=True)
def pull_tables(
    addresses: NDArray[np.uint64],
    capacities: Int64,
    words: int,
    slots: Slots,
    cuts: Int64,
    first: int,
    last: int,
    out: Float32,
) -> None:
    """Copies the state of the request's slots in these partitions to `out`; zeros for absent slots."""
    for p in range(first, last):
        if capacities[p] == 0:
            out[cuts[p] : cuts[p + 1]] = np.float32(0)
            continue
        capacity = np.uint64(capacities[p])
        table = carray(_pointer(addresses[p]), (capacities[p], words), np.uint64)
        state = carray(_pointer(addresses[p]), (capacities[p], 2 * words), np.float32)
        for i in range(cuts[p], cuts[p + 1]):
            at = _find(table, np.uint64(slots[i]) + np.uint64(1), capacity)
            # A free record is all zeros, as the state of an absent slot is.
            for k in range(out.shape[1]):
                out[i, k] = state[at, STATE_AT + k]


@njit(nogil=True, cache=True)
def push_tables(
    addresses: NDArray[np.uint64],
    capacities: Int64,
    used: Int64,
    words: int,
    slots: Slots,
    delta: Float32,
    cuts: Int64,
    first: int,
    last: int,
    applied: Int64,
    number: int,
) -> None:
    """Adds `delta` to the partitions that have slots and have not applied this push.

    Their tables have free records for all slots of the request. `used` counts their used records.
    """
    for p in range(first, last):
        if cuts[p] == cuts[p + 1] or applied[p] >= number:
            continue
        capacity = np.uint64(capacities[p])
        table = carray(_pointer(addresses[p]), (capacities[p], words), np.uint64)
        state = carray(_pointer(addresses[p]), (capacities[p], 2 * words), np.float32)
        for i in range(cuts[p], cuts[p + 1]):
            key = np.uint64(slots[i]) + np.uint64(1)
            at = _find(table, key, capacity)
            if table[at, 0] != key:
                table[at, 0] = key
                used[p] += 1
            for k in range(delta.shape[1]):
                state[at, STATE_AT + k] += delta[i, k]
        applied[p] = number


@njit(nogil=True, cache=True)
def move_records(old: NDArray[np.uint64], new: NDArray[np.uint64]) -> None:
    """Copies the records of `old` to `new`, a larger, empty table."""
    capacity = np.uint64(new.shape[0])
    for i in range(old.shape[0]):
        if old[i, 0] != np.uint64(0):
            at = _find(new, old[i, 0], capacity)
            for k in range(old.shape[1]):
                new[at, k] = old[i, k]
