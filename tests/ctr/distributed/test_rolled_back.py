"""Primaries without a replica that are killed and come back with an old snapshot: what stock settings do.

Either every chunk counts once all the same, or the job stops and says that pushes were lost.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import closing
from pathlib import Path
from threading import Event

import pytest

from ctr.distributed.run import StoreSettings, train_distributed
from ctr.errors import StoreError
from ctr.learn import TrainProgress
from ps import BoardView, JobBoard, parse_redis_url
from ps.servers.embedded import EmbeddedRedis
from ps.servers.redis_server import RedisServer
from tests.ctr.distributed_jobs import (
    ADDITIVE,
    LEASE_S,
    Helpers,
    RunningJob,
    StartJob,
    describe,
    frozen,
    in_memory,
    process_of,
    pushed,
    same_sums,
    source_of,
    wait_for,
)
from tests.ps.redis_servers import StartRedis, needs_redis, timing_sensitive

pytestmark = [needs_redis, timing_sensitive]

LOST = "lost pushes .* --resume"


def snapshot(server: RedisServer) -> None:
    with server.connect() as client:
        client.execute_command("SAVE")


def other_than_the_boards(running: RunningJob, servers: EmbeddedRedis) -> RedisServer:
    with running.board() as board:
        node = board._record._nodes.client().get_node_from_key(board._record.key["job"])
    (other,) = [server for server in servers.servers if server.port != node.port]
    return other


def require_right_or_stopped(running: RunningJob) -> bool:
    """Whether it came to its end."""
    try:
        result = running.result()
    except StoreError as error:
        if "lost pushes" not in str(error) or "--resume" not in str(error):
            raise
        return False
    assert same_sums(result.state, in_memory(running.job)[0])
    return True


@pytest.mark.parametrize("consistency", ["ssp", "bsp"])
def test_one_node_of_two(
    start_job: StartJob, start_redis: StartRedis, job_data: Path, consistency: str
) -> None:
    """Data shards that were finished since the snapshot are no worker's any more."""
    servers = start_redis(shards=2)
    job = describe(job_data, consistency=consistency, passes=4, ftrl=ADDITIVE)
    running = start_job(job, servers.url)
    running.gather()
    victim = other_than_the_boards(running, servers)
    view = running.once(lambda view: pushed(view) >= 10)
    assert view is not None
    snapshot(victim)
    assert running.once(lambda now: pushed(now) >= pushed(view) + 18)
    victim.restart()
    began = time.monotonic()
    with pytest.raises(StoreError, match=LOST):
        running.result()
    assert time.monotonic() - began < 30


def test_of_rounds_whose_workers_died_as_well(
    start_job: StartJob, start_redis: StartRedis, job_data: Path
) -> None:
    """Whoever takes the ranks over has pushed none of what is lost."""
    servers = start_redis(shards=2)
    running = start_job(describe(job_data, passes=30), servers.url)
    running.gather()
    helper = Helpers(servers.url, 1)  # without a rank
    assert running.once(lambda view: len(view.workers) == 3 and pushed(view) >= 10)
    victim = other_than_the_boards(running, servers)
    snapshot(victim)
    view = running.once(lambda view: pushed(view) >= 24)
    assert view is not None
    for pid in running.pids():
        os.kill(pid, signal.SIGKILL)
    victim.restart()
    with pytest.raises(StoreError, match=LOST):
        running.result()
    helper.join()


def test_the_only_node(start_job: StartJob, start_redis: StartRedis, job_data: Path) -> None:
    """The board goes back with the partitions, and what was trained since is trained again."""
    servers = start_redis()
    job = describe(job_data, consistency="ssp", passes=4, ftrl=ADDITIVE)
    running = start_job(job, servers.url)
    running.gather()
    assert running.once(lambda view: pushed(view) >= 10)
    snapshot(servers.servers[0])
    assert running.once(lambda view: pushed(view) >= 24)
    servers.servers[0].restart()
    require_right_or_stopped(running)


def test_while_the_one_that_pushed_is_idle(
    start_job: StartJob, start_redis: StartRedis, job_data: Path
) -> None:
    """One worker has nothing left to do, and the other, frozen meanwhile, has lost nothing."""
    servers = start_redis(shards=2)
    job = describe(job_data, consistency="asp", ftrl=ADDITIVE)
    running = start_job(job, servers.url)
    running.gather()
    victim = other_than_the_boards(running, servers)
    view = running.once(lambda view: any(shard.owner for shard in view.unfinished.values()))
    assert view is not None
    owner = next(shard.owner for shard in view.unfinished.values() if shard.owner)
    number = [worker.id for worker in view.workers].index(owner)
    with running.board() as board, frozen(process_of(view, number)):
        snapshot(victim)
        assert running.once(lambda view: view.finished >= view.shards - 1) or True
        victim.restart()
        del board
    require_right_or_stopped(running)


@pytest.mark.parametrize("consistency", ["ssp", "bsp"])
def test_when_everything_is_pushed(start_redis: StartRedis, job_data: Path, consistency: str) -> None:
    """When no worker has anything left to push, nobody meets the loss but who reads the model."""
    servers = start_redis(shards=2)
    job = describe(job_data, consistency=consistency, passes=5, ftrl=ADDITIVE)
    done: list[int] = []  # chunks that were pushed at the time of the snapshots

    def everything(view: BoardView) -> bool:
        ranks, plan = enumerate(view.ranks), job.plan()
        return view.finished == view.shards or bool(
            view.ranks and all(rank.pushed + 1 == plan.rounds_of(number) for number, rank in ranks)
        )

    def go_back(_: TrainProgress) -> None:
        """Called by the coordinator before it looks at the board again."""
        if not done:
            for server in servers.servers:
                snapshot(server)
            with closing(JobBoard(parse_redis_url(servers.url))) as board:
                snapshots_at = pushed(board.look())
                wait_for(lambda: everything(board.look()))
                node = board._record._nodes.client().get_node_from_key(board._record.key["job"])
            next(server for server in servers.servers if server.port != node.port).restart()
            done.append(snapshots_at)

    settings = StoreSettings(servers.url, None, False, LEASE_S)
    with pytest.raises(StoreError, match=LOST):
        train_distributed(job, source_of(job), settings, start=None, stop=Event(), on_progress=go_back)
    assert done[0] < 50
