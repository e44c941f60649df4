"""Primaries without a replica that are killed and come back with an old snapshot: what stock settings do.

Either every chunk counts once all the same, or the job stops and says that pushes were lost.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from threading import Event

import numpy as np
import pytest

from ctr.distributed.coordinator import Coordinator
from ctr.distributed.run import StoreSettings, train_distributed
from ctr.errors import StoreError
from ctr.learn import TrainProgress
from ctr.optimizers.ftrl import Ftrl
from ctr.ps import (
    BoardView,
    JobBoard,
    PackedPush,
    PartitionDump,
    RedisSessions,
    RedisStore,
    SendPacked,
    Token,
    parse_redis_url,
)
from ctr.ps.partitions import Bools
from ctr.workers import Heartbeat, take_part
from tests.ctr.distributed_jobs import (
    ADDITIVE,
    LEASE_S,
    Helpers,
    RunningJob,
    StartJob,
    describe,
    frozen,
    in_memory,
    in_threads,
    process_of,
    pushed,
    result_in_memory,
    same,
    same_sums,
    source_of,
    wait_for,
)
from tests.ps.breakable_redis import BreakableRedis, BreakableServer
from tests.ps.redis_servers import StartRedis, flush, needs_redis, timing_sensitive

pytestmark = [needs_redis, timing_sensitive]

LOST = "lost pushes .* with resume, or start again"
SOME, MORE = 5, 25
"""Chunks of each worker, or rounds, that a job waits after: for the snapshot, and for the loss."""
PASSES = 8
"""Of ten chunks: more than `MORE` for each of two workers."""
NOT_KEPT = 24
"""Pushes of two workers: more than they keep to send again, and train again of data shards in work."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[BreakableRedis]:
    """Two nodes; one that is restarted keeps its place."""
    with BreakableRedis(nodes=2) as servers:
        yield servers


@pytest.fixture
def servers(cluster: BreakableRedis) -> BreakableRedis:
    """The same, empty."""
    flush(cluster)
    return cluster


def snapshot(running: RunningJob, server: BreakableServer) -> int:
    """Let a server keep what it holds now; the chunks that it has, or more."""
    with server.connect() as client, running.board() as board:
        client.execute_command("SAVE")
        return pushed(board.look())


def nodes(running: RunningJob, servers: BreakableRedis) -> tuple[BreakableServer, BreakableServer]:
    """Of two, the board's and the other."""
    with running.board() as board:
        _, port = board._record.connection.nodes.owner(board._record.key.job)
    one, two = servers.servers
    return (one, two) if one.port == port else (two, one)


def apart(servers: BreakableRedis) -> str:
    """The URL of a model whose board is on one of two nodes, and whose updates wait on the other."""
    return f"{servers.url}?model=apart"


def require_right_or_stopped(running: RunningJob) -> None:
    """Either every chunk counts once, or the job says that pushes were lost."""
    try:
        result = running.result()
    except StoreError as error:
        if "lost pushes" not in str(error) or "with resume" not in str(error):
            raise
        return
    assert same_sums(result.state, in_memory(running.job)[0])
    return True


@pytest.mark.parametrize("consistency", ["ssp", "bsp"])
def test_one_node_of_two(
    start_job: StartJob, servers: BreakableRedis, job_data: Path, consistency: str
) -> None:
    """Data shards that were finished since the snapshot are no worker's any more."""
    job = describe(job_data, consistency=consistency, passes=PASSES, ftrl=ADDITIVE)
    running = start_job(job, servers.url)
    running.gather(until=SOME)
    _, victim = nodes(running, servers)
    assert running.once(lambda view: pushed(view) >= SOME)
    had = snapshot(running, victim)
    running.pause(MORE)
    assert running.once(lambda view: pushed(view) >= had + NOT_KEPT)
    victim.restart()
    running.pause(None)
    began = time.monotonic()
    with pytest.raises(StoreError, match=LOST):
        running.result()
    assert time.monotonic() - began < 30


@pytest.mark.parametrize("of_board", [False, True])
def test_of_rounds_whose_workers_died_as_well(
    start_job: StartJob, servers: BreakableRedis, job_data: Path, of_board: bool
) -> None:
    """Whoever takes the ranks over has pushed none of what is lost."""
    running = start_job(describe(job_data, passes=PASSES), apart(servers))
    running.gather(until=SOME)
    helper = Helpers(running.url, 1)  # without a rank
    assert running.once(lambda view: len(view.workers) == 3 and pushed(view) >= SOME)
    victim = nodes(running, servers)[not of_board]
    had = snapshot(running, victim)
    running.pause(MORE)
    assert running.once(lambda view: pushed(view) >= had + NOT_KEPT)
    for pid in running.pids():
        os.kill(pid, signal.SIGKILL)
    victim.restart()
    running.pause(None)
    with pytest.raises(StoreError, match=LOST):
        running.result()
    helper.join()


def test_of_rounds_whose_last_worker_was_taken_for_dead(redis_url: str, job_data: Path) -> None:
    """Its lease runs out in the middle of the push that meets the loss. Still, that ends the job."""
    job, before = describe(job_data, passes=PASSES), list[PartitionDump]()

    def wrap(store: RedisStore, _: str) -> SendPacked:
        def send(push: PackedPush, only: Bools | None) -> list[int]:
            assert push.token is not None
            if push.token.number == SOME and not before:
                before.extend(map(store.dumps.take, range(store.partitions.count)))
            if push.token.number == MORE:
                for dump in before:
                    store.dumps.restore(dump)
                for worker in board.look().workers:
                    board.leases.expire(worker.id)
            return store.push_packed(push, only)

        return send

    url, plan = parse_redis_url(redis_url), job.plan()
    with (
        closing(RedisStore(url, bits=job.feature_spec().bits, width=Ftrl.width, facts=job.facts())) as store,
        closing(JobBoard(url)) as board,
    ):
        board.create("job", job.to_bytes(), shards=plan.shards, ranks=job.ranks)
        with pytest.raises(StoreError, match=LOST):
            take_part(url, None, lease_s=LEASE_S, stop=Event(), wrap=wrap)
        view = board.look()
        assert view.state == "failed"
        assert "lost pushes" in view.message
        store.drop()


def test_of_rounds_of_which_one_worker_has_died(
    start_job: StartJob, start_redis: StartRedis, job_data: Path
) -> None:
    """The other sends again what it keeps, and the dead one's rank cannot be trained without seeing that."""
    servers = start_redis()
    running = start_job(describe(job_data, passes=PASSES), servers.url)
    running.gather(until=SOME)
    assert running.once(lambda view: pushed(view) >= 2 * SOME)
    snapshot(running, servers.servers[0])
    running.pause(SOME + 2)
    assert running.once(lambda view: pushed(view) >= 2 * (SOME + 2))
    os.kill(running.pids()[0], signal.SIGKILL)
    servers.servers[0].restart()
    running.pause(None)
    with pytest.raises(StoreError, match=LOST):
        running.result()


def test_of_rounds_of_a_rank_that_another_worker_has_now(redis_url: str, job_data: Path) -> None:
    """The former one sends them again, though it only waits for the other, which waits for them."""
    job, url = describe(job_data, passes=PASSES), parse_redis_url(redis_url)
    with (
        closing(RedisStore(url, bits=job.feature_spec().bits, width=Ftrl.width, facts=job.facts())) as store,
        closing(JobBoard(url, lease_s=LEASE_S)) as board,
    ):
        board.create("job", job.to_bytes(), shards=job.plan().shards, ranks=job.ranks)
        board.pause(SOME)
        helper = Helpers(redis_url, 1)
        wait_for(lambda: pushed(board.look()) == 2 * SOME)
        before = [store.dumps.take(p) for p in range(store.partitions.count)]
        board.pause(SOME + 1)
        wait_for(lambda: pushed(board.look()) == 2 * (SOME + 1))
        other = board.leases.register("here")
        with Heartbeat(LEASE_S / 5, lambda: board.leases.heartbeat(other)):
            wait_for(lambda: board.ranks.claim(other) == [1])
            board.pause(None)
            wait_for(lambda: board.look().ranks[0].prepared == SOME + 1)
            for dump in before:
                store.dumps.restore(dump)
            sessions = RedisSessions(store, "job", resend_s=10.0)
            session = sessions.join(1, SOME)
            assert sessions.wait_replicated()
            assert session.applied(SOME) == SOME
        helper.stop.set()
        helper.join()
        assert not helper.errors
        store.drop()


def test_of_rounds_that_only_the_board_has_forgotten(
    start_job: StartJob, servers: BreakableRedis, job_data: Path
) -> None:
    """Their updates wait nowhere any more, but what of them is lost, their workers have kept."""
    job = describe(job_data, passes=4)
    running = start_job(job, apart(servers))
    running.gather(until=SOME)
    assert running.once(lambda view: pushed(view) >= 2 * SOME)
    victim, _ = nodes(running, servers)
    snapshot(running, victim)
    running.pause(SOME + 2)
    assert running.once(lambda view: pushed(view) >= 2 * (SOME + 2))
    victim.restart()
    running.pause(None)
    assert same(running.result().state, in_threads(job, servers.url, 1)[0])


@pytest.mark.parametrize("workers", [1, 2])
def test_the_only_node(start_job: StartJob, start_redis: StartRedis, job_data: Path, workers: int) -> None:
    """The board goes back with the partitions, and what was trained since is trained again."""
    servers = start_redis()
    job = describe(job_data, consistency="ssp", workers=workers, passes=PASSES, ftrl=ADDITIVE)
    running = start_job(job, servers.url)
    running.gather(until=SOME)
    assert running.once(lambda view: pushed(view) >= SOME)
    had = snapshot(running, servers.servers[0])
    running.pause(MORE)
    assert running.once(lambda view: pushed(view) >= had + NOT_KEPT)
    servers.servers[0].restart()
    running.pause(None)
    require_right_or_stopped(running)


def test_while_the_one_that_pushed_is_idle(
    start_job: StartJob, servers: BreakableRedis, job_data: Path
) -> None:
    """One worker has nothing left to do, and the other, frozen meanwhile, has lost nothing."""
    job = describe(job_data, consistency="asp", ftrl=ADDITIVE)
    running = start_job(job, servers.url)
    running.gather(until=1)
    _, victim = nodes(running, servers)
    view = running.once(lambda view: any(shard.owner for shard in view.unfinished.values()))
    assert view is not None
    owner = next(shard.owner for shard in view.unfinished.values() if shard.owner)
    number = [worker.id for worker in view.workers].index(owner)
    with frozen(process_of(view, number)):
        snapshot(running, victim)
        running.pause(None)
        running.once(lambda view: view.finished >= view.shards - 1)
        victim.restart()
    require_right_or_stopped(running)


@pytest.mark.parametrize("consistency", ["ssp", "bsp"])
def test_when_everything_is_pushed(servers: BreakableRedis, job_data: Path, consistency: str) -> None:
    """When no worker has anything left to push, nobody meets the loss but who reads the model."""
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
            wait_for(lambda: pushed(board.look()) >= SOME)
            for server in servers.servers:
                with server.connect() as client:
                    client.execute_command("SAVE")
            done.append(pushed(board.look()))
            board.pause(None)
            wait_for(lambda: everything(board.look()))
            _, port = board._record.connection.nodes.owner(board._record.key.job)
            next(server for server in servers.servers if server.port != port).restart()

    settings = StoreSettings(servers.url, None, False, LEASE_S)
    with closing(JobBoard(parse_redis_url(servers.url))) as board, pytest.raises(StoreError, match=LOST):
        train_distributed(
            job,
            source_of(job),
            settings,
            start=None,
            stop=Event(),
            on_progress=go_back,
            on_start=lambda _: board.pause(SOME),
        )
    assert done[0] < 50


def test_of_an_unfinished_data_shard_when_the_job_was_stopped(redis_url: str, job_data: Path) -> None:
    job = describe(job_data, consistency="asp")
    spec, nothing = job.feature_spec(), np.empty(0, np.int64)
    with (
        closing(RedisStore(parse_redis_url(redis_url), bits=spec.bits, width=Ftrl.width)) as store,
        closing(Coordinator(job, store)) as coordinator,
    ):
        queue, worker = coordinator.board.queue, coordinator.board.leases.register("here")
        assert queue.claim(worker)
        assert queue.advance(worker, 0, 2, 2)
        result = replace(result_in_memory(job)[1], interrupted=True)
        with pytest.raises(StoreError, match=LOST):
            coordinator.whole(result, lambda: None)
        push = PackedPush(np.empty(0, np.uint32), nothing, Token(coordinator.id, 0, 1))
        store.push_packed(push, np.ones(store.partitions.count, np.bool_))
        coordinator.whole(result, lambda: None)
        store.drop()


def test_what_is_sent_again_while_the_model_is_read(redis_url: str, job_data: Path) -> None:
    """By a worker that wakes up only then: it is in the store, and not in the model."""
    job = describe(job_data, consistency="asp")
    plan, spec = job.plan(), job.feature_spec()

    def read() -> None:
        for shard in range(plan.shards):
            token = Token(coordinator.id, shard, plan.end_of(shard))
            everywhere = np.ones(store.partitions.count, np.bool_)
            store.push_packed(PackedPush(np.empty(0, np.uint32), np.empty(0, np.int64), token), everywhere)

    with (
        closing(RedisStore(parse_redis_url(redis_url), bits=spec.bits, width=Ftrl.width)) as store,
        closing(Coordinator(job, store)) as coordinator,
    ):
        _, result = result_in_memory(job)
        with pytest.raises(StoreError, match=LOST):
            coordinator.whole(result, read)
        read()
        coordinator.whole(result, read)
