"""What the tests of `JobBoard` share."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from threading import Barrier, Thread
from typing import Any

from ctr.ps.board import BoardView
from ctr.ps.board.job_board import JobBoard
from ctr.ps.wire.url import parse_redis_url

Boards = Callable[..., JobBoard]

LONG_S = 300.0  # a lease that no test outlasts
SHORT_S = 0.2  # one that is over soon


@contextmanager
def opened_boards() -> Iterator[Boards]:
    """Opens the board at a URL, and closes it at the end. By default leases do not run out."""
    with ExitStack() as opened:

        def open_board(url: str, **options: Any) -> JobBoard:
            board = JobBoard(parse_redis_url(url), **{"lease_s": LONG_S, **options})
            return opened.enter_context(closing(board))

        yield open_board


def least_clock(view: BoardView) -> int | None:
    """Of the workers with data shards in work; None if there are none."""
    return min((worker.clock for worker in view.workers if worker.clock is not None), default=None)


def until(condition: Callable[[], Any], timeout_s: float = 30.0, pause_s: float = 0.02) -> Any:
    """What `condition` returns once that is not false."""
    deadline = time.monotonic() + timeout_s
    while not (result := condition()):
        assert time.monotonic() < deadline
        time.sleep(pause_s)
    return result


def at_once(*tasks: Callable[[], None]) -> None:
    """Runs all side by side; raises what one of them raised."""
    start, errors = Barrier(len(tasks)), []

    def run(task: Callable[[], None]) -> None:
        start.wait()
        try:
            task()
        except Exception as error:  # noqa: BLE001
            errors.append(error)

    threads = [Thread(target=run, args=(task,)) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
