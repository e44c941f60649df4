"""The clocks of SSP workers on the board of real servers, one Redis and a cluster."""

from __future__ import annotations

import pytest
import redis

from ctr.errors import StoreError
from ctr.ps.board.job_board import JobBoard
from tests.ps.cut_lines import cut_line
from tests.ps.job_boards import Boards, least_clock
from tests.ps.redis_servers import needs_redis

pytestmark = needs_redis


class TestClocks:
    """What bounds the staleness."""

    def test_gate(self, board: JobBoard) -> None:
        board.create("job", b"", shards=9)
        slow, fast = board.leases.register("slow"), board.leases.register("fast")
        gate = board.queue.gate(slow)
        assert (gate.state, gate.pause, gate.live, gate.least_clock) == ("running", None, True, None)
        assert (gate.workers, gate.working, gate.finished) == (2, 0, 0)
        assert board.queue.claim(slow).clock == 0
        assert board.queue.claim(fast).clock == 0
        board.queue.advance(slow, 0, 2, 2)
        for clock in range(1, 8):
            board.queue.advance(fast, 1, clock, clock)
        gate = board.queue.gate(fast)
        assert (gate.least_clock, gate.workers, gate.working) == (2, 2, 2)
        board.queue.done(fast, 1)
        assert board.queue.gate(fast).finished == 1
        board.leases.expire(slow)
        gate = board.queue.gate(fast)
        assert (gate.least_clock, gate.workers, gate.working) == (7, 1, 1)
        assert not board.queue.gate(slow).live
        assert not board.queue.gate("nobody").live

    def test_a_claim_and_a_chunk_take_one_round_trip(self, redis_url: str, boards: Boards) -> None:
        """A new one is claimed, and what is pushed is published, without a transaction that watches."""
        board = boards(redis_url)
        board.create("job", b"", shards=9)
        slow, fast = board.leases.register("slow"), board.leases.register("fast")
        board.queue.claim(slow)
        board.queue.claim(fast)
        board.queue.gate(fast)  # has looked at the leases
        assert board.queue.claim(fast, [1]).shard == 2  # the next new one, as none is free
        with redis.Redis.from_url(redis_url) as client:
            client.config_resetstat()
            assert board.queue.claim(fast, [1, 2]).shard == 3
            claimed = client.info("commandstats")
            assert board.queue.advance(fast, 1, 0, 0)  # the first one has to create its place
            client.config_resetstat()
            for clock in range(1, 8):
                gate = board.queue.advance(fast, 1, clock, clock)
            asked = client.info("commandstats")
        assert gate == board.queue.gate(fast)
        assert (claimed["cmdstat_multi"]["calls"], claimed["cmdstat_get"]["calls"]) == (1, 1)
        assert not {"cmdstat_watch", "cmdstat_hgetall", "cmdstat_zrange"} & claimed.keys()
        assert (gate.least_clock, gate.working) == (0, 2)
        assert asked["cmdstat_get"]["calls"] == 2 * 7  # of the launch, and of the coordinator's lease
        assert not {"cmdstat_watch", "cmdstat_multi"} & asked.keys()
        assert board.look().unfinished[1].progress == 7

    def test_an_earlier_job_changes_no_clock(self, url: str, board: JobBoard, boards: Boards) -> None:
        """Nor does whoever has expired: neither has anything there that it could change."""
        board.create("job", b"", shards=9)
        late = board.leases.register("late")
        assert board.queue.claim(late).shard == 0
        board.finish()
        other = boards(url)
        other.create("job", b"", shards=9)
        here, dead = other.leases.register("here"), other.leases.register("dead")
        assert other.queue.claim(here).shard == 0
        assert other.queue.claim(dead).shard == 1
        with pytest.raises(StoreError, match="another"):
            board.queue.advance(late, 0, 5, 5)
        other.leases.expire(dead)
        assert other.queue.claim(other.leases.register("heir")).shard == 1
        assert other.queue.advance(dead, 1, 6, 0) is None
        view = other.look()
        assert (view.clock, least_clock(view), len(view.workers)) == (0, 0, 2)
        assert [each.progress for each in view.unfinished.values()] == [0, 0]

    def test_a_late_joiner_begins_at_the_least_clock(self, board: JobBoard) -> None:
        board.create("job", b"", shards=9)
        slow, fast = board.leases.register("slow"), board.leases.register("fast")
        board.queue.claim(slow)
        board.queue.claim(fast)
        board.queue.advance(slow, 0, 40, 40)
        board.queue.advance(fast, 1, 42, 42)
        joiner = board.leases.register("joiner")
        assert board.queue.gate(fast).least_clock == 40
        assert board.queue.claim(joiner).clock == 40
        assert least_clock(board.look()) == 40
        board.queue.advance(joiner, 2, 1, 41)
        board.queue.advance(slow, 0, 45, 45)
        assert board.queue.gate(fast).least_clock == 41
        assert board.queue.done(joiner, 2)
        assert board.queue.claim(joiner).clock == 41  # it keeps its own

    def test_nobody_waits_for_a_worker_without_a_data_shard(self, board: JobBoard) -> None:
        board.create("job", b"", shards=2)
        idle, busy = board.leases.register("idle"), board.leases.register("busy")
        board.queue.claim(idle)
        board.queue.claim(busy)
        board.queue.advance(idle, 0, 1, 1)
        assert board.queue.gate(busy).least_clock == 0  # both have shards in work
        board.queue.done(idle, 0)
        board.queue.advance(busy, 1, 30, 30)
        assert board.queue.gate(busy).least_clock == 1
        assert board.queue.claim(idle) is None
        gate = board.queue.gate(busy)
        assert (gate.least_clock, gate.workers, gate.working) == (30, 2, 1)
        other = board.leases.register("other")
        board.leases.expire(busy)
        assert board.queue.claim(other).shard == 1
        board.queue.release(other, 1)
        assert board.queue.claim(idle).clock == 30

    def test_ahead_of_the_last_push_a_worker_keeps_its_clock(self, board: JobBoard) -> None:
        board.create("job", b"", shards=3)
        worker, other = board.leases.register("here"), board.leases.register("other")
        assert board.queue.claim(worker).shard == 0
        assert board.queue.claim(worker, [0], ahead=True).shard == 1
        board.queue.advance(worker, 0, 1, 1)
        assert board.queue.claim(worker, [0, 1], ahead=True) is None, "the last is left to the other"
        assert board.queue.claim(other).shard == 2
        assert board.queue.claim(worker, [0, 1]) is None
        assert board.queue.done(worker, 0)
        gate = board.queue.gate(other)
        assert (gate.least_clock, gate.working) == (1, 2)
        board.leases.expire(worker)
        claim = board.queue.claim(other, [2])
        assert (claim.shard, claim.progress, claim.clock) == (1, 0, 1)

    def test_who_follows_the_dead_begins_where_they_were(self, board: JobBoard) -> None:
        """So that a pause at a clock that nobody has begun stays one."""
        board.create("job", b"", shards=3)
        dead = board.leases.register("dead")
        board.queue.claim(dead)
        board.queue.advance(dead, 0, 20, 20)
        board.leases.expire(dead)
        assert board.look().clock == 20
        claim = board.queue.claim(board.leases.register("heir"))
        assert (claim.shard, claim.progress, claim.clock) == (0, 20, 20)


def test_a_look_at_the_leases_takes_one_round_trip(redis_url: str, boards: Boards) -> None:
    boards(redis_url).create("job", b"", shards=2)
    sent: list[bytes] = []
    with cut_line(redis_url, on_data=sent.append) as line:
        board = boards(line.url)
        worker = board.leases.register("here")
        sent.clear()
        board.queue.gate(worker)  # the first one looks at the leases
        assert [b"ZDIFF" in each for each in sent] == [True, False]
