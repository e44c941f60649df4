"""`background`: a low-priority thread, for work that must not delay requests."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import get_native_id

_NICENESS = 10


def background() -> ThreadPoolExecutor:
    """One thread, with a lower priority than the others."""
    return ThreadPoolExecutor(1, thread_name_prefix="background", initializer=_lower_priority)


def _lower_priority() -> None:
    with suppress(OSError, AttributeError):  # on Linux, each thread has a niceness
        os.setpriority(os.PRIO_PROCESS, get_native_id(), _NICENESS)
