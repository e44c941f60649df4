"""`StoreObserver`: reads the state of a store, its model and its job, without changing anything."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import chain, islice
from time import sleep
from typing import Any, TypeVar

from redis.exceptions import ResponseError

from ctr.errors import StoreError
from ctr.ps.board import JOB_FACTS, job_of, read_reports, view_of, view_reads
from ctr.ps.redis import Layout, require_layout
from ctr.ps.status.status import BoardStatus, ModelStatus, StoreStatus
from ctr.ps.status.topology import NodeLook, Topology, cluster_topology, reason, single_server
from ctr.ps.wire import (
    INCARNATION,
    STATE,
    TROUBLE,
    Address,
    Command,
    Keys,
    RedisUrl,
    ServerError,
    checked,
    host_port,
    is_login_refused,
    open_link,
    pairs,
    parse_info,
)

T = TypeVar("T")

_PARTITIONS_AT_A_TIME = 1_000  # in one request to a node; its other clients are served in between
_LOOKS = 10  # while a model's description moves to another node
_PAUSE_S = 0.2
_ELSEWHERE = ("MOVED", "ASK")  # errors for a key that has moved, or is moving, to another node
_NO_ANSWER = ("LOADING", "NOAUTH")  # errors of a node that answers nothing else


class StoreObserver:
    """Reads the state of the store behind a URL, and of the model that the URL names.

    It only reads: it renews no lease and expires no worker. It asks nodes in parallel, and does not ask a
    node again in the same look that was silent for `timeout_s`. So a look ends within about three times that,
    whichever nodes are dead or frozen.
    """

    def __init__(self, url: RedisUrl, *, timeout_s: float = 3.0) -> None:
        """Does not connect before the first look."""
        self._url = url
        self._keys = Keys(url.model or "default")
        self._timeout_s = timeout_s
        self._topology = single_server(url.hosts[0])

    def look(self) -> StoreStatus:
        """Read the state of the store. Raises StoreError if no node of the URL answers."""
        looks = 1
        while (status := self._look()) is None:
            if looks == _LOOKS:
                raise StoreError(
                    f"{self._url}: the description of {self._keys.model!r} is moving from node to node; look "
                    "again when the cluster has settled."
                )
            looks += 1
            sleep(_PAUSE_S)
        return status

    def reports(self, names: Sequence[str] | None = None) -> dict[str, bytes]:
        """The job's reports by name: all, or those with these `names`. Call `look` first.

        Raises StoreError if they cannot be read.
        """
        return read_reports(self._answer, self._keys.board.reports, names)

    def prepared_updates(self, board: BoardStatus) -> dict[int, bytes]:
        """The last prepared update of each rank that has one; raises as `reports` does."""
        updates = {}
        prefix = f"{board.job.launch}:".encode()
        for rank in range(board.job.ranks):
            blobs = pairs(self._answer(("HGETALL", self._keys.rank(rank))))
            rounds = {int(name[len(prefix) :]): name for name in blobs if name.startswith(prefix)}
            if rounds:
                updates[rank] = blobs[rounds[max(rounds)]]
        return updates

    def _look(self) -> StoreStatus | None:
        """Read the state once; None if the model's description has just moved to another node."""
        self._topology = topology = self._find_nodes()
        self._each(self._look_at_node)
        home = topology.owner_of(self._keys.meta)
        at_home = next((node for node in topology.nodes if node.address == home), None)
        if at_home is None:
            return self._status("no node has the hash slot of the model's description")
        refusal = at_home.problem or at_home.meta
        if isinstance(refusal, ServerError) and refusal.code in _ELSEWHERE:
            if topology.state is not None:
                return None
            raise StoreError(f"{self._url}: is one node of a cluster; write redis+cluster://.")
        if isinstance(refusal, Exception):
            return self._status(f"the model's description cannot be read: {reason(refusal)}")
        try:
            model = self._model(at_home.meta)
        except StoreError as refusal:
            return self._status(str(refusal).rstrip("."))
        if model is None:
            return self._status(None)
        for partition in range(model.partitions):
            owner = topology.owner_of(self._keys.state(partition))
            for node in topology.nodes:
                if node.address == owner:
                    node.partitions.append(partition)
        self._each(lambda node: self._look_at_partitions(node, model))
        try:
            board = self._board(at_home.address)
        except TROUBLE as failure:
            return self._status(f"the job board cannot be read: {reason(failure)}", model)
        return self._status(None, model, board)

    def _each(self, look: Callable[[NodeLook], None]) -> None:
        """Call `look` for all nodes that have answered so far, side by side."""
        nodes = self._topology.nodes

        def guarded(node: NodeLook) -> None:
            try:
                look(node)
            except TROUBLE as error:
                node.problem = error

        _side_by_side(guarded, [node for node in nodes if node.problem is None])
        if not self._url.cluster and nodes[0].problem is not None:
            raise self._unreachable(nodes[0].address, nodes[0].problem)

    def _look_at_node(self, node: NodeLook) -> None:
        reads: list[Command] = [("INFO",), ("DBSIZE",), ("CONFIG", "GET", "save")]
        if node.address == self._topology.owner_of(self._keys.meta):
            reads.append(("HGETALL", self._keys.meta))
        answers = self._ask(node.address, *reads)
        node.info, node.size, node.save, node.meta = (*answers, None)[:4]
        if isinstance(node.info, Exception):  # not every user may ask for it
            node.refusal = node.info

    def _look_at_partitions(self, node: NodeLook, model: ModelStatus) -> None:
        for first in range(0, len(node.partitions), _PARTITIONS_AT_A_TIME):
            batch = node.partitions[first : first + _PARTITIONS_AT_A_TIME]
            reads = [self._partition_reads(p, Layout.of(model.bits, model.partitions)) for p in batch]
            answers = iter(self._ask(node.address, *chain.from_iterable(reads)))
            for p, partition_reads in zip(batch, reads, strict=True):
                node.looked_at += 1
                try:
                    incarnation, had_state, *sizes = checked(list(islice(answers, len(partition_reads))))
                except ServerError as error:
                    if error.code in _ELSEWHERE:
                        node.moving.append(p)
                    else:
                        node.refused.append(p)
                        node.refusal = error
                    continue
                if model.state == "ready" and (
                    incarnation != model.incarnation.encode()
                    or (had_state is not None and 0 in sizes[: len(sizes) // 3])  # a string is gone
                ):
                    node.lost.append(p)
                else:
                    node.bytes += sum(sizes)

    def _partition_reads(self, partition: int, layout: Layout) -> list[Command]:
        """The commands for the incarnation, the state, and the sizes of strings, last slots and logs."""
        keys, strings = self._keys, range(layout.per_partition)
        sizes = [name(partition, i) for name in (keys.state, keys.last_slots, keys.log) for i in strings]
        return [
            ("HGET", keys.facts(partition), INCARNATION),
            ("HGET", keys.facts(partition), STATE),
            *(("STRLEN", key) for key in sizes),
        ]

    def _board(self, address: Address) -> BoardStatus | None:
        key = self._keys.board
        (facts,) = checked(self._ask(address, ("HMGET", key.job, *JOB_FACTS)))
        if facts[0] is None:
            return None
        job = job_of(facts)
        reads = view_reads(key, job, shards=True)
        commands: list[Command] = [("GET", key.launch), *reads.values()]
        try:
            *_, answers = checked(self._ask(address, ("MULTI",), *commands, ("EXEC",)))
        except ServerError as error:
            if error.code != "OOM":
                raise
            answers = self._ask(address, *commands)  # a full server refuses transactions and most changes
        launch, *others = checked(answers)
        if launch != facts[0]:  # the job was dropped meanwhile, perhaps for another one
            return None
        return BoardStatus(job, view_of(dict(zip(reads, others, strict=True))))

    def _answer(self, command: Command) -> list[bytes]:
        """The answer of the node that holds the command's key."""
        key = command[1]
        assert isinstance(key, bytes)
        address = self._topology.owner_of(key)
        if address is None:
            raise StoreError(f"{self._url}: no node holds {key.decode()}.")
        try:
            (answer,) = checked(self._ask(address, command))
        except TROUBLE as error:
            raise StoreError(f"{self._url}: {key.decode()} cannot be read ({reason(error)}).") from error
        return list(answer)

    def _ask(self, address: Address, *commands: Command) -> list[Any]:
        """A node's answers, errors as ServerErrors; raises one of `TROUBLE` if the node does not answer."""
        with closing(open_link(self._url, address, self._timeout_s)) as link:
            answers = link.ask(*commands)
        checked([each for each in answers if isinstance(each, ServerError) and each.code in _NO_ANSWER])
        return answers

    def _find_nodes(self) -> Topology:
        """Find the nodes, by asking those of the URL and of the last look; some may have a problem."""
        if not self._url.cluster:
            return single_server(self._url.hosts[0])
        hosts = list(dict.fromkeys((*self._url.hosts, *(node.address for node in self._topology.nodes))))
        answers = dict(zip(hosts, _side_by_side(self._ask_for_nodes, hosts), strict=True))
        dead = {host: answer for host, answer in answers.items() if isinstance(answer, Exception)}
        views = [answer for answer in answers.values() if not isinstance(answer, Exception)]
        if not views:
            raise self._unreachable(*next(iter(dead.items())))
        _, topology = max(views, key=lambda view: (view[1].state == "ok", view[0]))
        for node in topology.nodes:
            node.problem = dead.get(node.address)
        return topology

    def _ask_for_nodes(self, host: Address) -> tuple[int, Topology] | Exception:
        """The epoch and the topology of the cluster, as one of its nodes reports them."""
        try:
            info, nodes, slots = checked(
                self._ask(host, ("CLUSTER", "INFO"), ("CLUSTER", "NODES"), ("CLUSTER", "SLOTS"))
            )
        except TROUBLE as error:
            return error
        facts = parse_info(info)
        topology = cluster_topology(host, facts["cluster_state"], nodes.decode(), slots)
        return facts["cluster_current_epoch"], topology

    def _unreachable(self, host: Address, error: Exception) -> StoreError:
        """The error if no node answers."""
        problem = reason(error)
        if is_login_refused(error):
            return StoreError(f"{self._url}: user or password was refused ({problem}).")
        if isinstance(error, ResponseError | ServerError):
            hint = "; it is in no cluster, write redis://" if "cluster support disabled" in problem else ""
            return StoreError(f"{self._url}: {host_port(host)} refused ({problem}){hint}.")
        return StoreError(
            f"{self._url}: cannot be reached ({problem}); is it running, and is the scheme right?"
        )

    def _model(self, meta: Any) -> ModelStatus | None:
        fields = pairs(meta)
        if b"layout" in fields:
            require_layout(self._keys, fields)
        facts = {name.decode(): value.decode() for name, value in fields.items()}
        incarnation = facts.pop("incarnation", None)
        if incarnation is None:
            return None
        ready, creating = (facts.pop(name, None) is not None for name in ("ready", "creating"))
        return ModelStatus(
            self._keys.model,
            int(facts.pop("bits", 0)),
            int(facts.pop("partitions", 0)),
            incarnation,
            "creating" if creating else "ready" if ready else "dropping",
            dict(sorted(facts.items())),
        )

    def _status(
        self, problem: str | None, model: ModelStatus | None = None, board: BoardStatus | None = None
    ) -> StoreStatus:
        nodes = self._topology.nodes
        owned = {p for node in nodes for p in node.partitions}
        unowned = [] if model is None else [p for p in range(model.partitions) if p not in owned]
        unreachable = [p for node in nodes for p in (*node.refused, *node.partitions[node.looked_at :])]
        return StoreStatus(
            url=str(self._url),
            model_name=self._keys.model,
            cluster_state=self._topology.state,
            nodes=tuple(node.status() for node in nodes),
            problem=problem,
            model=model,
            unreachable=tuple(sorted(unowned + unreachable)),
            moving=tuple(sorted(p for node in nodes for p in node.moving)),
            lost=tuple(sorted(p for node in nodes for p in node.lost)),
            board=board,
        )


def _side_by_side(task: Callable[[Any], T], each: list[Any]) -> list[T]:
    """Run the task for each in parallel; returns the results in order."""
    with ThreadPoolExecutor(max(len(each), 1), thread_name_prefix="observer") as pool:
        return list(pool.map(task, each))
