"""Jobs through real Redis servers while processes are killed and frozen."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

import pytest

from features import FeatureSpec
from tests.ctr.distributed_jobs import (
    StartJob,
    describe,
    in_threads,
    process_of,
    pushed,
    same,
)
from tests.ps.servers import needs_redis

pytestmark = needs_redis


@pytest.mark.parametrize(("seed", "hashed", "passes"), [(1, True, 1), (2, False, 2), (3, True, 2)])
def test_a_killed_worker_changes_no_bit_of_rounds(
    start_job: StartJob,
    job_log: Path,
    job_spec: FeatureSpec,
    job_data: Path,
    redis_url: str,
    seed: int,
    hashed: bool,
    passes: int,
) -> None:
    chances = random.Random(seed)
    inputs = (job_data, None) if hashed else (job_log, job_spec)
    job = describe(*inputs, workers=2, passes=passes)
    undisturbed, _ = in_threads(job, redis_url, 2)
    running = start_job(job, redis_url)
    at = chances.randrange(1, 45 * passes)
    view = running.once(lambda view: len(view.workers) == 2 and pushed(view) >= at)
    assert view is not None
    os.kill(process_of(view, chances.randrange(2)), signal.SIGKILL)
    result = running.result()
    assert same(result.state, undisturbed)
    assert result.coordinated.examples == job.rows * passes
    assert len(result.coordinated.dead_workers) == 1
    assert "signal 9" in result.coordinated.dead_workers[0]
