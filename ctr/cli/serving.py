"""`ctr serve`."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from time import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ctr.settings import ServeJob

_PREFIX = "ctr-served-"
_LIVE_BYTES = 1 << 30
_ABANDONED_S = 60.0


def serve(job: ServeJob) -> None:
    """Serve a model over HTTP until Ctrl-C or SIGTERM; closing the terminal (SIGHUP) does not stop it.

    `POST /v1/predict` with `{"rows": [{"I1": 5, "C1": "68fd1e64"}]}` returns one probability per row;
    a column that is left out counts as missing. A request may have up to 10,000 rows and 2 MiB. Rows may
    also come as columns, as candidates of one context, or as Arrow. `GET /docs` shows every endpoint.

    Another model in the folder, or another version under the label, is served within two seconds, once it has
    been loaded and tried; one that fails is not, and the one before stays. Requests are dealt to `--canary`
    by the hash of their header `ctr-request-key`. `GET /v1/models` tells what is served.

    Events for a model with windows go to `/v1/events/impressions` and `/v1/events/clicks`. With `--windows`,
    several servers share them, and they outlive a server; the first one writes what its model knows. User and
    password are in the URL, or in CTR_REDIS_USER and CTR_REDIS_PASSWORD.

    Each option can be given in the environment, as `CTR_SERVE_PORT` for `--port`. Tokens in files, or in
    CTR_SERVE_TOKENS (to predict) and CTR_SERVE_ADMIN_TOKENS (to change labels), may be several, so that one
    can take another's place.

    Examples:

    - `ctr serve --model model --port 8000`
    - `ctr serve --registry models --label stable --canary 5%`
    """
    with _shared_folder(_memory() if job.store else gettempdir()) as shared:
        if job.workers > 1:
            os.environ["PROMETHEUS_MULTIPROC_DIR"] = shared  # before the library is imported
        from ctr.api import serve as run

        try:
            run(job)
        finally:
            os.environ.pop("PROMETHEUS_MULTIPROC_DIR", None)


@contextmanager
def _shared_folder(parent: str) -> Iterator[str]:
    """A folder for what the processes of a server share; it is removed with them, or by a later server."""
    for path in Path(parent).glob(f"{_PREFIX}*"):
        with suppress(OSError):  # such as a lock, or the folder of another user
            handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if time() - os.fstat(handle).st_mtime > _ABANDONED_S:  # a new folder is not locked yet
                    shutil.rmtree(path)
            finally:
                os.close(handle)
    with TemporaryDirectory(prefix=_PREFIX, dir=parent) as folder:
        handle = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)  # as long as this process lives, or one that it has forked
            yield folder
        finally:
            os.close(handle)


def _memory() -> str:
    """A folder in memory with room for live weights, which a disk would write again and again."""
    with suppress(OSError):
        disk = os.statvfs("/dev/shm")
        if disk.f_bavail * disk.f_frsize > _LIVE_BYTES and os.access("/dev/shm", os.W_OK):
            return "/dev/shm"
    return gettempdir()
