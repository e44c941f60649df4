"""`main`: the entry point of the `ctr` command, which can be interrupted at once, and ends at once."""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys
import threading
from contextlib import suppress
from types import FrameType

from ctr.interrupts import handle_signals


def main() -> None:
    """Run the command line and end the process: exit 0 when all went well, 2 on wrong use, 1 when it failed,
    130 when stopped."""
    _look_for_cycles_later()
    try:
        start()
    except SystemExit as end:
        if isinstance(end.code, int | None) and sys.getprofile() is None:  # neither has something to say
            _end(end.code or 0)
        raise


def start() -> None:
    """Run the command line in a process that may go on: SystemExit says how it went."""
    _leave_on_signals()
    # No kernel of ours uses BLAS, whose threads spin from NumPy's import on, for a sixth of that time.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # Pydantic would look for plugins of it in all installed packages: 20 ms.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    if len(sys.argv) == 3 and sys.argv[1] == "workers" and sys.argv[2].isdigit():
        if not _forked(int(sys.argv[2])):
            return
        _leave_on_signals()
    _run()


def _run() -> None:
    from ctr.cli.commands import run

    try:
        run()
    finally:
        # The work is done: only Python is left to end.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _leave_on_signals() -> None:
    # A cluster stops a job with SIGTERM where a person presses Ctrl-C, and a closed terminal with SIGHUP: all
    # end it the same way. While the commands are imported, an exception would show somebody else's traceback.
    handle_signals(_leave)


def _leave(_number: int, _frame: FrameType | None) -> None:
    os.write(2, b"\nStopped. Nothing was begun.\n")
    os._exit(130)


def _look_for_cycles_later() -> None:
    """Look for cycles of objects once more of them are there than a short job ever has, and never in these.

    Nearly all of them belong to modules, and stay; to look through them takes 5% off a short job's speed.
    """

    def once(_phase: str, _about: dict[str, int]) -> None:
        gc.callbacks.remove(once)
        gc.freeze()
        gc.set_threshold(10_000)

    gc.callbacks.append(once)
    gc.set_threshold(400_000)


def _end(code: int) -> None:
    """End the process with this code, as `multiprocessing` ends its own.

    Python would take everything apart: 30 ms, or 100 in a fork, which copies what it shares. It is left to do
    so where output cannot be written, as on a full disk, and says so.
    """
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads that are no daemons
    atexit._run_exitfuncs()
    with suppress(OSError):
        for stream in filter(None, (sys.stdout, sys.stderr)):  # None if closed by who called
            with suppress(BrokenPipeError):  # nobody reads it any more
                stream.flush()
        os._exit(code)


def _forked(line: int) -> bool:
    """Be a fork server (see `ctr.engines.forking`), asked over `line`, the number of an open socket.

    Returns True in each process that it forks, which has a command line of its own; False at its end.
    """
    from socket import socket

    from ctr.cli.commands import command_line
    from ctr.engines import serve
    from ctr.workers import warm_up_worker

    command_line("worker")  # which forks need, as they do what a worker does
    warm_up_worker()
    words = serve(socket(fileno=line))
    if words is None:
        return False
    sys.argv[1:] = words
    return True
