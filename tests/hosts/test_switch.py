"""The switch between hosts, on virtual time and with pairs of sockets: delays, bandwidth, losses, cuts."""

from __future__ import annotations

import os
import random
import socket
import threading
import time
from shutil import which

import pytest

from tests.hosts.network import every, why_not
from tests.hosts.switch import HEADER, Conditions, Frames, Line, mac, run_switch

FRAME = bytes(1_250)  # 10,000 bits


def frames(line: Line, cuts: frozenset[tuple[int, int]] = frozenset()) -> Frames:
    made = Frames(3, random.Random(1))
    made.conditions = Conditions(every(range(3), line), cuts)
    return made


def times_of(made: Frames, until_s: float) -> list[tuple[float, int]]:
    """When frames arrive, and where."""
    seen = []
    while (at_s := made.next_s()) <= until_s:
        seen += [(round(at_s, 9), target) for target, _ in made.arrived(at_s)]
    return seen


def test_a_frame_takes_its_delay_and_its_bits() -> None:
    made = frames(Line(delay_s=0.01, bit_s=1e6))
    for _ in range(3):
        made.send(0, 1, FRAME, 0.0)
    assert times_of(made, 1.0) == [(0.02, 1), (0.03, 1), (0.04, 1)]
    assert made.next_s() == float("inf")


def test_two_that_send_to_one_share_its_line() -> None:
    made = frames(Line(bit_s=1e6))
    made.send(0, 2, FRAME, 0.0)
    made.send(1, 2, FRAME, 0.0)
    assert times_of(made, 1.0) == [(0.01, 2), (0.02, 2)]


def test_a_full_queue_drops() -> None:
    made = frames(Line(bit_s=1e6))
    for _ in range(2_000):
        made.send(0, 1, FRAME, 0.0)
    assert 700 < made.dropped < 900, "1.5 MB are kept"


def test_losses_and_cuts() -> None:
    made = frames(Line(loss=0.1), cuts=frozenset({(0, 1)}))
    for _ in range(1_000):
        made.send(0, 1, FRAME, 0.0)
        made.send(1, 0, FRAME, 0.0)
    arrived = [target for _, target in times_of(made, 10.0)]
    assert set(arrived) == {0}, "one way only"
    assert 860 < len(arrived) < 940
    assert made.dropped == 1_000 - len(arrived)


def test_conditions_travel_as_text() -> None:
    conditions = Conditions({1: Line(0.02, 1e7, 0.5)}, frozenset({(0, 1), (2, 1)}))
    assert Conditions.from_json(conditions.to_json()) == conditions


def test_frames_between_sockets() -> None:
    ends = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(3)]
    made, (reading, writing) = frames(Line(delay_s=0.05)), os.pipe()
    said: list[bytes] = []
    switch = threading.Thread(
        target=run_switch, args=([mine for mine, _ in ends], made, reading, said.append)
    )
    switch.start()
    try:
        began = time.monotonic()
        to_2 = bytes(HEADER) + bytes.fromhex(mac(2).replace(":", "")) + b"hello"
        ends[0][1].send(to_2)
        assert ends[2][1].recv(100) == to_2
        assert 0.05 <= time.monotonic() - began < 1.0
        to_all = bytes(HEADER) + b"\xff" * 6 + b"hello"
        ends[0][1].send(to_all)
        assert [end.recv(100) for _, end in ends[1:]] == [to_all, to_all]
        os.write(writing, b"one\ntwo")
        os.write(writing, b"!\n")
    finally:
        os.close(writing)
        switch.join(10)
        os.close(reading)
        for pair in ends:
            for end in pair:
                end.close()
    assert said == [b"one", b"two!"]


@pytest.mark.skipif(
    os.geteuid() != 0 or not all(map(which, ("ip", "nsenter"))), reason="only root can give up the right"
)
def test_without_the_right_it_says_so() -> None:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.seteuid(65534)
        os.write(writing, str(why_not()).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as said:
        assert said.read() == "network namespaces without the right: run it as root"
    os.waitpid(pid, 0)
