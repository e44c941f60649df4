"""`Watchdog`: ends servers, and removes their folder, when this process ends in whatever way it does."""

from __future__ import annotations

import os
import subprocess
import weakref
from pathlib import Path

from ctr.errors import StoreError

# `read` returns when the last writing end of the pipe is closed, which the kernel does also for a process
# that was killed with -9. The signals that end a job are not for the watchdog; KILL can be ignored by none.
SCRIPT = """
trap '' HUP INT TERM
read -r nothing
rm -rf -- "$1"
kill -KILL 0
"""

_watching: weakref.WeakSet[Watchdog] = weakref.WeakSet()


class Watchdog:
    """A process group, named by `group`, that dies with this process; `folder` is removed with it.

    A shell leads the group and waits on a pipe whose other end only this process holds. Servers that join the
    group (`subprocess.Popen(..., process_group=watchdog.group)`) therefore get no Ctrl-C of the terminal: the
    job can still use them while it stops. They join before they exec, so there is no moment at which one
    could be left behind, and no list of process ids that could grow stale.

    PR_SET_PDEATHSIG would need no shell. But Linux alone has it, it fires when the starting *thread* ends,
    and it is set in a `preexec_fn`, which may deadlock in a process with threads.

    Raises StoreError when no shell can be started.
    """

    def __init__(self, folder: Path) -> None:
        try:
            self._shell = subprocess.Popen(
                ["/bin/sh", "-c", SCRIPT, "ctr-watchdog", str(folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                process_group=0,
            )
        except OSError as error:
            raise StoreError(f"cannot start /bin/sh to watch over the redis-servers: {error}") from error
        self.group = self._shell.pid
        _watching.add(self)

    def close(self) -> None:
        """Kills every process of the group, removes the folder and waits for both."""
        _watching.discard(self)
        self.let_go()
        self._shell.wait()

    def let_go(self) -> None:
        """Closes this process's end of the pipe; the group lives on while another process holds one."""
        if self._shell.stdin is not None:
            self._shell.stdin.close()


def _let_go_in_child() -> None:
    for watchdog in list(_watching):
        watchdog.let_go()


# A forked worker inherits the pipe: while it lived, the death of the job would go unnoticed.
os.register_at_fork(after_in_child=_let_go_in_child)
