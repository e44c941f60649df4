"""`ctr worker`."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread, Timer
from typing import TYPE_CHECKING, Annotated

import typer

from ctr.cli.reporting import STOPPED, stopping

if TYPE_CHECKING:
    from ctr.settings import Lease, RedisStore, Setting

_LONGEST_END_S = 5.0
_LONGEST_LEAVING_S = 60.0


def worker(
    store: Annotated[
        RedisStore,
        Setting("Redis URL of the model, the same as in the job's `ctr train`.", metavar="URL"),
    ],
    job: Annotated[str | None, typer.Option(metavar="ID", help="Join this job only.")] = None,
    lease: Annotated[
        Lease,
        Setting("Seconds without a heartbeat after which this worker counts as dead. Default: the job's."),
    ] = None,
    with_parent: Annotated[bool, typer.Option("--with-parent", hidden=True)] = False,
) -> None:
    """Join a training job of `ctr train --store` on another machine; workers may join and leave at any time.

    The input must have the same path as on the machine of `ctr train`. Ctrl-C leaves after the current chunk;
    the other workers continue.

    Example: `ctr worker --store redis://10.0.0.7:6379/0?model=ads`
    """
    from ctr.interrupts import stop_requests
    from ctr.ps import parse_redis_url
    from ctr.workers import take_part

    url = parse_redis_url(store)
    if with_parent:
        take_part(url, job, lease_s=lease, stop=_parents_end())
        return
    with stopping("The other workers continue."), stop_requests() as stop, _leaving_in_time(stop):
        report = take_part(url, job, lease_s=lease, stop=stop)
    typer.echo(f"trained {report.examples:,} examples")
    if stop.is_set():
        raise typer.Exit(STOPPED)


@contextmanager
def _leaving_in_time(stop: Event) -> Iterator[None]:
    """End the process if it has not left a minute after `stop` is set, for example because its disk hangs."""
    has_left = Event()

    def watch() -> None:
        stop.wait()
        if not has_left.wait(_LONGEST_LEAVING_S):
            os._exit(STOPPED)

    Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        has_left.set()


def _parents_end() -> Event:
    """An event that is set when the parent process closes this process's standard input, or dies.

    Signals to all processes of a job are ignored here: the parent handles them, and still needs its workers.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    stop = Event()
    Thread(target=_wait_for_parent, args=(stop,), daemon=True).start()
    return stop


def _wait_for_parent(stop: Event) -> None:
    # Not through `sys.stdin`, whose lock no thread may hold when Python ends.
    while os.read(0, 1):
        pass
    stop.set()
    # If the store died with the parent, there is nothing to wait for.
    timer = Timer(_LONGEST_END_S, os._exit, (1,))
    timer.daemon = True
    timer.start()
