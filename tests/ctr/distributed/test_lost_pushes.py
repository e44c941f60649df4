"""What a failover loses while nobody seems to be left who would send it again."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from threading import Event, Thread
from time import sleep

import pytest

from ctr.distributed.coordinator import Coordinator
from ctr.ps import JobBoard, RedisStore, parse_redis_url
from tests.ctr.distributed_jobs import describe
from tests.drill.evidence import all_chunks, sums_in
from tests.drill.ledger import Ledger, Push, ledger_variables
from tests.drill.proof import Proof, prove
from tests.ps.cluster import Cluster, Node
from tests.ps.redis_servers import StartRedis, needs_redis, timing_sensitive

pytestmark = [needs_redis, timing_sensitive]

Strike = Callable[[RedisStore, Cluster, Node, Ledger], None]


@pytest.fixture
def struck(
    start_redis: StartRedis, job_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Strike, float], Proof]:
    """Trains a job of 32 chunks that `strike` happens to, with pushes that take so long at least."""

    def train(strike: Strike, pace_s: float) -> Proof:
        servers = start_redis(nodes=3, replicas=1, config={"cluster-node-timeout": "1000"})
        ledger = Ledger(tmp_path / "ledger")
        ledger.folder.mkdir()
        for name, value in ledger_variables(ledger.folder, pace_s).items():
            monkeypatch.setenv(name, value)
        job = describe(job_data, consistency="ssp", chunk=93, shard_chunks=8)
        bits, width = job.feature_spec().bits, job.optimizer.width
        url = parse_redis_url(f"{servers.url}?model=lost")
        with closing(RedisStore(url, bits=bits, width=width, facts=job.facts())) as store:
            cluster = Cluster(servers, store.keys.model, store.partitions.count)
            # Not that of the job board, which tells the workers when the job is over.
            node = next(node for node in cluster.nodes() if not cluster.holds(node.primary, store.keys.meta))
            striking = Thread(target=strike, args=(store, cluster, node, ledger))
            with closing(Coordinator(job, store)) as coordinator:
                striking.start()
                coordinator.run(stop=Event())
                striking.join()
                return prove(ledger.read(), sums_in(store), owed=all_chunks(job))

    return train


def acknowledged(ledger: Ledger) -> list[Push]:
    return [push for push in ledger.read() if push.acknowledged is not None]


def test_the_last_pushes_of_a_job(struck: Callable[[Strike, float], Proof]) -> None:
    def strike(store: RedisStore, cluster: Cluster, node: Node, ledger: Ledger) -> None:
        while len(acknowledged(ledger)) < 16:  # of 32
            sleep(0.05)
        with closing(JobBoard(store.url)) as board:
            board.pause(-1)  # or it could be over before they are cut off
            with cluster.cut_off(node.replicas):
                board.pause(None)
                job = board.job()
                assert job is not None
                while board.look().finished < job.shards:
                    sleep(0.004)
                node.primary.kill()

    proof = struck(strike, 0.1)
    assert proof.chunks == 32
    assert proof.problems == []
    assert proof.sent_again > 0


def test_the_pushes_of_a_worker_that_dies_too(
    struck: Callable[[Strike, float], Proof], tmp_path: Path
) -> None:
    """As when both were on one machine."""
    died: list[Push] = []

    def strike(store: RedisStore, cluster: Cluster, node: Node, ledger: Ledger) -> None:
        first: Push | None = None
        while first is None:  # in a data shard of eight chunks
            sleep(0.03)
            first = next((push for push in acknowledged(ledger) if push.chunk == 2), None)
        with cluster.cut_off(node.replicas):
            while not died:
                sleep(0.03)
                died.extend(
                    push
                    for push in acknowledged(ledger)
                    if (push.worker, push.shard, push.chunk) == (first.worker, first.shard, 5)
                )
            os.kill(int(first.worker.split("-")[-2]), signal.SIGKILL)
            node.primary.kill()

    proof = struck(strike, 0.2)
    assert proof.problems == []
    assert proof.pushes > proof.chunks
    again = [push for push in Ledger(tmp_path / "ledger").read() if push.shard == died[0].shard]
    assert {push.worker for push in again if push.chunk == died[0].chunk} > {died[0].worker}
