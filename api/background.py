"""`background`: a thread for work that requests should not wait for."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import get_native_id

_NICENESS = 10


def background() -> ThreadPoolExecutor:
    """One thread, which gives way to others where there are not enough cores."""
    return ThreadPoolExecutor(1, thread_name_prefix="background", initializer=_give_way)


def _give_way() -> None:
    with suppress(OSError, AttributeError):  # on Linux, a thread has a niceness of its own
        os.setpriority(os.PRIO_PROCESS, get_native_id(), _NICENESS)
