"""Raw files that change while a job through Redis makes several passes over them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from ctr.errors import CtrError
from ctr.features import FeatureSpec
from tests.ctr.distributed_jobs import StartJob, describe, pushed
from tests.ps.redis_servers import needs_redis

pytestmark = needs_redis

SECOND_PASS = 12  # the chunk, of ten in a pass


@pytest.mark.parametrize("consistency", ["bsp", "ssp"])
@pytest.mark.parametrize("replace", [False, True])
def test_the_job_ends_and_names_the_file(
    start_job: StartJob,
    click_log: Path,  # of several pieces: one that is all of a file is not read again
    job_spec: FeatureSpec,
    redis_url: str,
    tmp_path: Path,
    consistency: str,
    replace: bool,
) -> None:
    log, other = tmp_path / "clicks.tsv", tmp_path / "other.tsv"
    for path in (log, other):
        shutil.copy(click_log, path)
    job = describe(log, job_spec, consistency=consistency, passes=4, chunk=2_000)
    running = start_job(job, redis_url)
    running.gather(SECOND_PASS // job.workers)  # each worker counts its own
    assert running.once(lambda view: pushed(view) >= SECOND_PASS - job.workers) is not None
    if replace:
        os.replace(other, log)
    else:
        with log.open("ab") as file:
            file.write(other.read_bytes())
    running.pause(None)
    with pytest.raises(CtrError, match=rf"{log}: (it has grown|another file has taken its place)"):
        running.result()
