"""`Cluster`: simulated Redis nodes that answer RESP, and the network to them, on virtual time."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from greenlet import getcurrent

from benchmarks.simulation.commands import Commands
from benchmarks.simulation.virtual_time import Resource, clock, process_of_thread

_PORT = 6379
_HASH_SLOTS = 1 << 14
_ENTRY_BYTES = 6
_ELEMENTS = {b"HGETALL", b"ZRANGE", b"ZDIFF"}
"""Commands whose answers grow with the number of workers."""
_OF_STRINGS = {b"BITFIELD", b"BITFIELD_RO", b"APPEND"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What things take, in seconds, and how many slots and strings a simulated one stands for."""

    latency_s: float
    byte_s: float
    server_command_s: float
    server_element_s: float
    server_slot_s: float
    server_entry_s: float
    worker_command_s: float
    worker_element_s: float
    worker_slot_s: float
    pulled_each: float
    added_each: float
    logged_each: float
    strings_each: int

    def further_commands(self, name: bytes) -> int:
        """For how many more than itself a command stands: there is one for each string."""
        return self.strings_each - 1 if name in _OF_STRINGS else 0


class Process:
    """A process on its own machine: its interpreter, which one thread has at a time, and its link."""

    def __init__(self) -> None:
        self.interpreter, self.sending, self.receiving = Resource(), Resource(), Resource()


@dataclass(frozen=True, slots=True)
class Done:
    """A command that was carried out."""

    reply: bytes
    seconds: float
    size: float
    """Bytes of the reply, if all slots were there that the simulated ones stand for."""
    elements: int = 0


class Node:
    """A Redis, which carries out one request after the other."""

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self.processor, self.sending, self.receiving = Resource(), Resource(), Resource()
        self.commands = Commands()
        self.connections = self.most_connections = self.requests = self.longest_queue = 0
        self.conflicts: Counter[bytes] = Counter()
        """Transactions that did nothing, by the last key that they watched."""
        self._queue: deque[tuple[Socket, list[list[bytes]]]] = deque()
        self._is_busy = False

    def arrive(self, socket: Socket, request: list[list[bytes]]) -> None:
        """A request is here, and waits for its turn."""
        self.requests += 1
        self._queue.append((socket, request))
        self.longest_queue = max(self.longest_queue, len(self._queue))
        if not self._is_busy:
            self._is_busy = True
            self._serve()

    def _serve(self) -> None:
        socket, request = self._queue.popleft()
        done = [socket.carry_out(words) for words in request]
        clock.at(self.processor.until(sum(each.seconds for each in done)), self._finish, socket, done)

    def _finish(self, socket: Socket, done: list[Done]) -> None:
        size, elements = sum(each.size for each in done), sum(each.elements for each in done)
        sent = self.sending.until(size * self.terms.byte_s)
        reply = b"".join(each.reply for each in done)
        clock.at(sent + self.terms.latency_s, socket.arrive, reply, size, elements)
        if self._queue:
            self._serve()
        else:
            self._is_busy = False

    def carry_out(self, words: list[bytes]) -> Done:
        """Carry out a command; its seconds are those beyond what every command takes."""
        name, *arguments = words
        answer = getattr(self.commands, name.decode().lower())(*arguments)
        reply, terms = _encoded(answer), self.terms
        further_s = terms.further_commands(name) * terms.server_command_s
        if name in (b"BITFIELD", b"BITFIELD_RO"):
            each = terms.added_each if name == b"BITFIELD" else terms.pulled_each
            return Done(reply, further_s + len(answer) * each * terms.server_slot_s, len(reply) * each)
        if name == b"APPEND":
            entries = len(arguments[1]) / _ENTRY_BYTES * terms.logged_each
            return Done(reply, further_s + entries * terms.server_entry_s, len(reply))
        elements = len(answer) if name in _ELEMENTS else 0
        return Done(reply, elements * terms.server_element_s, len(reply), elements)


class Socket:
    """A connection of redis-py, and the socket that `ReplyReader` finds in it."""

    def __init__(self, node: Node, process: Process) -> None:
        self._sock = self
        self._node, self._process = node, process
        self._received, self._unread = bytearray(), 0
        self._reader: Any = None
        self._watched: dict[bytes, int] = {}
        self._queued: list[list[bytes]] | None = None
        node.connections += 1
        node.most_connections = max(node.most_connections, node.connections)

    def send_packed_command(self, parts: Sequence[bytes], check_health: bool = False) -> None:
        request, terms = _parsed(b"".join(parts)), self._node.terms
        seconds = len(request) * terms.worker_command_s
        size = float(sum(map(len, parts)))
        for name, *words in request:
            seconds += terms.further_commands(name) * terms.worker_command_s
            if name == b"BITFIELD":
                slots = len(words) // 4
                seconds += slots * terms.added_each * terms.worker_slot_s
                size += 50 * slots * (terms.added_each - 1)
            elif name == b"BITFIELD_RO":
                slots = len(words) // 3
                seconds += slots * terms.pulled_each * terms.worker_slot_s
                size += 32 * slots * (terms.pulled_each - 1)
            elif name == b"APPEND":
                size += len(words[1]) * (terms.logged_each - 1)
        self._process.interpreter.use(seconds)
        sent = self._process.sending.until(size * terms.byte_s)
        clock.at(sent + terms.latency_s, self._reach, request, size)

    def recv_into(self, into: memoryview) -> int:
        while not self._received:
            self._reader = getcurrent()
            clock.wait()
        if self._unread:
            elements, self._unread = self._unread, 0
            self._process.interpreter.use(elements * self._node.terms.worker_element_s)
        size = min(len(into), len(self._received))
        into[:size] = self._received[:size]
        del self._received[:size]
        return size

    def disconnect(self) -> None:
        self._node.connections -= 1

    def arrive(self, reply: bytes, size: float, elements: int) -> None:
        """A reply has reached the worker's machine."""
        received = self._process.receiving.until(size * self._node.terms.byte_s)
        clock.at(received, self._receive, reply, elements)

    def carry_out(self, words: list[bytes]) -> Done:
        """Carry out a command, or keep it for the end of its transaction."""
        name, node = words[0], self._node
        seconds = node.terms.server_command_s
        if name == b"EXEC":
            queued, self._queued = self._queued or [], None
            watched, self._watched = self._watched, {}
            versions = node.commands.versions
            if any(versions[key] != version for key, version in watched.items()):
                node.conflicts[list(watched)[-1]] += 1
                return Done(b"*-1\r\n", seconds, 5)
            done = [node.carry_out(each) for each in queued]
            reply = b"*%d\r\n" % len(done) + b"".join(each.reply for each in done)
            seconds += sum(each.seconds for each in done)
            return Done(reply, seconds, sum(each.size for each in done), sum(each.elements for each in done))
        if self._queued is not None:
            self._queued.append(words)
            return Done(b"+QUEUED\r\n", seconds, 9)
        if name == b"MULTI":
            self._queued = []
        elif name == b"WATCH":
            self._watched.update((key, node.commands.versions[key]) for key in words[1:])
        elif name == b"UNWATCH":
            self._watched = {}
        else:
            done_ = node.carry_out(words)
            return Done(done_.reply, seconds + done_.seconds, done_.size, done_.elements)
        return Done(b"+OK\r\n", seconds, 5)

    def _reach(self, request: list[list[bytes]], size: float) -> None:
        clock.at(self._node.receiving.until(size * self._node.terms.byte_s), self._node.arrive, self, request)

    def _receive(self, reply: bytes, elements: int) -> None:
        self._received += reply
        self._unread += elements
        if self._reader is not None:
            reader, self._reader = self._reader, None
            reader.switch()


def _parsed(data: bytes) -> list[list[bytes]]:
    """The words of commands."""
    commands, at = [], 0
    while at < len(data):
        end = data.index(b"\r\n", at)
        count, at, words = int(data[at + 1 : end]), end + 2, []
        for _ in range(count):
            end = data.index(b"\r\n", at)
            after = end + 2 + int(data[at + 1 : end])
            words.append(data[end + 2 : after])
            at = after + 2
        commands.append(words)
    return commands


def _encoded(answer: Any) -> bytes:
    """A reply, as RESP; a text is a status."""
    if isinstance(answer, bytes):
        return b"$%d\r\n%b\r\n" % (len(answer), answer)
    if isinstance(answer, int):
        return b":%d\r\n" % answer
    if isinstance(answer, list):
        return b"*%d\r\n" % len(answer) + b"".join(map(_encoded, answer))
    if answer is None:
        return b"$-1\r\n"
    return b"+%b\r\n" % answer.encode()


class Cluster:
    """Nodes `node-0`, `node-1`, …, in the place of redis-py's `NodesManager`."""

    def __init__(self, nodes: int, terms: Terms) -> None:
        self.terms = terms
        self.nodes = [Node(terms) for _ in range(nodes)]
        self.slots_cache = range(_HASH_SLOTS)

    def install(self) -> None:
        """Have `ctr` connect to these nodes."""
        from ctr.ps import layout
        from ctr.ps.client import presence
        from ctr.ps.wire import nodes, replies

        patched: Any = nodes
        patched.open_link, patched.NodesManager = self._open_link, lambda *_, **__: self
        # A few slots stand for many, so they are no ranges; and a thousand workers share this memory.
        layout.FAR_DENSITY, presence._MOST_BITS, replies._CHUNK = 0, 16, 1 << 12  # type: ignore[misc]

    def _open_link(self, url: Any, address: tuple[str, int], timeout_s: float) -> Any:
        from ctr.ps.wire.link import Link
        from ctr.ps.wire.replies import ReplyReader

        clock.sleep(2 * self.terms.latency_s)
        node = self.nodes[int(address[0].partition("-")[2])]
        socket: Any = Socket(node, process_of_thread())
        return Link(address, socket, ReplyReader(socket))

    # What `Nodes` asks for.

    def get_nodes_by_server_type(self, kind: str) -> list[Any]:
        return [self._node(i) for i in range(len(self.nodes))]

    def get_node_from_slot(self, slot: int) -> Any:
        return self._node(slot * len(self.nodes) // _HASH_SLOTS)

    def get_node(self, host: str, port: int) -> Any:
        return self._node(int(host.partition("-")[2]))

    def initialize(self) -> None: ...

    def close(self) -> None: ...

    @staticmethod
    def _node(number: int) -> Any:
        return SimpleNamespace(host=f"node-{number}", port=_PORT)
