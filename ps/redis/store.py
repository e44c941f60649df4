"""`RedisStore`: the parameters in Redis, in strings of packed fixed-point accumulators."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ctr.errors import StoreError
from ctr.ps.fixed_point_kernels import COARSEST_N_BITS, FINEST_Z_BITS, Z_MOST, pack_delta, token_hash, unpack
from ctr.ps.layout import Layout, density_of
from ctr.ps.partitions import Bools, Float32, Int64, Slots, as_slots
from ctr.ps.redis.change_feed import ChangeFeed, Changes, FeedPosition
from ctr.ps.redis.counters import SaturationCount, Saturations, Traffic
from ctr.ps.redis.drop import drop_model, dropping
from ctr.ps.redis.dumps import Dumps, PartitionDump
from ctr.ps.redis.model import open_model
from ctr.ps.redis.packed_push import PackedPush
from ctr.ps.redis.pulls import PulledState, Pulls
from ctr.ps.redis.pushes import Pushes
from ctr.ps.redis.replication import Replicas
from ctr.ps.store import GapError, Token, check_delta, check_slots
from ctr.ps.wire import PATIENCE_S, Address, FanOut, Keys, RedisUrl

_WIDTH = 2
_ATTEMPT_LINKS = 4  # to each node


class RedisStore:
    """`Store` of width 2 (FTRL's `z` and `n`) for `2**bits` slots in one Redis or a Redis Cluster.

    The two numbers of a slot travel as one 64-bit integer: `z` with `z_bits` fraction bits in the high half,
    `n` with `n_bits` in the low half, rounded stochastically but repeatably (see `pack_delta`), saturating.
    Adding is one transaction for each partition with the token's watermark, under `WATCH` on that: so a push
    counts once, whatever is repeated and whoever else pushes for the same shard. A dense push rewrites the
    range that it touches, a sparse one is the server's `BITFIELD INCRBY`.

    Pulls and pushes have connections of their own, so that one of each may be under way.
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
        create: bool = True,
        restoring: bool = False,
        timeout_s: float = 10.0,
        patience_s: float = PATIENCE_S,
        on_close: Callable[[], object] = lambda: None,
    ) -> None:
        """Create the model `url.model` (default: `default`); with `join`, open it if it is there.

        Without `create`, it must be there. With `restoring`, a new model can be used when each of its
        partitions has been given to `restore`: a replica that takes over without that is then known by it.

        A server that is silent for `timeout_s` counts as broken; what was sent is then repeated as needed,
        until nothing has helped for `patience_s`.

        `facts` must then be those it was created with. Raises StoreError when the server cannot be reached,
        refuses, or holds a model of that name already.
        """
        if width != _WIDTH:
            raise StoreError(f"a Redis store keeps 2 numbers per slot, not {width}.")
        self.layout = Layout.of(bits)
        self.partitions = self.layout.partitions
        self.url = url
        self.keys = Keys(url.model or "default")
        self.z_bits = z_bits
        self.n_bits = n_bits
        self._least_density = min(density_of(address) for address in url.hosts)
        self._on_close = on_close
        self._saturations = SaturationCount()
        self._reads, self._writes = (FanOut(url, self.keys, timeout_s, patience_s) for _ in range(2))
        try:
            self._incarnation = open_model(
                url,
                self._reads.nodes,
                self.keys,
                self.layout,
                {"bits": str(bits), "z_bits": str(z_bits), "n_bits": str(n_bits), **(facts or {})},
                join=join,
                create=create,
                restoring=restoring,
                patience_s=patience_s,
            )
        except BaseException:
            self._reads.close()
            self._writes.close()
            raise
        reads, writes = ((each, self.layout, self._incarnation) for each in (self._reads, self._writes))
        self._feed, self._pulls = ChangeFeed(*reads), Pulls(*reads)
        self._pushes = Pushes(*writes, self._saturations)
        # A worker takes over one data shard while it still pushes another.
        self._attempts = Pushes(*reads, self._saturations, links=_ATTEMPT_LINKS)
        self._replicas = Replicas(self._writes, self.partitions.count, self._incarnation)
        self._dumps = Dumps(self._reads, self._writes, self.layout, self._incarnation)

    @property
    def bits(self) -> int:
        return self.partitions.bits

    @property
    def width(self) -> int:
        return _WIDTH

    @property
    def largest_z(self) -> float:
        """Where `z` stops, on both sides of 0."""
        return Z_MOST * 2.0**-self.z_bits

    @property
    def incarnation(self) -> str:
        """The random id of the model's creation."""
        return self._incarnation.id.decode()

    @property
    def traffic(self) -> Traffic:
        """Bytes of pulls and pushes so far."""
        reads, writes = self._reads.nodes.traffic(), self._writes.nodes.traffic()
        return Traffic(reads[0] + writes[0], reads[1] + writes[1])

    @property
    def saturations(self) -> Saturations:
        """Of the pushes so far, and of the increments that were made for others."""
        return self._saturations.total

    @property
    def troubles(self) -> int:
        """How often a request met a broken connection or a changing cluster, and was repeated."""
        return self._reads.troubles + self._writes.troubles

    def pull(self, slots: Slots) -> NDArray[np.float32]:
        """See `Store.pull`; without what workers have left in logs, see `fold`."""
        return self.unpacked(self.pull_packed(slots).packed)

    def unpacked(self, packed: Int64) -> Float32:
        """The state float32[u, 2] of packed accumulators int64[u]."""
        state = np.empty((packed.size, _WIDTH), np.float32)
        unpack(packed, self.z_bits, self.n_bits, state)
        return state

    def increments(self, slots: Slots, delta: Float32, token: Token, pulled: Float32 | None) -> Int64:
        """What `push` adds to the packed accumulators, int64[u]: the same for the same work in every job.

        Raises as `push` does.
        """
        delta = check_delta(delta, slots.size, _WIDTH)
        increments = np.empty(slots.size, np.int64)
        if pulled is not None:
            pulled = check_delta(pulled, slots.size, _WIDTH)
        seed = token_hash(token.shard, token.number)
        scales = self.z_bits, self.n_bits
        self._saturations.add(*pack_delta(delta, pulled, slots, seed, *scales, increments))
        return increments

    def pull_packed(self, slots: Slots, job: str = "", shards: Sequence[int] = ()) -> PulledState:
        """The packed accumulators of slots, and what their partitions have of these data shards of a job.

        Raises as `Store.pull` does.
        """
        return self._pulls.pull(check_slots(slots, self.bits), job, shards)

    def push(
        self,
        slots: Slots,
        delta: Float32,
        token: Token,
        pulled: Float32 | None = None,
        previous: Int64 | None = None,
    ) -> None:
        increments = self.increments(check_slots(slots, self.bits), delta, token, pulled)
        behind = self.push_packed(PackedPush(slots, increments, token, previous=previous))
        if behind:
            raise GapError(self.url, token, behind)

    def push_packed(self, push: PackedPush, only: Bools | None = None) -> list[int]:
        """Add integers to packed accumulators, as `Store.push` does; return the partitions that refuse it.

        Those lack the push before it, see `PackedPush.previous`, which can then be sent first. `only`,
        bool[partitions], are those to push to; of them, one without a slot notes the push in its watermark.

        Raises SupersededError when a later attempt at the data shard has begun than the token's.
        """
        push.slots = check_slots(push.slots, self.bits)
        return self._pushes.push(push, only)

    def take_over(self, job: str, shard: int) -> tuple[int, Int64]:
        """See `Store.take_over`; raises StoreError also when others begin attempts at it all the time."""
        return self._attempts.take_over(job, shard)

    def applied(self, job: str, shard: int) -> Int64:
        return self._pulls.applied(job, shard)

    def applied_everywhere(self, job: str, shards: Sequence[int]) -> Int64:
        """int64[shards]: the last push of each of these data shards that every partition has; -1 for none.

        Raises as `pull` does.
        """
        return self._pulls.applied_everywhere(job, shards)

    def servers(self) -> frozenset[tuple[Address, str]]:
        """The primaries that hold the model now, with the ids of their processes: a restart changes its one.

        Raises as `pull` does.
        """
        return self._replicas.servers()

    def read_changes(self, position: FeedPosition) -> Changes:
        """Which slots have been pushed since this position, which moves on; raises as `pull` does.

        Where much is new, not all is read at once: see `FeedPosition.current`.
        """
        return self._feed.read(position)

    def lineages(self) -> list[bytes]:
        """Of each partition: if it changes, what was read of it before may be lost. Raises as `pull` does."""
        return self._feed.lineages()

    def make_strings(self) -> None:
        """Make the strings that are not there yet, of zeros, as the first push would; raises as that does.

        It takes a server 0.8 s for each GB, in which a job can do other things.
        """
        self._pushes.make_strings()

    def fold(self) -> None:
        """Add all logs to the state, for whoever pulls. Raises as `push` does."""
        self._pushes.folds.fold_all()

    def wait_replicated(self, timeout_s: float) -> bool:
        """See `Replicas.have_everything`."""
        return self._replicas.have_everything(timeout_s)

    def has_replicas(self) -> bool:
        """See `Replicas.exist`."""
        return self._replicas.exist()

    def is_dense(self, slots: int) -> bool:
        """Whether requests for so many slots travel as ranges, so that leaving some out saves nothing."""
        return slots * self._least_density >= 1 << self.bits

    def scan(self) -> Iterator[tuple[Slots, Float32]]:
        """See `Store.scan`; a block is one partition."""
        for p in np.flatnonzero(self._dumps.sizes()).tolist():
            packed = np.frombuffer(self.dump(p).state, ">i8")
            used = np.flatnonzero(packed.view(np.int64))  # many times faster in this byte order
            if used.size:
                slots = as_slots(used + (p << self.partitions.shift), self.bits)
                yield slots, self.unpacked(packed[used].astype(np.int64))

    def dump(self, partition: int) -> PartitionDump:
        """Everything that a partition holds, read at one moment."""
        return self._dumps.take(partition)

    def restore(self, dump: PartitionDump) -> None:
        """Make a partition hold what was dumped; for a model that is being made."""
        self._dumps.restore(dump)

    def drop(self) -> None:
        """Delete the model from the store, and close; a later model of that name is left alone."""
        self._reads.require_open()
        connection = dropping(self._reads.nodes, self.keys, self._reads.patience_s)
        drop_model(connection, self.keys, self._incarnation.id)
        self.close()

    def close(self) -> None:
        """See `Store.close`; the parameters stay in Redis."""
        if self._reads.close():
            self._writes.close()
            self._on_close()
