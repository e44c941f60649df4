"""`FanOut`: sends a request to all nodes that hold its partitions, and retries where it failed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import RLock

from redis.crc import key_slot

from ctr.errors import StoreError
from ctr.ps.wire.keys import Keys
from ctr.ps.wire.link import Link
from ctr.ps.wire.nodes import Nodes
from ctr.ps.wire.patience import BROKEN, TROUBLE, patiently, require_passing
from ctr.ps.wire.replies import ReplyReader, ServerError
from ctr.ps.wire.url import Address

_CHANGING = ServerError("TRYAGAIN the cluster is changing")

OnNode = Callable[[Link, Sequence[int]], list[int]]
"""Handles some partitions over a link to their node; returns those to retry, perhaps on another node."""


class FanOut:
    """Requests to all nodes of a store, one request at a time: threads wait for each other."""

    def __init__(self, nodes: Nodes, keys: Keys, patience_s: float, beside: FanOut | None = None) -> None:
        """`nodes` are closed with it, unless they are those of another one, `beside` which it is used."""
        self.url = nodes.url
        self.patience_s = patience_s
        self.nodes = nodes
        self._beside = beside
        self._keys = keys
        self._hash_slots: dict[int, int] = {}
        self._lock = RLock()
        self._pool = ThreadPoolExecutor(16, thread_name_prefix="node")
        self._closed = False
        self.troubles = 0
        """How often a request met a broken connection or a changing cluster."""

    def another(self) -> FanOut:
        """Requests to the same nodes at the same time as those of this one, until this one is closed."""
        return FanOut(self.nodes, self._keys, self.patience_s, self)

    def everywhere(self, partitions: list[int], on_node: OnNode) -> None:
        """Call `on_node` for every node with its partitions, in parallel, until all partitions are done.

        Retries for `patience_s`, and then raises StoreError; also raises StoreError if it is closed.
        """
        with self._lock:
            self.require_open()
            todo = partitions

            def attempt() -> None:
                nonlocal todo
                todo, problem = self._round(todo, on_node)
                if todo:
                    self.troubles += 1
                    raise problem or _CHANGING

            def gave_up(problem: Exception) -> StoreError:
                if problem is _CHANGING:
                    problem = self.nodes.refused() or problem
                return StoreError(
                    f"{self.url}: {len(todo)} partitions could not be reached for {self.patience_s:g} s "
                    f"({problem}); bring the server back, then see `ctr ps status`."
                )

            patiently(attempt, self.nodes.refresh, self.url, self.patience_s, gave_up)

    def ask_each(
        self,
        partitions: Sequence[int],
        ask: Callable[[int], bytes],
        read: Callable[[int, ReplyReader], object],
    ) -> None:
        """Send the commands that `ask` returns for each partition, and call `read` for its answers.

        `read` is called again for a partition that has to be retried.
        """

        def on_node(link: Link, share: Sequence[int]) -> list[int]:
            link.send(b"".join(map(ask, share)))
            again = []
            for p in share:
                try:
                    read(p, link.replies)
                except ServerError as error:
                    require_passing(error)
                    again.append(p)
            return again

        self.everywhere(list(partitions), on_node)

    def require_open(self) -> None:
        """Raise StoreError if it is closed."""
        with self._lock:
            if self._closed or (self._beside is not None and self._beside._closed):
                raise StoreError(f"{self.url}: the store is closed.")

    def close(self) -> bool:
        """Close all links; False if it was closed before."""
        with self._lock:
            if self._closed:
                return False
            self._closed = True
            self._pool.shutdown()
            if self._beside is None:
                self.nodes.close()
            return True

    def _round(self, partitions: list[int], on_node: OnNode) -> tuple[list[int], Exception | None]:
        problem: Exception | None = None

        def guarded(address: Address, share: list[int]) -> list[int]:
            nonlocal problem
            try:
                with self.nodes.link(address) as link:
                    return on_node(link, share)
            except TROUBLE as error:
                require_passing(error, self.url)
                problem = error
                return share  # watermarks tell what was applied

        try:
            owners = self._owners(partitions)
        except BROKEN as error:
            return partitions, error
        if len(owners) == 1:
            ((address, share),) = owners.items()
            return guarded(address, share), problem
        calls = [self._pool.submit(guarded, address, share) for address, share in owners.items()]
        failures = [failure for call in calls if (failure := call.exception()) is not None]  # waits for all
        if failures:
            raise failures[0]
        return [partition for call in calls for partition in call.result()], problem

    def _owners(self, partitions: list[int]) -> dict[Address, list[int]]:
        """The partitions by the address of their primary."""
        owners: dict[Address, list[int]] = {}
        for partition in partitions:
            slot = self._hash_slots.get(partition)
            if slot is None:
                slot = self._hash_slots[partition] = key_slot(self._keys.state(partition))
            owners.setdefault(self.nodes.holder(slot), []).append(partition)
        return owners
