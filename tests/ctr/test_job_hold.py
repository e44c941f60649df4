"""A hold comes about also when a failover loses it, or loses what a worker has answered."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from threading import Event, Thread
from time import sleep

import pytest

from ctr.distributed.pause import JobHold
from ctr.workers.data_plan import DataPlan
from ps import JobBoard, parse_redis_url
from tests.ps.servers import needs_redis

pytestmark = needs_redis

_names = count()
Answer = Callable[[JobBoard, str, int], None]


def say_nothing(board: JobBoard, worker: str, hold: int) -> None:
    """What was said is lost."""


def forget(board: JobBoard, worker: str, hold: int) -> None:
    """The hold is lost."""
    board.hold(None)


def answer(board: JobBoard, worker: str, hold: int) -> None:
    board.report(f"parked:{worker}", b"%d" % hold)


@pytest.fixture
def url(redis_url: str) -> str:
    return f"{redis_url}?model=hold-{next(_names)}"


@pytest.fixture
def over() -> Iterator[Event]:
    event = Event()
    yield event
    event.set()


def clocked(url: str, first: Answer, over: Event) -> None:
    """A worker in the middle of a data shard, which meets the first hold with `first`."""
    board = JobBoard(parse_redis_url(url))
    worker = board.enter("here")
    assert board.claim(worker) is not None
    met: list[int | None] = [None]
    while not over.is_set():
        hold = board.clock_gate(worker).hold
        if hold is not None and hold != met[-1]:
            (first if len(met) == 1 else answer)(board, worker, hold)
            met.append(hold)
        sleep(0.002)
    board.close()


def in_rounds(url: str, first: Answer, over: Event) -> None:
    """A worker with the only lane."""
    board = JobBoard(parse_redis_url(url))
    worker = board.enter("here")
    while not board.claim_lanes(worker):
        sleep(0.002)
    met: list[int | None] = [None]
    while not over.is_set():
        gate = board.lane_gate(worker)
        round_ = gate.pushed[0] + 1
        if gate.hold is None or round_ < gate.hold:
            board.announce_staged(0, round_)
            board.announce_pushed(0, round_)
            sleep(0.02)
        elif gate.hold != met[-1]:
            (first if len(met) == 1 else answer)(board, worker, gate.hold)
            met.append(gate.hold)
        sleep(0.002)
    board.close()


def test_a_limit_stands_between_holds_and_after_a_failover(url: str, over: Event) -> None:
    board = JobBoard(parse_redis_url(url))
    board.create("job", b"", shards=10_000, lanes=1)
    hold = JobHold(board, DataPlan(10_000, 1, 1), 1)

    def comes_to(rounds: int) -> bool:
        while not hold.have_come(board.look(), rounds):
            sleep(0.002)
        return board.look().lanes[0].pushed + 1 == rounds

    hold.limit(5)
    thread = Thread(target=in_rounds, args=(url, answer, over))
    thread.start()
    try:
        assert comes_to(5)
        assert hold.close(lambda: True)
        hold.limit(8)
        assert comes_to(5)  # it is still closed
        hold.open()
        assert comes_to(8)
        board.hold(5)  # a failover brings what was before
        hold.limit(9)
        board.hold(5)
        hold.keep(board.look())
        assert comes_to(9)
    finally:
        over.set()
        thread.join()
        board.close()


@pytest.mark.parametrize("first", [answer, say_nothing, forget])
@pytest.mark.parametrize("worker", [clocked, in_rounds])
def test_it_comes_about(url: str, over: Event, worker: Callable, first: Answer) -> None:
    board = JobBoard(parse_redis_url(url))
    lanes = 1 if worker is in_rounds else 0
    board.create("job", b"", shards=10_000, lanes=lanes)
    hold = JobHold(board, DataPlan(10_000, 1, 1, lanes=max(lanes, 1)), lanes)
    thread = Thread(target=worker, args=(url, first, over))
    thread.start()
    while not any(each.clock is not None or lanes for each in board.look().workers):
        sleep(0.01)
    try:
        assert hold.close(lambda: True)
        at = board.look().hold
        assert at is not None
        if lanes:
            assert board.look().lanes[0].pushed + 1 == at
        hold.open()
        assert hold.close(lambda: True)  # and again
    finally:
        over.set()
        thread.join()
        board.close()
