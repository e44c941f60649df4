"""`forked`: the fork server of workers, a process that this package starts for itself."""

from __future__ import annotations

import sys
from socket import socket


def forked(line: int) -> bool:
    """Be a fork server (see `ctr.workers.forking`), asked over `line`, the number of an open socket.

    Returns True in each process that it forks, which has a command line of its own; False at its end.
    """
    import ctr.cli.commands  # noqa: F401  (this and `take_part` are what forks need)
    from ctr.workers import serve, take_part  # noqa: F401
    from ps import warm_up_requests

    warm_up_requests(22)
    words = serve(socket(fileno=line))
    if words is None:
        return False
    sys.argv[1:] = words
    return True
