"""`HeldShards`: several data shards in work at a time, each finished or given back by itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import redis

from ctr.learn import Timings
from ctr.optimizers.ftrl import Ftrl
from ctr.ps import Filters, JobBoard, RedisStore, WorkerStore, parse_redis_url
from ctr.workers.held_shards import HeldShards, NoChunk, Taken
from ctr.workers.shard_reader import ShardReader
from tests.ctr.distributed_jobs import describe
from tests.ps.expected_sums import filter_updates
from tests.ps.redis_servers import needs_redis

pytestmark = needs_redis


class OneWorker:
    """A worker whose threads are the test: of data shards that are one chunk."""

    def __init__(self, board: JobBoard, store: RedisStore, reader: ShardReader, shards: HeldShards) -> None:
        self.board, self.store, self.reader, self.shards = board, store, reader, shards

    def take(self, *, ahead: bool) -> Taken:
        taken = self.shards.take(ahead=ahead)
        assert isinstance(taken, Taken)
        return taken


@pytest.fixture
def worker(job_data: Path, redis_url: str) -> Iterator[OneWorker]:
    job = describe(job_data, consistency="ssp", workers=1, shard_chunks=1)
    url, plan = parse_redis_url(f"{redis_url}?model=held"), job.plan()
    with (
        closing(RedisStore(url, bits=job.feature_spec().bits, width=Ftrl.width)) as store,
        closing(JobBoard(url)) as board,
        closing(
            WorkerStore(store, "job", filters=Filters(), staleness=2, filter_updates=filter_updates)
        ) as own,
        ShardReader(job.open_source(), plan, Timings()) as reader,
    ):
        board.create("job", b"", shards=plan.shards)
        yield OneWorker(
            board, store, reader, HeldShards(board.leases.register("here"), board, own, reader, plan)
        )
        store.drop()


def test_only_what_another_has_begun_is_given_back(worker: OneWorker) -> None:
    shards, own = worker.shards, worker.shards._store
    chunks = [worker.take(ahead=False), worker.take(ahead=True)]
    assert list(shards.held) == [0, 1, 2], "the next is claimed with the last chunk of one"
    assert list(worker.board.look().unfinished) == [0, 1, 2]
    pulled = [own.pull(taken.chunk.slots, taken.held.shard, n, n) for n, taken in enumerate(chunks)]
    shards.clock = 2
    worker.store.take_over("job", 0)
    for clock, (taken, each) in enumerate(zip(chunks, pulled, strict=True), 1):
        arrived = partial(shards.arrived, taken.held, 1, clock)
        own.push(each, own.complete(each), np.ones((each.slots.size, 2), np.float32), 0, arrived, last=True)
    own.flush()
    assert shards.any_lost()
    shards.settle(leave=False)
    view = worker.board.look()
    assert (list(shards.held), view.finished, list(view.unfinished)) == ([2], 1, [0, 2])
    assert view.unfinished[0].owner is None
    assert view.clock == shards.clock == shards.pushed_clock == 2
    assert worker.take(ahead=False).held.shard == 2
    assert worker.take(ahead=True).held.shard == 0, "it is free for all, and begun again"
    shards.settle(leave=True)
    assert not shards.held
    assert all(shard.owner is None for shard in worker.board.look().unfinished.values())


def test_the_clock_goes_on_where_nothing_is_waited_for(worker: OneWorker) -> None:
    """A late worker begins at the least clock, and claims ahead keep what it has come to."""
    other = worker.board.leases.register("other")
    worker.board.queue.claim(other)
    worker.board.queue.advance(other, 0, 1, 40)
    taken = worker.take(ahead=False)
    assert (taken.held.shard, worker.shards.clock) == (1, 40)
    worker.shards.clock += 1
    assert worker.take(ahead=True).held.shard == 2
    assert worker.shards.clock == 41
    worker.board.leases.expire(other)


def test_what_a_board_has_forgotten_is_not_begun_beside_itself(worker: OneWorker, redis_url: str) -> None:
    """It went back to before the claim: so it has the same data shard claimed again."""
    shards, own = worker.shards, worker.shards._store
    with redis.Redis.from_url(redis_url) as client:
        before = {key: client.dump(key) for key in client.keys("ctr:{held:meta}:*")}
        first, second = worker.take(ahead=False), worker.take(ahead=True)
        for key, value in before.items():
            client.restore(key, 0, value, replace=True)
    attempt = own._attempts[0]
    held = dict(shards.held)
    assert not shards._claim(ahead=True)
    assert shards.held == held
    assert own._attempts[0] is attempt
    assert (first.held.lost, second.held.lost) == (True, False)
    shards.settle(leave=False)
    assert 0 not in shards.held
    assert worker.board.look().unfinished[0].owner is None


def test_nothing_is_left_to_claim(worker: OneWorker) -> None:
    worker.board.stop()
    assert worker.shards.take(ahead=False) is NoChunk.END
