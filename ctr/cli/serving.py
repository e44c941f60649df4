"""`ctr serve`."""

from __future__ import annotations

import os
from contextlib import suppress
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ctr.settings import ServeJob

_LIVE_BYTES = 1 << 30


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
    with TemporaryDirectory(prefix="ctr-serve-", dir=_memory() if job.store else None) as shared:
        if job.workers > 1:
            os.environ["PROMETHEUS_MULTIPROC_DIR"] = shared  # before the library is imported
        from ctr.api import serve as run

        try:
            run(job)
        finally:
            os.environ.pop("PROMETHEUS_MULTIPROC_DIR", None)


def _memory() -> str | None:
    """A folder in memory with room for live weights, which a disk would write again and again, or None."""
    with suppress(OSError):
        disk = os.statvfs("/dev/shm")
        if disk.f_bavail * disk.f_frsize > _LIVE_BYTES and os.access("/dev/shm", os.W_OK):
            return "/dev/shm"
    return None
