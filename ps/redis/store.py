"""`RedisStore`: the parameters in Redis, in strings of packed fixed-point accumulators."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from ctr.errors import StoreError
from ctr.ps.fixed_point_kernels import COARSEST_N_BITS, FINEST_Z_BITS, Z_MOST, pack_delta, token_hash, unpack
from ctr.ps.layout import density_of
from ctr.ps.partitions import Bools, Float32, Int64, Slots, as_slots
from ctr.ps.redis.creation import drop_model, dropping, open_model
from ctr.ps.redis.dumps import Dumps
from ctr.ps.redis.model import RedisModel
from ctr.ps.redis.packed_push import PackedPush, Saturations
from ctr.ps.redis.pulls import PulledState, Pulls
from ctr.ps.redis.pushes import Pushes
from ctr.ps.redis.replication import Replicas
from ctr.ps.store import GapError, Token, check_delta, check_slots
from ctr.ps.wire import PATIENCE_S, FanOut, Keys, RedisUrl, connect

_WIDTH = 2
_SCANNED_SLOTS = 1 << 20  # in one block of `scan`


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes that a store has exchanged with its servers."""

    sent: int
    received: int


class RedisStore:
    """`Store` of width 2 (FTRL's `z` and `n`) for `2**bits` slots in one Redis or a Redis Cluster.

    The two numbers of a slot are stored as one 64-bit integer: `z` with `z_bits` fraction bits in the high
    half, `n` with `n_bits` in the low half, saturating, rounded randomly but reproducibly (see `pack_delta`).
    A push is one transaction per partition, which watches the token's watermark and changes it: so a push
    counts once, even if it is repeated or others push for the same shard. A dense push rewrites the range
    that it touches; a sparse one uses `BITFIELD INCRBY`.

    Pulls and pushes have connections of their own, so that one of each may run at the same time.
    """

    def __init__(
        self,
        url: RedisUrl,
        *,
        bits: int,
        width: int,
        facts: Mapping[str, str] | None = None,
        z_bits: int = FINEST_Z_BITS,
        n_bits: int = COARSEST_N_BITS,
        join: bool = False,
        restoring: bool = False,
        partitions: int | None = None,
        timeout_s: float = 10.0,
        patience_s: float = PATIENCE_S,
        from_replicas: bool = False,
    ) -> None:
        """Create the model `url.model` (default: `default`); with `join`, open the existing one.

        `join` requires the same `facts` as at its creation. A new model has at least four partitions per
        node, unless `partitions` gives their number. With `restoring`, it can be used once `dumps.restore`
        has restored each of them; so a replica that takes over without a restored partition is noticed.

        A server that is silent for `timeout_s` counts as broken; requests are then repeated as needed, for up
        to `patience_s`. With `from_replicas`, reads go to the replicas of a cluster, if it has any, and see
        changes a moment later.

        Raises StoreError if the server is unreachable, refuses, or has a model of that name already; with
        `join`, if it has none, or another one.
        """
        if width != _WIDTH:
            raise StoreError(f"a Redis store keeps 2 numbers per slot, not {width}.")
        self.bits = bits
        self.width = width
        self.url = url
        self.keys = Keys(url.model or "default")
        self.z_bits = z_bits
        self.n_bits = n_bits
        self._least_density = min(density_of(address) for address in url.hosts)
        self.on_close = ExitStack()
        """Closed once the store is closed."""
        self.saturations = Saturations()
        """Counted over all pushes and calls of `increments` so far."""
        self._counting = Lock()
        reading = connect(url, timeout_s, replicas=from_replicas)
        self._reads = FanOut(reading, self.keys, patience_s)
        self._writes = FanOut(connect(url, timeout_s), self.keys, patience_s)
        try:
            incarnation, self.layout = open_model(
                self._reads.nodes,
                self.keys,
                bits,
                {"z_bits": str(z_bits), "n_bits": str(n_bits), **(facts or {})},
                join=join,
                restoring=restoring,
                partitions=partitions,
                patience_s=patience_s,
            )
        except BaseException:
            self._reads.close()
            self._writes.close()
            raise
        self.partitions = self.layout.partitions
        self.incarnation = incarnation.decode()
        """The random id of the model's creation."""
        reads, writes = (
            RedisModel(each, self.keys, self.layout, incarnation) for each in (self._reads, self._writes)
        )
        self.pulls, self.pushes = Pulls(reads), Pushes(writes, self._count_limited)
        # A worker takes over a data shard while it pushes another, and reads watermarks while it pulls.
        self._attempts, self._watermarks = Pushes(reads, self._count_limited), Pulls(writes)
        self.replicas, self.dumps = Replicas(writes), Dumps(reads, writes)

    @property
    def largest_z(self) -> float:
        """The limit of `z` on both sides of 0."""
        return Z_MOST * 2.0**-self.z_bits

    @property
    def traffic(self) -> Traffic:
        """All bytes so far, including those of opening and creating the model."""
        reads, writes = self._reads.nodes.traffic(), self._writes.nodes.traffic()
        return Traffic(reads[0] + writes[0], reads[1] + writes[1])

    @property
    def troubles(self) -> int:
        """How often a request met a broken connection or a changing cluster, and was repeated."""
        return self._reads.troubles + self._writes.troubles

    def pull(self, slots: Slots) -> NDArray[np.float32]:
        """See `Store.pull`; without the entries of logs."""
        return self.unpacked(self.pull_packed(slots).packed)

    def unpacked(self, packed: Int64) -> Float32:
        """The state float32[u, 2] of packed accumulators int64[u]."""
        state = np.empty((packed.size, _WIDTH), np.float32)
        unpack(packed, self.z_bits, self.n_bits, state)
        return state

    def increments(self, slots: Slots, delta: Float32, token: Token, pulled: Float32 | None) -> Int64:
        """The increments of packed accumulators by `push`, int64[u]; every job makes the same for equal work.

        Raises as `push` does.
        """
        delta = check_delta(delta, slots.size, _WIDTH)
        increments = np.empty(slots.size, np.int64)
        if pulled is not None:
            pulled = check_delta(pulled, slots.size, _WIDTH)
        seed = token_hash(token.shard, token.number)
        scales = self.z_bits, self.n_bits
        self._count_limited(*pack_delta(delta, pulled, slots, seed, *scales, increments))
        return increments

    def pull_packed(self, slots: Slots, job: str = "", shards: Sequence[int] = ()) -> PulledState:
        """The packed accumulators of slots, and the watermarks of these data shards of a job.

        Raises as `Store.pull` does.
        """
        return self.pulls.pull(check_slots(slots, self.bits), job, shards)

    def push(
        self,
        slots: Slots,
        delta: Float32,
        token: Token,
        pulled: Float32 | None = None,
        previous: Int64 | None = None,
    ) -> None:
        increments = self.increments(check_slots(slots, self.bits), delta, token, pulled)
        push = PackedPush(slots, increments, token)
        if previous is not None:
            push.previous = previous
        if behind := self.push_packed(push):
            raise GapError(self.url, token, behind)

    def push_packed(self, push: PackedPush, only: Bools | None = None) -> list[int]:
        """Add integers to packed accumulators, as `Store.push` does; returns the partitions that refuse it.

        They lack the previous push (see `PackedPush.previous`), which must be sent first. `only`,
        bool[partitions], selects the partitions to push to; those without slots only raise their watermark.
        Call `fold_log` afterwards, when nobody waits any longer for this push.

        Raises SupersededError if an attempt at the data shard has begun that is later than the token's.
        """
        push.slots = check_slots(push.slots, self.bits)
        return self.pushes.push(push, only)

    def fold_log(self) -> bool:
        """Fold a log that pushes through this store have made long; returns whether there are more.

        One that is not folded, as when a worker dies, is folded by others when it is longer. Raises as
        `push_packed` does.
        """
        return self.pushes.fold_log()

    def take_over(self, job: str, shard: int) -> tuple[int, Int64]:
        """See `Store.take_over`; also raises StoreError if others keep beginning attempts at the shard."""
        return self._attempts.take_over(job, shard)

    def applied(self, job: str, shard: int) -> Int64:
        return self._watermarks.applied(job, shard)

    def is_dense(self, slots: int) -> bool:
        """Whether requests for this many slots move ranges, so that leaving some out saves nothing."""
        return slots * self._least_density >= 1 << self.bits

    def scan(self) -> Iterator[tuple[Slots, Float32]]:
        """See `Store.scan`."""
        for p in range(self.partitions.count):
            yield from self._scan(p)

    def _scan(self, partition: int) -> Iterator[tuple[Slots, Float32]]:
        """Scan one partition; its memory is freed before the next one is read."""
        state = np.frombuffer(self.dumps.take(partition).state, ">i8")
        partition_start = partition << self.partitions.shift
        for first in range(0, state.size, _SCANNED_SLOTS):
            packed = state[first : first + _SCANNED_SLOTS]
            used = np.flatnonzero(packed.view(np.int64))  # many times faster in this byte order
            if used.size:
                slots = as_slots(used + (partition_start + first), self.bits)
                yield slots, self.unpacked(packed[used].astype(np.int64))

    def drop(self) -> None:
        """Delete the model from the store, and close it; a later model of that name is not deleted."""
        self._reads.require_open()
        connection = dropping(self._reads.nodes, self.keys, self._reads.patience_s)
        drop_model(connection, self.keys, self.incarnation.encode())
        self.close()

    def close(self) -> None:
        """See `Store.close`; the parameters stay in Redis."""
        if self._reads.close():
            self._writes.close()
            self.on_close.close()

    def _count_limited(self, z: int, n: int) -> None:
        """Count slots whose z and n were limited."""
        if z or n:
            with self._counting:
                self.saturations += Saturations(z, n)
