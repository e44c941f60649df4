"""A switch between hosts: frames wait as they would in a real network, are lost, or do not pass at all.

`python -m tests.hosts.switch PARENT NAMESPACE...` is one, for hosts with these namespaces.
"""

from __future__ import annotations

import heapq
import json
import os
import random
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from time import monotonic

HEADER = 10
"""Bytes before each frame (virtio_net_hdr): with them, one frame holds up to 64 KiB of a TCP stream, which
the system cuts into packets; frame by frame, Python would not come to 1 Gbit/s."""
MOST_BYTES = HEADER + 14 + (1 << 16)
_QUEUE_BYTES = 1_500_000  # as many packets as netem's queue holds: 1,000
_AT_ONCE = 32  # frames of one host, before others get their turn
_DESTINATION = slice(HEADER, HEADER + 6)
_PACKET_VNET_HDR, _PACKET_IGNORE_OUTGOING, _SOL_PACKET, _ETH_P_ALL = 15, 23, 263, 3
_BUFFER_BYTES = 1 << 26
_END_S = 5.0


@dataclass(frozen=True, slots=True)
class Line:
    """The line between a host and the switch."""

    delay_s: float = 0.0
    """Of what the host sends."""
    bit_s: float = 1e9
    """Bandwidth, in each direction."""
    loss: float = 0.0
    """The share of the frames it sends that is lost."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """What all lines are like."""

    lines: Mapping[int, Line] = field(default_factory=dict)
    """By host; the others have no delay and no loss."""
    cuts: frozenset[tuple[int, int]] = frozenset()
    """Pairs of hosts: nothing that the first sends reaches the second."""

    def to_json(self) -> str:
        lines = {host: [line.delay_s, line.bit_s, line.loss] for host, line in self.lines.items()}
        return json.dumps({"lines": lines, "cuts": sorted(self.cuts)})

    @classmethod
    def from_json(cls, text: str) -> Conditions:
        said = json.loads(text)
        lines = {int(host): Line(*line) for host, line in said["lines"].items()}
        return cls(lines, frozenset((source, target) for source, target in said["cuts"]))


class Frames:
    """The frames under way between `hosts` hosts, which have the numbers from 0. Times are in seconds."""

    def __init__(self, hosts: int, chances: random.Random) -> None:
        self.conditions = Conditions()
        self.dropped = 0
        """Frames lost by chance or in full queues; those of cuts are not counted."""
        self._chances = chances
        self._sent_s, self._received_s = [-inf] * hosts, [-inf] * hosts  # when lines are free again
        self._on_way: list[tuple[float, int, bool, int, bytes]] = []
        self._number = 0

    def send(self, source: int, target: int, frame: bytes, now_s: float) -> None:
        """A host sends a frame to another."""
        conditions = self.conditions
        if (source, target) in conditions.cuts:
            return
        line = conditions.lines.get(source, Line())
        free_s = max(now_s, self._sent_s[source])
        is_full = (free_s - now_s) * line.bit_s > 8 * _QUEUE_BYTES
        if is_full or (line.loss and self._chances.random() < line.loss):
            self.dropped += 1
            return
        sent_s = self._sent_s[source] = free_s + 8 * len(frame) / line.bit_s
        self._add(sent_s + line.delay_s, False, target, frame)

    def arrived(self, now_s: float) -> Iterable[tuple[int, bytes]]:
        """The frames that have arrived by now, each with its host, in order."""
        on_way = self._on_way
        while on_way and on_way[0][0] <= now_s:
            at_s, _, is_through, target, frame = heapq.heappop(on_way)
            if not is_through:
                # The target's line carries a frame while the source's does, unless it has others to carry.
                line = self.conditions.lines.get(target, Line())
                took_s = 8 * len(frame) / line.bit_s
                received_s = max(at_s - took_s, self._received_s[target]) + took_s
                if (received_s - at_s) * line.bit_s > 8 * _QUEUE_BYTES:
                    self.dropped += 1
                    continue
                self._received_s[target] = received_s
                if received_s > now_s:
                    self._add(received_s, True, target, frame)
                    continue
            yield target, frame

    def next_s(self) -> float:
        """When `arrived` has something to do again."""
        return self._on_way[0][0] if self._on_way else inf

    def _add(self, at_s: float, is_through: bool, target: int, frame: bytes) -> None:
        self._number += 1
        heapq.heappush(self._on_way, (at_s, self._number, is_through, target, frame))


def run_switch(
    sockets: Sequence[socket.socket], frames: Frames, control: int, obey: Callable[[bytes], object]
) -> None:
    """Pass frames on between sockets, one for each host, until the file `control` ends.

    Lines of `control` go to `obey`. The last byte of a frame's destination is the host's number; frames whose
    destination is an Ethernet group go to all.
    """
    for each in sockets:
        each.setblocking(False)
    hosts, text = {each: number for number, each in enumerate(sockets)}, b""
    while True:
        wait_s = max(frames.next_s() - monotonic(), 0.0)
        readable, _, _ = select.select([control, *sockets], [], [], None if wait_s == inf else wait_s)
        for each in readable:
            if each == control:
                piece = os.read(control, 1 << 16)
                if not piece:
                    return
                *lines, text = (text + piece).split(b"\n")
                for line in lines:
                    obey(line)
            else:
                _receive(each, hosts[each], len(sockets), frames)
        for target, frame in frames.arrived(monotonic()):
            with suppress(OSError):  # its buffer is full, or the host is gone
                sockets[target].send(frame)


def _receive(source: socket.socket, number: int, hosts: int, frames: Frames) -> None:
    for _ in range(_AT_ONCE):
        try:
            frame = source.recv(MOST_BYTES)
        except OSError:
            return
        destination = frame[_DESTINATION]
        if destination[0] & 1:
            targets: Iterable[int] = range(hosts)
        else:
            targets = (destination[-1],)
        now_s = monotonic()
        for target in targets:
            if target != number and target < hosts:
                frames.send(number, target, frame, now_s)


def mac(number: int) -> str:
    """The Ethernet address of a host."""
    return f"02:00:00:00:00:{number:02x}"


def port(number: int) -> str:
    """The switch's end of a host's line."""
    return f"port{number}"


def _open_port(number: int) -> socket.socket:
    opened = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ALL))
    opened.setsockopt(_SOL_PACKET, _PACKET_VNET_HDR, 1)
    opened.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
    opened.setsockopt(socket.SOL_SOCKET, getattr(socket, "SO_RCVBUFFORCE", 33), _BUFFER_BYTES)
    opened.setsockopt(socket.SOL_SOCKET, getattr(socket, "SO_SNDBUFFORCE", 32), _BUFFER_BYTES)
    opened.bind((port(number), 0))
    return opened


def remove(namespaces: Sequence[str], spared: Iterable[int]) -> None:
    """Kill what runs in namespaces, but for some processes, and delete these."""
    for name in namespaces:
        shown = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=False)
        for pid in {int(word) for word in shown.stdout.split()} - set(spared):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    for name in namespaces:
        subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)


def main(words: Sequence[str]) -> None:
    """Run until the parent closes standard input or ends, however that happens; then nothing is left."""
    parent, *namespaces = words
    # The last namespace is the switch's own.
    hosts = len(namespaces) - 1
    frames = Frames(hosts, random.Random(1))

    def obey(line: bytes) -> None:
        frames.conditions = Conditions.from_json(line.decode())
        print(frames.dropped, flush=True)

    try:
        run_switch([_open_port(number) for number in range(hosts)], frames, sys.stdin.fileno(), obey)
    finally:
        remove(namespaces, {int(parent), os.getpid()})


if __name__ == "__main__":
    main(sys.argv[1:])
