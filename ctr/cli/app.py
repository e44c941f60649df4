"""`main`: the entry point of the `ctr` command, which handles signals early and exits fast."""

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
    """Run the command line and end the process. Exit codes: 0, 1 failure, 2 wrong usage, 130 stopped."""
    _collect_garbage_later()
    try:
        start()
    except SystemExit as end:
        if (
            isinstance(end.code, int | None) and sys.getprofile() is None
        ):  # no message to print, no profile to write
            _end(end.code or 0)
        raise


def start() -> None:
    """Run the command line in a process that may continue; SystemExit has the exit code."""
    _exit_on_signals()
    # No kernel uses BLAS, and starting its threads takes a sixth of the import of NumPy.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # Pydantic would search all installed packages for plugins: 20 ms.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    if len(sys.argv) == 3 and sys.argv[1] == "workers" and sys.argv[2].isdigit():
        if not _forked(int(sys.argv[2])):
            return
        _exit_on_signals()
    _run()


def _run() -> None:
    from ctr.cli.commands import run

    try:
        run()
    finally:
        # The work is done, only Python has to end.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _exit_on_signals() -> None:
    # Ctrl-C, SIGTERM (from a cluster) and SIGHUP (from a closed terminal) end a command the same way. While
    # commands are imported, an exception would print a traceback of the import.
    handle_signals(_exit)


def _exit(_number: int, _frame: FrameType | None) -> None:
    os.write(2, b"\nStopped. Nothing was begun.\n")
    os._exit(130)


def _collect_garbage_later() -> None:
    """Start garbage collection only above the number of objects of a short job, and exclude these for good.

    Nearly all of them belong to modules, and stay; scanning them costs 5% of a short job's speed.
    """

    def once(_phase: str, _about: dict[str, int]) -> None:
        gc.callbacks.remove(once)
        gc.freeze()
        gc.set_threshold(10_000)

    gc.callbacks.append(once)
    gc.set_threshold(400_000)


def _end(code: int) -> None:
    """End the process with this code, as `multiprocessing` does.

    Python's normal exit frees every object: 30 ms, or 100 ms in a fork, which copies shared memory. It still
    runs if output cannot be written, as on a full disk, and then reports that.
    """
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads that are no daemons
    atexit._run_exitfuncs()
    with suppress(OSError):
        for stream in filter(None, (sys.stdout, sys.stderr)):  # None if the caller has closed them
            with suppress(BrokenPipeError):  # nobody reads it
                stream.flush()
        os._exit(code)


def _forked(line: int) -> bool:
    """Run a fork server (see `ctr.engines.forking`); `line`: the descriptor of its socket.

    Returns True in each forked process, which has a command line of its own; False when the server ends.
    """
    from socket import socket

    from ctr.cli.commands import command_line
    from ctr.engines import serve
    from ctr.workers import warm_up_worker

    command_line("worker")  # loaded here, as forks need it
    warm_up_worker()
    words = serve(socket(fileno=line))
    if words is None:
        return False
    sys.argv[1:] = words
    return True
