"""`RedisStore`: the parameters in Redis, one string of packed fixed-point accumulators per partition."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from time import monotonic, sleep

import numpy as np
from numpy.typing import NDArray
from redis.exceptions import AuthenticationError, RedisError

from ctr.errors import StoreError
from ps.fixed_point_kernels import pack_delta, token_hash, unpack
from ps.partitions import Partitions, Slots, as_slots
from ps.redis_commands import PullRequest, command, read_transaction, require_passing, transaction, watch
from ps.redis_keys import RUN, Keys, applied_field
from ps.redis_model import drop_model, open_model
from ps.redis_nodes import Address, Link, Nodes, RedisUrl, connect, parse_redis_url
from ps.redis_replies import ReplyReader, ServerError
from ps.store import Token, check_delta, check_slots

LARGEST_PARTITION_BITS = 21
LEAST_PARTITIONS = 64

_WIDTH = 2
_PATIENCE_S = 30.0
_PAUSE_S = 0.05
_LINKS = 16  # transactions on one node at a time: each needs a connection, as WATCH belongs to one


class RedisStore:
    """State of width 2 (FTRL's `z` and `n`) for `2**bits` slots in one Redis or a Redis Cluster.

    The two numbers of a slot travel as one 64-bit integer: `z` with `z_bits` fraction bits in the high half,
    `n` with 8 in the low half, rounded stochastically but repeatably (see `pack_delta`), saturating. Adding
    is the server's `BITFIELD INCRBY`, in one transaction with the record of the token, under `WATCH` on
    that record: so a push counts once, whatever is repeated and whoever else pushes for the same shard.
    """

    def __init__(
        self,
        url: RedisUrl,
        *,
        bits: int,
        width: int,
        facts: Mapping[str, str] | None = None,
        z_bits: int = 13,
        join: bool = False,
        timeout_s: float = 10.0,
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        """Create the model `url.model` (default: `default`); with `join`, open it if it is there.

        A server that is silent for `timeout_s` counts as broken; what was sent is then repeated as needed.

        `facts` must then be those it was created with. Raises StoreError when the server cannot be reached,
        refuses, or holds a model of that name already.
        """
        if width != _WIDTH:
            raise StoreError(f"a Redis store keeps 2 numbers per slot, not {width}.")
        count = max(min(LEAST_PARTITIONS, 1 << min(bits, 40)), 1 << max(bits - LARGEST_PARTITION_BITS, 0))
        self.partitions = Partitions(bits, count)
        self.url = url
        self._keys = Keys(url.model or "default")
        self._z_bits = z_bits
        self._nodes: Nodes = connect(url, self._keys, timeout_s)
        self._on_close = on_close
        self._lock = Lock()  # connections are not shared: one request at a time
        self._closed = False
        facts = {"bits": str(bits), "z_bits": str(z_bits), **(facts or {})}
        try:
            self._run = open_model(self._nodes.client(), self._keys, count, facts, join=join)
        except RedisError as error:
            raise StoreError(f"{url}: the model could not be opened ({error}).") from error

    @property
    def bits(self) -> int:
        """See `Store.bits`."""
        return self.partitions.bits

    @property
    def width(self) -> int:
        """See `Store.width`."""
        return _WIDTH

    def pull(self, slots: Slots) -> NDArray[np.float32]:
        """See `Store.pull`."""
        slots = check_slots(slots, self.bits)
        packed = np.zeros(slots.size, np.int64)
        cuts = self.partitions.cuts(slots)
        offsets = self._offsets(slots)

        def on_node(address: Address, partitions: Sequence[int]) -> list[int]:
            (link,) = self._nodes.links(address, 1)
            requests = [PullRequest(p, offsets[cuts[p] : cuts[p + 1]]) for p in partitions]
            for request in requests:
                link.send(request.encode(self._keys))
            moved = []
            for request in requests:
                p = request.partition
                if not request.read(link.replies, packed[cuts[p] : cuts[p + 1]], self._check_run):
                    moved.append(p)
            return moved

        self._everywhere(np.flatnonzero(np.diff(cuts)).tolist(), on_node)
        state = np.empty((slots.size, _WIDTH), np.float32)
        unpack(packed, self._z_bits, state)
        return state

    def push(
        self,
        slots: Slots,
        delta: NDArray[np.float32],
        token: Token,
        pulled: NDArray[np.float32] | None = None,
    ) -> None:
        """See `Store.push`."""
        slots = check_slots(slots, self.bits)
        delta = check_delta(delta, slots.size, _WIDTH)
        if slots.size == 0:
            with self._lock:
                self._require_open()
            return
        increments = np.empty(slots.size, np.int64)
        if pulled is not None:
            pulled = check_delta(pulled, slots.size, _WIDTH)
        # Not the job's name, which is random: the same work is to be rounded the same way every time.
        seed = token_hash("", token.shard, token.chunk)
        pack_delta(delta, pulled, slots, seed, self._z_bits, increments)
        cuts = self.partitions.cuts(slots)
        offsets = self._offsets(slots)
        field = applied_field(token.job, token.shard)

        def on_node(address: Address, partitions: Sequence[int]) -> list[int]:
            again: list[int] = []
            for first in range(0, len(partitions), _LINKS):
                wave = partitions[first : first + _LINKS]
                links = self._nodes.links(address, len(wave))
                for link, p in zip(links, wave, strict=True):
                    link.send(watch(self._keys.record(p), field))
                begun: list[tuple[Link, int]] = []
                for link, p in zip(links, wave, strict=True):
                    todo = self._read_watch(link, token.chunk)
                    if todo is None:
                        again.append(p)
                    elif todo:
                        part = slice(cuts[p], cuts[p + 1])
                        link.send(
                            transaction(self._keys, p, offsets[part], increments[part], field, token.chunk)
                        )
                        begun.append((link, p))
                for link, p in begun:
                    if not read_transaction(link.replies, int(cuts[p + 1] - cuts[p])):
                        again.append(p)
            return again

        self._everywhere(np.flatnonzero(np.diff(cuts)).tolist(), on_node)

    def applied(self, job: str, shard: int) -> NDArray[np.int64]:
        """See `Store.applied`."""
        found = np.full(self.partitions.count, -1, np.int64)
        field = applied_field(job, shard)

        def on_node(address: Address, partitions: Sequence[int]) -> list[int]:
            (link,) = self._nodes.links(address, 1)
            link.send(b"".join(command(b"HMGET", self._keys.record(p), RUN, field) for p in partitions))
            again = []
            for p in partitions:
                try:
                    found[p] = self._read_record(link.replies)
                except ServerError as error:
                    require_passing(error)
                    again.append(p)
            return again

        self._everywhere(list(range(self.partitions.count)), on_node)
        return found

    def scan(self) -> Iterator[tuple[Slots, NDArray[np.float32]]]:
        """See `Store.scan`; a block is one partition."""
        for p in np.flatnonzero(self._sizes()).tolist():
            packed = np.zeros(self.partitions.size, np.int64)
            everything = np.arange(self.partitions.size, dtype=np.uint32)

            def on_node(
                address: Address,
                partitions: Sequence[int],
                packed: NDArray[np.int64] = packed,
                everything: NDArray[np.uint32] = everything,
            ) -> list[int]:
                (link,) = self._nodes.links(address, 1)
                request = PullRequest(partitions[0], everything)
                link.send(request.encode(self._keys))
                return [] if request.read(link.replies, packed, self._check_run) else list(partitions)

            self._everywhere([p], on_node)
            used = np.flatnonzero(packed)
            if used.size:
                state = np.empty((used.size, _WIDTH), np.float32)
                unpack(packed[used], self._z_bits, state)
                yield as_slots(used + (p << self.partitions.shift), self.bits), state

    def _sizes(self) -> NDArray[np.int64]:
        """int64[partitions]: bytes of each partition's state; checks that no node has lost its data."""
        sizes = np.zeros(self.partitions.count, np.int64)

        def on_node(address: Address, partitions: Sequence[int]) -> list[int]:
            (link,) = self._nodes.links(address, 1)
            again = []
            for p in partitions:
                check = command(b"HGET", self._keys.record(p), RUN)
                link.send(check + command(b"STRLEN", self._keys.state(p)))
            for p in partitions:
                elsewhere = False
                try:
                    self._check_run(link.replies.bulk())
                except ServerError as error:
                    require_passing(error)
                    elsewhere = True
                try:
                    sizes[p] = link.replies.integer()
                except ServerError as error:
                    require_passing(error)
                    elsewhere = True
                if elsewhere:
                    again.append(p)
            return again

        self._everywhere(list(range(self.partitions.count)), on_node)
        return sizes

    def drop(self) -> None:
        """Delete the model from the store, and close."""
        with self._lock:
            self._require_open()
            drop_model(self._nodes.client(), self._keys, self.partitions.count)
        self.close()

    def close(self) -> None:
        """See `Store.close`; the parameters stay in Redis."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._nodes.close()
                self._on_close()

    def _offsets(self, slots: Slots) -> NDArray[np.uint32]:
        return (slots & slots.dtype.type(self.partitions.size - 1)).astype(np.uint32)

    def _require_open(self) -> None:
        if self._closed:
            raise StoreError(f"{self.url}: the store is closed.")

    def _everywhere(
        self, partitions: list[int], on_node: Callable[[Address, Sequence[int]], list[int]]
    ) -> None:
        """Run `on_node` on every node with its share of the partitions until none is left to do.

        It returns those that have to be tried again. What is broken or passing is tried for 30 s.
        """
        with self._lock:
            self._require_open()
            todo, deadline = partitions, monotonic() + _PATIENCE_S
            while todo:
                try:
                    todo, problem = self._round(todo, on_node)
                except BaseException:
                    self._nodes.hang_up()  # or the next request would read what nobody read here
                    raise
                if not todo:
                    return
                if monotonic() > deadline:
                    raise StoreError(
                        f"{self.url}: {len(todo)} partitions could not be reached for {_PATIENCE_S:.0f} s "
                        f"({problem or 'the cluster is changing'}); nothing was lost, go on when it is back."
                    )
                sleep(_PAUSE_S)
                try:
                    self._nodes.refresh()
                except (RedisError, OSError):
                    continue  # still away: the deadline decides

    def _round(
        self, partitions: list[int], on_node: Callable[[Address, Sequence[int]], list[int]]
    ) -> tuple[list[int], Exception | None]:
        problem: Exception | None = None

        def guarded(address: Address, share: list[int]) -> list[int]:
            nonlocal problem
            try:
                return on_node(address, share)
            except AuthenticationError as error:
                raise StoreError(f"{self.url}: user or password was refused ({error}).") from None
            except (RedisError, OSError) as error:
                problem = error
                return share  # the record tells what was applied

        try:
            owners = self._nodes.owners(partitions)
        except (RedisError, OSError) as error:
            return partitions, error
        if len(owners) == 1:
            ((address, share),) = owners.items()
            return guarded(address, share), problem
        with ThreadPoolExecutor(len(owners)) as pool:
            left = [p for share in pool.map(guarded, owners.keys(), owners.values()) for p in share]
        return left, problem

    def _check_run(self, run: NDArray[np.uint8] | None) -> None:
        if run is None or run.tobytes() != self._run:
            raise StoreError(
                f"{self.url}: a node has lost the data of {self._keys.model!r} (restarted empty?). "
                "Training stops here; start again, or restore the node."
            )

    def _read_record(self, replies: ReplyReader) -> int:
        """The last chunk applied, -1 for none, from the answer to HMGET run field."""
        replies.array()
        self._check_run(replies.bulk())
        chunk = replies.bulk()
        return -1 if chunk is None else int(chunk.tobytes())

    def _read_watch(self, link: Link, chunk: int) -> bool | None:
        """Whether the chunk is still to be applied; None when the partition is elsewhere."""
        try:
            link.replies.status()
        except ServerError as error:
            require_passing(error)
            try:
                link.replies.array()
            except ServerError:
                return None
            raise
        if self._read_record(link.replies) < chunk:
            return True
        link.send(command(b"UNWATCH"))
        link.replies.status()
        return False


def drop_parameters(url: str) -> int:
    """Delete the model that a Redis URL names, finished or not; returns how many partitions it had.

    Raises StoreError when the server cannot be reached or has no such model.
    """
    parsed = parse_redis_url(url)
    keys = Keys(parsed.model or "default")
    nodes = connect(parsed, keys, timeout_s=10.0)
    try:
        found = nodes.client().hget(keys.meta, b"partitions")
        if found is None:
            raise StoreError(f"{parsed}: there is no model {keys.model!r} in this store.")
        drop_model(nodes.client(), keys, int(found))
        return int(found)
    finally:
        nodes.close()
