"""`Replicas`: whether those who may take over from a primary know what it knows."""

from __future__ import annotations

from collections.abc import Sequence

from ps.redis.incarnation import Incarnation
from ps.wire import INCARNATION, Address, Channel, Keys, Link, ServerError, command, require_passing


class Replicas:
    """Of the nodes that hold one model's `count` partitions."""

    def __init__(self, channel: Channel, keys: Keys, count: int, incarnation: Incarnation) -> None:
        """`channel` is the one that pushes go through."""
        self._channel = channel
        self._keys = keys
        self._count = count
        self._incarnation = incarnation
        self._with_replica: set[Address] = set()

    def have_everything(self, timeout_s: float) -> bool:
        """Whether a replica of every node has what was pushed so far; waits for it up to `timeout_s`.

        True also for nodes that never had a replica, but not for one that has lost sight of it: that replica
        may take over all the same.
        """
        safe = True
        wait = command(b"WAIT", b"1", b"%d" % max(1, round(timeout_s * 1000)))

        def on_node(address: Address, partitions: Sequence[int]) -> list[int]:
            nonlocal safe
            (link,) = self._channel.nodes.links(address, 1)
            found = self._look_for_replica(address, link)
            if found is None:
                return list(partitions)
            if not found:
                if address in self._with_replica:
                    safe = False
                return []
            watermarks = self._keys.watermarks(partitions[0])
            try:
                link.send(command(b"HGET", watermarks, INCARNATION))
                self._incarnation.check(link.replies.bulk())
                # WAIT waits for what this connection wrote, and all that the server was told before.
                link.send(command(b"HSET", watermarks, INCARNATION, self._incarnation.id) + wait)
                link.replies.skip()
                if link.replies.integer() == 0:
                    safe = False  # not `&=`, which looks at `safe` before it waits: nodes run side by side
            except ServerError as error:
                require_passing(error)
                return list(partitions)
            return []

        self._channel.everywhere(list(range(self._count)), on_node)
        return safe

    def exist(self) -> bool:
        """Whether any node has a replica that may take over from it."""
        found = False

        def on_node(address: Address, partitions: Sequence[int]) -> list[int]:
            nonlocal found
            (link,) = self._channel.nodes.links(address, 1)
            has_one = self._look_for_replica(address, link)
            if has_one is None:
                return list(partitions)
            if has_one:
                found = True
            return []

        self._channel.everywhere(list(range(self._count)), on_node)
        return found

    def servers(self) -> frozenset[tuple[Address, str]]:
        """The nodes, each with the id of its process."""
        found: set[tuple[Address, str]] = set()

        def on_node(address: Address, partitions: Sequence[int]) -> list[int]:
            (link,) = self._channel.nodes.links(address, 1)
            link.send(command(b"INFO", b"server"))
            info = link.replies.text().decode()
            found.add((address, info.partition("run_id:")[2].partition("\r")[0]))
            return []

        self._channel.everywhere(list(range(self._count)), on_node)
        return frozenset(found)

    def _look_for_replica(self, address: Address, link: Link) -> bool | None:
        """Whether a replica follows this primary now; None when the node is a replica itself by now."""
        link.send(command(b"INFO", b"replication"))
        info = link.replies.text()
        if b"role:master" not in info:
            return None
        found = b"connected_slaves:0" not in info
        if found:
            self._with_replica.add(address)
        return found
