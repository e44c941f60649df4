"""`require_reach`: checks what the tasks of a training job need, before any of them reads data."""

from __future__ import annotations

from pathlib import Path

from ctr.engines import Engine
from ctr.errors import DataError, StoreError, named
from ctr.features.inputs import RemoteFolder
from ctr.jobs.splits.attempts import Attempts, local_attempts, remote_attempts
from ctr.jobs.splits.tasks import map_tasks
from ctr.ps import JobBoard, RedisUrl, parse_redis_url

_NAME = "reach"  # of the folder for the check


def require_reach(engine: Engine, staging: Path | str, store: str) -> None:
    """Raise DataError unless tasks see the driver's files in `staging` and reach the store.

    An engine whose tasks run on this machine is not checked, nor are servers that this machine starts itself.
    """
    if engine.on_this_machine:
        return
    url = None if store.startswith("embedded:") else parse_redis_url(store)
    try:
        with (
            local_attempts(staging / _NAME)
            if isinstance(staging, Path)
            else remote_attempts(RemoteFolder(staging))
        ) as shared:
            # Enough tasks for each machine to get one, if all are idle.
            map_tasks(engine, _check, [(shared, url)] * engine.tasks_at_once, "checking the executors")
    except OSError as error:
        raise DataError(f"{staging}: cannot be written ({error}).") from error


def _check(needs: tuple[Attempts, RedisUrl | None]) -> None:
    shared, url = needs
    shared.require_shared()
    if url is not None:
        try:
            JobBoard(url).close()
        except StoreError as error:
            reason = str(error).removesuffix(".")
            raise StoreError(f"{reason}; give {named('store')} an address that all machines reach") from None
