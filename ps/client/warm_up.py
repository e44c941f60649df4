"""`warm_up_requests`: compile or load the kernels of pulls and pushes, before time is measured."""

from __future__ import annotations

import numpy as np

from ctr.ps.client.kept_pushes import OwnLog
from ctr.ps.client.view import WorkerCache
from ctr.ps.fixed_point_kernels import find_heavy, limit_heavy, pack_delta, unpack
from ctr.ps.kernels import ascending, finite
from ctr.ps.log_kernels import ENTRY_BYTES, decode_entries, encode_entries
from ctr.ps.packed_kernels import add_scattered, add_to_range
from ctr.ps.partitions import Partitions, no_slots
from ctr.ps.redis import Logged
from ctr.ps.wire import Keys, bitfield_add, bitfield_read
from ctr.ps.wire.resp_kernels import decode_range, parse_integers


def warm_up_requests(bits: int) -> None:
    """Warm up for a store of `2**bits` slots; takes half a second if all kernels are cached."""
    slots = no_slots(bits, 2)
    slots[:] = 0, 1
    slots.flags.writeable = False
    delta = np.ones((2, 2), np.float32)
    delta.flags.writeable = False
    Keys("warm-up").state(0)  # computes the table of hash tags for the names of keys
    ascending(slots)
    finite(delta.reshape(-1))
    Partitions(max(bits, 1), 1).cuts(slots)
    packed, state = np.zeros(2, np.int64), np.empty((2, 2), np.float32)
    unpack(packed, 13, 8, state)
    for pulled in (None, delta):
        pack_delta(delta, pulled, slots, np.uint64(0), 13, 8, packed)
    log, folds = OwnLog(Partitions(max(bits, 1), 1)), np.zeros(1, np.int64)
    for _ in range(2):
        log.put(Logged(slots, packed), folds)
        log.overlay(slots, packed, folds)
    cache = WorkerCache(bits)
    for _ in range(2):
        cache.keep(slots, packed, packed, 0)
        cache.holds(slots, 0)
    offsets = np.arange(2, dtype=np.uint32)
    entries = np.empty(2 * ENTRY_BYTES, np.uint8)
    encode_entries(offsets, packed, entries)
    decode_entries(entries, offsets, packed)
    add_scattered(np.zeros(16, np.uint8), offsets, packed)
    bitfield_read(b"key", offsets)
    parse_integers(entries, 0, 0, packed, 0)
    decode_range(entries, offsets, 0, packed)
    find_heavy(packed, np.empty(2, np.uint8))
    limit_heavy(packed, np.zeros(1, np.int64), packed)
    add_to_range(np.empty(0, np.uint8), 0, offsets, packed, np.empty(16, np.uint8))
    bitfield_add(b"key", offsets, packed)
