"""The processes that run the tasks."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from ctr.engines.processes import Processes


@pytest.fixture(scope="package", autouse=True)
def started_once() -> Iterator[None]:
    """All jobs use the same processes, which take seconds to start."""
    with (
        ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(Processes, "_pool", pool)
        patch.setattr(Processes, "close", lambda self: None)
        yield
