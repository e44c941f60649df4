"""`ClaimedShards`: several data shards in work at a time, each with an outcome of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import redis

from ctr.learn import ALL_ROWS, Timings
from ctr.optimizers.ftrl import Ftrl
from ctr.ps import JobBoard, Outcome, RedisSessions, RedisStore, parse_redis_url
from ctr.workers.claimed_shards import ClaimedShards, NextChunk, NoChunk, ShardReader
from tests.ctr.distributed_jobs import describe
from tests.ps.redis_servers import needs_redis

pytestmark = needs_redis


class OneWorker:
    """A worker whose threads are the test: of data shards that are one chunk."""

    def __init__(self, board: JobBoard, store: RedisStore, shards: ClaimedShards) -> None:
        self.board, self.store, self.shards = board, store, shards

    def next_chunk(self, *, ahead: bool) -> NextChunk:
        chunk = self.shards.next_chunk(ahead=ahead)
        assert isinstance(chunk, NextChunk)
        return chunk


@pytest.fixture
def worker(job_data: Path, redis_url: str) -> Iterator[OneWorker]:
    job = describe(job_data, consistency="ssp", workers=1, shard_chunks=1)
    url, plan = parse_redis_url(f"{redis_url}?model=held"), job.plan()
    with (
        closing(RedisStore(url, bits=job.feature_spec().bits, width=Ftrl.width)) as store,
        closing(JobBoard(url)) as board,
        ShardReader(job.open_source(), ALL_ROWS, plan, Timings()) as reader,
    ):
        board.create("job", b"", shards=plan.shards)
        sessions = RedisSessions(store, "job")
        yield OneWorker(
            board, store, ClaimedShards(board.leases.register("here"), board, sessions, reader, plan)
        )
        store.drop()


def test_only_what_another_has_begun_is_released(worker: OneWorker) -> None:
    shards = worker.shards
    chunks = [worker.next_chunk(ahead=False), worker.next_chunk(ahead=True)]
    assert list(shards.by_number) == [0, 1, 2], "the next is claimed with the last chunk of one"
    assert list(worker.board.look().unfinished) == [0, 1, 2]
    pulled = [each.shard.session.pull(each.chunk.slots, clock, clock) for clock, each in enumerate(chunks)]
    shards.clock = 2
    worker.store.take_over("job", 0)
    for clock, (chunk, each) in enumerate(zip(chunks, pulled, strict=True), 1):
        session = chunk.shard.session
        session.wait(each)
        if session.send(session.push(each, np.ones((each.slots.size, 2), np.float32), 0)):
            assert session.close() is Outcome.ARRIVED
            shards.arrived(chunk.shard, 1, clock)
    assert shards.any_withdrawn()
    shards.settle(leave=False)
    view = worker.board.look()
    assert (list(shards.by_number), view.finished, list(view.unfinished)) == ([2], 1, [0, 2])
    assert view.unfinished[0].owner is None
    assert view.clock == shards.clock == shards.pushed_clock == 2
    assert worker.next_chunk(ahead=False).shard.number == 2
    assert worker.next_chunk(ahead=True).shard.number == 0, "it is free for all, and begun again"
    shards.settle(leave=True)
    assert not shards.by_number
    assert all(shard.owner is None for shard in worker.board.look().unfinished.values())


def test_the_clock_goes_on_where_nothing_is_waited_for(worker: OneWorker) -> None:
    """A late worker begins at the least clock, and claims ahead keep what it has come to."""
    other = worker.board.leases.register("other")
    worker.board.queue.claim(other)
    worker.board.queue.advance(other, 0, 1, 40)
    chunk = worker.next_chunk(ahead=False)
    assert (chunk.shard.number, worker.shards.clock) == (1, 40)
    worker.shards.clock += 1
    assert worker.next_chunk(ahead=True).shard.number == 2
    assert worker.shards.clock == 41
    worker.board.leases.expire(other)


def test_what_a_board_has_forgotten_is_not_begun_beside_itself(worker: OneWorker, redis_url: str) -> None:
    """It went back to before the claim: so it has the same data shard claimed again."""
    shards = worker.shards
    with redis.Redis.from_url(redis_url) as client:
        before = {key: client.dump(key) for key in client.keys("ctr:{held:meta}:*")}
        first, second = worker.next_chunk(ahead=False), worker.next_chunk(ahead=True)
        for key, value in before.items():
            client.restore(key, 0, value, replace=True)
    in_work = dict(shards.by_number)
    assert not shards._claim(ahead=True)
    assert shards.by_number == in_work
    assert (first.shard.is_withdrawn, second.shard.is_withdrawn) == (True, False)
    assert first.shard.session.outcome is None
    shards.settle(leave=False)
    assert 0 not in shards.by_number
    assert worker.board.look().unfinished[0].owner is None


def test_nothing_is_left_to_claim(worker: OneWorker) -> None:
    worker.board.stop()
    assert worker.shards.next_chunk(ahead=False) is NoChunk.END
