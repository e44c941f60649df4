"""`Replicas`: checks whether the replicas of a model's primaries have received all pushes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ctr.ps.redis.model import RedisModel
from ctr.ps.wire import (
    INCARNATION,
    Address,
    Link,
    ServerError,
    checked,
    parse_info,
    require_kept,
    require_passing,
)


class Replicas:
    """The replicas of the nodes that hold one model."""

    def __init__(self, model: RedisModel) -> None:
        """`model` uses the fan-out of pushes."""
        self._model = model
        self._with_replica: set[Address] = set()

    def have_everything(self, timeout_s: float) -> bool:
        """Wait up to `timeout_s` until a replica of every node has all pushes; returns whether that is so.

        Nodes that never had a replica are ignored. A node whose replica is away counts as lacking pushes:
        that replica may nevertheless take over.
        """

        def is_safe(link: Link, partition: int) -> bool | None:
            has_replica = self._look_for_replica(link)
            if has_replica is None:
                return None
            if not has_replica:
                return link.address not in self._with_replica
            try:
                while (acknowledged := self._write_and_wait(link, partition, timeout_s)) is None:
                    pass  # somebody else wrote the facts meanwhile
            except ServerError as error:
                require_passing(error)
                return None
            return acknowledged > 0

        return all(self._ask_nodes(is_safe))

    def exist(self) -> bool:
        """Whether any node has a replica that may take over from it."""
        return any(self._ask_nodes(lambda link, _: self._look_for_replica(link)))

    def _write_and_wait(self, link: Link, partition: int, timeout_s: float) -> int | None:
        """The answer to WAIT after a write over this link that changes nothing.

        WAIT waits for the writes of its own connection, and so for all earlier ones. None if the facts
        changed meanwhile, so that nothing was written: they may be those of a later model.
        """
        facts = self._model.keys.facts(partition)
        _, incarnation = checked(link.ask(("WATCH", facts), ("HGET", facts, INCARNATION)))
        self._model.check(incarnation)
        write = ("HSET", facts, INCARNATION, self._model.incarnation)
        wait = ("WAIT", 1, max(1, round(timeout_s * 1000)))
        *_, written, acknowledged = checked(link.ask(("MULTI",), write, ("EXEC",), wait))
        return None if written is None else int(acknowledged)

    def _ask_nodes(self, ask: Callable[[Link, int], bool | None]) -> list[bool]:
        """The results of `ask` for each node, given a link to it and one of its partitions.

        If the result is None, `ask` is repeated, perhaps for another node.
        """
        answers: list[bool] = []
        fan_out = self._model.fan_out

        def on_node(link: Link, partitions: Sequence[int]) -> list[int]:
            require_kept(fan_out.url, link)
            answer = ask(link, partitions[0])
            if answer is None:
                return list(partitions)
            answers.append(answer)
            return []

        fan_out.everywhere(list(range(self._model.layout.partitions.count)), on_node)
        return answers

    def _look_for_replica(self, link: Link) -> bool | None:
        """Whether a replica follows this primary; None if the node has become a replica itself."""
        (info,) = checked(link.ask(("INFO", "replication")))
        facts = parse_info(info)
        if facts["role"] != "master":
            return None
        if facts["connected_slaves"]:
            self._with_replica.add(link.address)
        return bool(facts["connected_slaves"])
