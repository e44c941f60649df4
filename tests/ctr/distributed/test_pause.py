"""A pause comes about also when a failover loses it, or loses what a worker has answered."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from threading import Event, Thread
from time import sleep

import pytest

from ctr.distributed.pause import JobPause
from ctr.ps import JobBoard, parse_redis_url
from ctr.workers.data_plan import DataPlan
from tests.ps.redis_servers import needs_redis

pytestmark = needs_redis

_names = count()
Answer = Callable[[JobBoard, str, int], None]


def say_nothing(board: JobBoard, worker: str, pause: int) -> None:
    """What was said is lost."""


def forget(board: JobBoard, worker: str, pause: int) -> None:
    """The pause is lost."""
    board.pause(None)


def answer(board: JobBoard, worker: str, pause: int) -> None:
    board.report(f"paused:{worker}", b"%d" % pause)


@pytest.fixture
def url(redis_url: str) -> str:
    return f"{redis_url}?model=pause-{next(_names)}"


@pytest.fixture
def over() -> Iterator[Event]:
    event = Event()
    yield event
    event.set()


def with_clocks(url: str, first: Answer, over: Event) -> None:
    """A worker in the middle of a data shard, which meets the first pause with `first`."""
    board = JobBoard(parse_redis_url(url))
    worker = board.leases.register("here")
    assert board.queue.claim(worker) is not None
    met: list[int | None] = [None]
    while not over.is_set():
        pause = board.queue.gate(worker).pause
        if pause is not None and pause != met[-1]:
            (first if len(met) == 1 else answer)(board, worker, pause)
            met.append(pause)
        sleep(0.002)
    board.close()


def in_rounds(url: str, first: Answer, over: Event) -> None:
    """A worker with the only rank."""
    board = JobBoard(parse_redis_url(url))
    worker = board.leases.register("here")
    while not board.ranks.claim(worker):
        sleep(0.002)
    met: list[int | None] = [None]
    while not over.is_set():
        gate = board.ranks.gate(worker)
        round_ = gate.pushed[0] + 1
        if gate.pause is None or round_ < gate.pause:
            board.ranks.announce_prepared(0, round_)
            board.ranks.announce_pushed(0, round_)
            sleep(0.02)
        elif gate.pause != met[-1]:
            (first if len(met) == 1 else answer)(board, worker, gate.pause)
            met.append(gate.pause)
        sleep(0.002)
    board.close()


def test_a_limit_stands_between_holds_and_after_a_failover(url: str, over: Event) -> None:
    board = JobBoard(parse_redis_url(url))
    board.create("job", b"", shards=10_000, ranks=1)
    pause = JobPause(board, DataPlan(10_000, 1, 1), 1)

    def comes_to(rounds: int) -> bool:
        while not pause.have_reached(board.look(), rounds):
            sleep(0.002)
        return board.look().ranks[0].pushed + 1 == rounds

    pause.limit(5)
    thread = Thread(target=in_rounds, args=(url, answer, over))
    thread.start()
    try:
        assert comes_to(5)
        assert pause.close(lambda: True)
        pause.limit(8)
        assert comes_to(5)  # it is still closed
        pause.open()
        assert comes_to(8)
        board.pause(5)  # a failover brings what was before
        pause.limit(9)
        board.pause(5)
        pause.keep(board.look())
        assert comes_to(9)
    finally:
        over.set()
        thread.join()
        board.close()


@pytest.mark.parametrize("ranks", [0, 1])
def test_a_pause_that_a_failover_brings_back_is_lifted_again(url: str, ranks: int) -> None:
    board = JobBoard(parse_redis_url(url))
    board.create("job", b"", shards=10_000, ranks=ranks)
    pause = JobPause(board, DataPlan(10_000, 1, 1), ranks)
    pause.close(lambda: False)
    at = board.look().pause
    pause.open()
    board.pause(at)
    pause.keep(board.look())
    assert board.look().pause is None
    board.close()


@pytest.mark.parametrize("first", [answer, say_nothing, forget])
@pytest.mark.parametrize("worker", [with_clocks, in_rounds])
def test_it_comes_about(url: str, over: Event, worker: Callable, first: Answer) -> None:
    board = JobBoard(parse_redis_url(url))
    ranks = 1 if worker is in_rounds else 0
    board.create("job", b"", shards=10_000, ranks=ranks)
    pause = JobPause(board, DataPlan(10_000, 1, 1, ranks=max(ranks, 1)), ranks)
    thread = Thread(target=worker, args=(url, first, over))
    thread.start()
    while not any(each.clock is not None or ranks for each in board.look().workers):
        sleep(0.01)
    try:
        assert pause.close(lambda: True)
        at = board.look().pause
        assert at is not None
        if ranks:
            assert board.look().ranks[0].pushed + 1 == at
        pause.open()
        assert pause.close(lambda: True)  # and again
    finally:
        over.set()
        thread.join()
        board.close()
