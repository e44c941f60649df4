"""Workers whose pushes take a while, so that a test can break something in the middle of a small job."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from time import sleep
from typing import Any

from ctr.ps import RedisStore, SendPacked
from ctr.workers.worker import PUSH_WRAPPER

_PUSH_S = 0.3


def slow(store: RedisStore, _worker: str) -> SendPacked:
    """A `Wrap`."""

    def push(*arguments: Any, **options: Any) -> Any:
        sleep(_PUSH_S)
        return store.push_packed(*arguments, **options)

    return push


SLOW: Mapping[str, str] = {
    f"spark.executorEnv.{name}": value
    for name, value in {
        PUSH_WRAPPER: f"{slow.__module__}:{slow.__name__}",
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }.items()
}
"""Settings of Spark."""
