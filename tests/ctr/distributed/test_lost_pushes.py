"""What a failover loses while nobody seems to be left who would send it again."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from threading import Event, Thread
from time import sleep

from ctr.drill.job import DrillJob, describe_job
from ctr.drill.ledger import Ledger, Push
from ctr.drill.proof import Proof, prove
from ctr.drill.settings import DrillSettings
from ctr.ps import JobBoard, RedisStore
from ctr.ps.servers.cluster import Cluster, Node
from tests.ps.redis_servers import StartRedis, needs_redis, timing_sensitive

pytestmark = [needs_redis, timing_sensitive]

Strike = Callable[[RedisStore, Cluster, Node, Ledger], None]


def drilled(start_redis: StartRedis, folder: Path, strike: Strike, pace_s: float) -> tuple[DrillJob, Proof]:
    """A small job that something happens to, and what came of it."""
    servers = start_redis(shards=3, replicas=1, config={"cluster-node-timeout": "1000"})
    settings = DrillSettings(rows=12_000, seed=1, workers=2, chunk=300)
    job = DrillJob(describe_job(folder, settings), Event())
    store = job.open(servers.url, "lost")
    cluster = Cluster(servers, store.keys.model, store.partitions.count)
    ledger = Ledger(folder / "ledger")
    # Not that of the job board, which tells the workers when the job is over.
    node = next(node for node in cluster.nodes() if not cluster.holds(node.primary, store.keys.meta))
    striking = Thread(target=strike, args=(store, cluster, node, ledger))
    striking.start()
    name = job.run(store, ledger.folder, pace_s=pace_s)
    striking.join()
    proof = prove(ledger.read(), job.sums(store, name), owed=job.all_chunks())
    store.close()
    return job, proof


def acknowledged(ledger: Ledger) -> list[Push]:
    return [push for push in ledger.read() if push.acknowledged is not None]


def test_the_last_pushes_of_a_job(start_redis: StartRedis, tmp_path: Path) -> None:
    def strike(store: RedisStore, cluster: Cluster, node: Node, ledger: Ledger) -> None:
        while len(acknowledged(ledger)) < 16:  # of 32
            sleep(0.05)
        with closing(JobBoard(store.url)) as board:
            board.pause(-1)  # or it could be over before they are cut off
            with cluster.cut_off(node.replicas):
                board.pause(None)
                found = board.job()
                assert found is not None
                while board.look().finished < found.shards:
                    sleep(0.004)
                node.primary.kill()

    job, proof = drilled(start_redis, tmp_path, strike, pace_s=0.1)
    assert job.chunks == 32
    assert proof.problems == []
    assert proof.sent_again > 0


def test_the_pushes_of_a_worker_that_dies_too(start_redis: StartRedis, tmp_path: Path) -> None:
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

    _, proof = drilled(start_redis, tmp_path, strike, pace_s=0.2)
    assert proof.problems == []
    assert proof.pushes > proof.chunks
    again = [push for push in Ledger(tmp_path / "ledger").read() if push.shard == died[0].shard]
    assert {push.worker for push in again if push.chunk == died[0].chunk} > {died[0].worker}
