"""`Watchdog`: ends servers, and removes their folder, when this process ends in any way."""

from __future__ import annotations

import os
import subprocess
import weakref
from pathlib import Path

from ctr.errors import StoreError

# `read` returns when the last writing end of the pipe is closed, which the kernel does even for a process
# that was killed with -9. The watchdog ignores the signals that end a job; nobody can ignore KILL.
SCRIPT = """
trap '' HUP INT TERM
read -r nothing
rm -rf -- "$1"
kill -KILL 0
"""

_watching: weakref.WeakSet[Watchdog] = weakref.WeakSet()


class Watchdog:
    """A process group with the id `group`, which dies with this process; its `folder` is removed then.

    A shell leads the group and waits on a pipe whose other end only this process holds. Servers that join the
    group (`subprocess.Popen(..., process_group=watchdog.group)`) get no Ctrl-C of the terminal, so the job
    can still use them while it stops. They join before they exec, so none can ever be left behind, and there
    is no list of process ids that could become outdated.

    PR_SET_PDEATHSIG would need no shell. But only Linux has it, it fires when the starting *thread* ends, and
    it is set in a `preexec_fn`, which may deadlock in a process with threads.

    Raises StoreError if no shell can be started.
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
        """Kill all processes of the group, remove the folder, and wait for both."""
        _watching.discard(self)
        self.release()
        self._shell.wait()

    def release(self) -> None:
        """Close this process's end of the pipe; the group lives on while another process holds one."""
        if self._shell.stdin is not None:
            self._shell.stdin.close()


def _release_in_child() -> None:
    for watchdog in list(_watching):
        watchdog.release()


# A forked worker inherits the pipe; while it lived, the watchdog would not notice the end of the job.
os.register_at_fork(after_in_child=_release_in_child)
