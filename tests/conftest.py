"""Fixtures for every test."""

from __future__ import annotations

import gc
import signal
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, settings

from benchmarks import measure
from ctr.engines import forking
from tests.command_line import cli, run_command
from tests.ps.redis_servers import (
    cluster_url,
    redis_url,
    shared_cluster,
    shared_redis,
    start_redis,
    stepped_clock,
)

__all__ = [
    "cli",
    "cluster_url",
    "redis_url",
    "shared_cluster",
    "shared_redis",
    "start_redis",
    "stepped_clock",
]

# A shell gives its background jobs a SIGINT that is ignored, and they pass it on: tests that interrupt a
# process of their own would wait for ever. A handler here is a default there.
signal.signal(signal.SIGINT, signal.default_int_handler)

forking.PROGRAM = "tests.loaded_ctr"  # what tests fork is there at once

# Collecting 5,000 tests makes half a million objects that stay: scanning them again and again takes seconds.
gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


# How long an example takes says nothing: machines are busy, and kernels compile when they are first called.
_patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
# A gate gives the same verdict twice: `make test` tries the same examples every time, `make fuzz` others.
settings.register_profile("gate", _patient, derandomize=True)
settings.register_profile("fuzz", _patient, print_blob=True)
settings.load_profile("gate")


@pytest.fixture
def benchmarks_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands of benchmarks run in this process, which spares their start. Their times mean nothing then."""

    def run(command: Sequence[str], cores: int | None = None) -> float:
        assert run_command(monkeypatch, command[1:]) == 0, command
        return 1.0

    monkeypatch.setattr(measure, "run", run)
