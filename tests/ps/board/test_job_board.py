"""`JobBoard` against real servers, one Redis and a cluster: what coordinator and workers rely on."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from itertools import pairwise
from threading import Barrier, Event
from typing import Any

import pytest
import redis

from ctr.errors import StoreError
from ps.board.job_board import JobBoard
from ps.redis.model import drop_model
from ps.status.observer import StoreObserver
from ps.wire.keys import BoardPart, Keys
from ps.wire.nodes import connect
from ps.wire.url import parse_redis_url
from tests.ps.job_boards import LONG_S, SHORT_S, Boards, at_once, opened_boards, until
from tests.ps.redis_servers import needs_redis

pytestmark = needs_redis


@pytest.fixture(params=["redis_url", "cluster_url"])
def url(request: pytest.FixtureRequest) -> str:
    found: str = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def boards() -> Iterator[Boards]:
    with opened_boards() as open_board:
        yield open_board


@pytest.fixture
def board(url: str, boards: Boards) -> JobBoard:
    return boards(url)


class TestJob:
    """Creation, states and the end."""

    def test_what_was_created(self, url: str, board: JobBoard, boards: Boards) -> None:
        description = bytes(range(256))
        board.create("job-1", description, shards=7, ranks=2)
        other = boards(url)
        job = other.job()
        assert job is not None
        assert (job.id, job.description, job.shards, job.ranks) == ("job-1", description, 7, 2)
        assert other.job("job-1") == job
        view = other.look()
        assert (view.state, view.message, view.pause, view.shards) == ("running", "", None, 7)
        assert (view.begun, view.finished, view.workers, view.unfinished) == (0, 0, (), {})
        assert [(rank.owner, rank.prepared, rank.pushed) for rank in view.ranks] == [(None, -1, -1)] * 2
        assert view.coordinator_alive

    def test_the_lease_is_the_jobs(self, url: str, boards: Boards) -> None:
        """Unless a worker is told another."""
        boards(url, lease_s=70.0).create("job", b"", shards=1)
        told, asked = boards(url, lease_s=30.0), boards(url, lease_s=None)
        assert asked.job().lease_s == asked.lease_s == 70
        told.leases.register("told")
        asked.leases.register("asked")
        view = asked.look()
        left = {worker.host: worker.lease_left_s for worker in view.workers}
        assert 60 < view.coordinator_lease_left_s <= 70
        assert 20 < left["told"] <= 30
        assert 60 < left["asked"] <= 70

    def test_one_creation_of_a_job(self, url: str, board: JobBoard, boards: Boards) -> None:
        """A job that is resumed keeps its id. Who belongs to it from before must not take it for its own."""
        before = board.create("job", b"", shards=1)
        assert boards(url).job("job", before.launch) == before
        board.stop()
        after = boards(url).create("job", b"", shards=1)
        with pytest.raises(StoreError, match="resumed"):
            boards(url).job("job", before.launch)
        assert boards(url).job("job", after.launch) == after

    def test_no_job(self, board: JobBoard) -> None:
        assert board.job() is None
        with pytest.raises(StoreError, match=r"no job 'x'.*ctr train"):
            board.job("x")
        for request in (board.look, board.stop, lambda: board.leases.register("here"), board.reports):
            with pytest.raises(StoreError, match="no job"):
                request()

    def test_another_job(self, url: str, board: JobBoard, boards: Boards) -> None:
        board.create("job-1", b"", shards=1)
        with pytest.raises(StoreError, match="'job-1', not 'x'"):
            boards(url).job("x")

    def test_a_live_job_is_not_replaced(self, url: str, board: JobBoard, boards: Boards) -> None:
        board.create("old", b"", shards=1)
        other = boards(url)
        with pytest.raises(StoreError, match="'old' is running"):
            other.create("new", b"", shards=1)
        worker = board.leases.register("here")
        board.stop()
        with pytest.raises(StoreError, match="'old' is stopping"):
            other.create("new", b"", shards=1)
        board.leases.expire(worker)
        other.create("new", b"", shards=1)  # stopped, and everybody has left

    @pytest.mark.parametrize("end", [JobBoard.finish, lambda board: board.fail("a reason")])
    def test_a_job_that_is_over_is_replaced(
        self, url: str, board: JobBoard, boards: Boards, end: Callable[[JobBoard], None]
    ) -> None:
        board.create("old", b"", shards=5, ranks=2)
        worker = board.leases.register("here")
        board.queue.claim(worker)
        board.ranks.prepare(1, 3, b"update")
        board.ranks.announce_prepared(1, 3)
        board.report("r", b"")
        board.pause(3)
        end(board)
        other = boards(url)
        other.create("new", b"", shards=6, ranks=2)
        view = other.look()
        assert (view.state, view.message, view.pause, view.begun, view.workers) == (
            "running",
            "",
            None,
            0,
            (),
        )
        assert [rank.prepared for rank in view.ranks] == [-1, -1]
        assert other.ranks.prepared(1, 3) is None
        assert other.reports() == {}

    def test_a_dead_job_is_replaced(self, url: str, boards: Boards) -> None:
        board = boards(url, lease_s=SHORT_S)
        board.create("old", b"", shards=1)
        board.leases.register("here")
        until(lambda: not board.look().coordinator_alive)
        until(lambda: all(worker.lease_left_s <= 0 for worker in board.look().workers))
        boards(url).create("new", b"", shards=1)
        with pytest.raises(StoreError, match="'old' is over, and another"):
            board.look()

    def test_the_coordinator_keeps_its_job(self, url: str, boards: Boards) -> None:
        brief, lasting = boards(url, lease_s=SHORT_S), boards(url)
        brief.create("old", b"", shards=1)
        lasting.heartbeat_coordinator()
        time.sleep(3 * SHORT_S)
        assert lasting.look().coordinator_alive
        with pytest.raises(StoreError, match="'old' is running"):
            boards(url).create("new", b"", shards=1)

    def test_who_belongs_to_an_earlier_job_changes_nothing(
        self, url: str, board: JobBoard, boards: Boards
    ) -> None:
        board.create("job", b"", shards=9, ranks=1)
        worker = board.leases.register("here")
        board.queue.claim(worker)
        board.finish()
        other = boards(url)
        other.create("job", b"", shards=9, ranks=1)  # of the same name, as when it is resumed
        for request in (
            lambda: board.queue.claim(worker),
            lambda: board.leases.heartbeat(worker),
            lambda: board.queue.advance(worker, 0, 5, 5),
            lambda: board.ranks.announce_pushed(0, 5),
            lambda: board.fail("late"),
            lambda: board.report("late", b""),
            lambda: board.queue.gate(worker),
        ):
            with pytest.raises(StoreError, match="another"):
                request()
        board.ranks.prepare(0, 0, b"late")
        assert other.ranks.prepare(0, 0, b"mine") == b"mine"
        view = other.look()
        assert (view.state, view.begun, view.clock, view.ranks[0].pushed) == ("running", 0, 0, -1)

    def test_the_first_end_counts(self, board: JobBoard) -> None:
        board.create("job", b"", shards=1)
        board.stop()
        assert board.look().state == "stopping"
        board.fail("der Grund: ü")
        board.finish()
        board.stop()
        board.fail("another")
        view = board.look()
        assert (view.state, view.message) == ("failed", "der Grund: ü")

    def test_pause(self, board: JobBoard) -> None:
        board.create("job", b"", shards=1, ranks=1)
        worker = board.leases.register("here")
        for at in (0, 17, None):
            board.pause(at)
            assert board.look().pause == at
            assert board.queue.gate(worker).pause == at
            assert board.ranks.gate(worker).pause == at

    def test_reports(self, board: JobBoard) -> None:
        board.create("job", b"", shards=1)
        assert board.reports() == {}
        board.report("a", b"\x00\xff")
        board.report("ü", b"1")
        board.report("ü", b"2")
        assert board.reports() == {"a": b"\x00\xff", "ü": b"2"}

    def test_drop_leaves_nothing(self, url: str, board: JobBoard, boards: Boards, request: Any) -> None:
        board.create("job", b"", shards=9, ranks=5)
        worker = board.leases.register("here")
        board.queue.claim(worker)
        board.ranks.claim(worker)
        board.queue.advance(worker, 0, 1, 1)
        for rank in range(5):
            board.ranks.prepare(rank, 0, b"update")
            board.ranks.announce_prepared(rank, 0)
        board.report("r", b"")
        board.pause(1)
        parsed = parse_redis_url(url)
        with closing(connect(parsed, Keys("default"), 5.0)) as nodes:
            nodes.client().hset(Keys("default").meta, b"incarnation", b"1")
            drop_model(nodes.client(), Keys("default"), b"1")
        servers = request.getfixturevalue("shared_redis" if url.startswith("redis:") else "shared_cluster")
        for server in servers.servers:
            with server.connect() as client:
                assert list(client.scan_iter("*")) == []


class TestQueue:
    """Data shards, and the workers that claim them."""

    def test_in_order(self, board: JobBoard) -> None:
        board.create("job", b"", shards=3)
        first, second, third, idle = (board.leases.register(name) for name in "abcd")
        claims = [board.queue.claim(worker) for worker in (first, second, third)]
        assert [claim and (claim.shard, claim.progress) for claim in claims] == [(0, 0), (1, 0), (2, 0)]
        assert board.queue.claim(idle) is None
        assert board.queue.advance(third, 2, 4, 1)
        view = board.look()
        assert {shard: (s.owner, s.progress) for shard, s in view.unfinished.items()} == {
            0: (first, 0),
            1: (second, 0),
            2: (third, 4),
        }
        assert board.queue.done(first, 0)
        assert board.queue.done(first, 0)  # again, as after a lost answer
        assert board.queue.done(third, 2)
        view = board.look()
        assert (view.begun, view.finished, list(view.unfinished)) == (3, 2, [1])
        assert board.look(shards=False).finished == 2
        assert board.look(shards=False).unfinished == {}
        assert board.queue.done(second, 1)
        assert board.look().finished == 3
        assert board.queue.claim(first) is None

    def test_many_at_once(self, url: str, board: JobBoard, boards: Boards) -> None:
        """Every data shard goes to one worker, and each worker's come in ascending order."""
        shards, workers = 120, 6
        board.create("job", b"", shards=shards)
        claimed: list[list[int]] = [[] for _ in range(workers)]

        def work(w: int) -> None:
            own = boards(url)
            worker = own.leases.register(f"host {w}")
            while claim := own.queue.claim(worker):
                claimed[w].append(claim.shard)
                assert own.queue.advance(worker, claim.shard, 1, claim.clock + 1)
                assert own.queue.done(worker, claim.shard)
            assert own.leases.heartbeat(worker)

        at_once(*(lambda w=w: work(w) for w in range(workers)))
        assert sorted(shard for own in claimed for shard in own) == list(range(shards))
        assert all(a < b for own in claimed for a, b in pairwise(own))
        assert board.look().finished == shards

    def test_one_board_in_several_threads(self, board: JobBoard) -> None:
        board.create("job", b"", shards=60)
        worker = board.leases.register("here")
        over = Event()

        def renew() -> None:
            while not over.is_set():
                assert board.leases.heartbeat(worker)
                assert board.queue.gate(worker).live

        def work() -> None:
            try:
                for shard in range(60):
                    claim = board.queue.claim(worker)
                    assert claim is not None
                    assert claim.shard == shard
                    assert board.queue.done(worker, shard)
            finally:
                over.set()

        at_once(renew, renew, work)
        assert board.look().finished == 60

    def test_a_claim_whose_answer_was_lost(self, board: JobBoard) -> None:
        board.create("job", b"", shards=5)
        worker = board.leases.register("here")
        assert board.queue.claim(worker).shard == 0
        assert board.queue.claim(worker).shard == 0  # which it does not know of
        assert board.queue.done(worker, 0)
        assert board.queue.claim(worker).shard == 1

    def test_a_lease_that_runs_out(self, url: str, board: JobBoard, boards: Boards) -> None:
        """The shard is handed over with its progress, and its old owner is told so."""
        brief = boards(url, lease_s=SHORT_S)
        board.create("job", b"", shards=2)
        lost = brief.leases.register("lost")
        heir = board.leases.register("heir")
        assert brief.queue.claim(lost).shard == 0
        assert brief.queue.advance(lost, 0, 3, 3)
        until(lambda: [worker.id for worker in brief.look().workers] == [heir])
        assert board.look().unfinished[0].owner is None
        claim = board.queue.claim(heir)
        assert (claim.shard, claim.progress) == (0, 3)
        assert board.look().unfinished[0].owner == heir
        assert not brief.queue.gate(lost).live
        assert not brief.queue.advance(lost, 0, 9, 9)
        assert not brief.queue.done(lost, 0)
        brief.queue.release(lost, 0)
        assert not brief.leases.heartbeat(lost)
        assert brief.queue.claim(lost) is None
        assert board.look().unfinished[0].owner == heir
        assert board.look().unfinished[0].progress == 3
        again = board.leases.register("lost")
        assert again != lost
        assert board.queue.claim(again).shard == 1

    @pytest.mark.parametrize(
        "ask",
        [
            lambda board, worker: board.queue.gate(worker),
            lambda board, worker: board.ranks.gate(worker),
            lambda board, worker: board.queue.claim(worker),
        ],
    )
    def test_everybody_who_asks_notices_the_dead(
        self, url: str, board: JobBoard, boards: Boards, ask: Callable[[JobBoard, str], Any]
    ) -> None:
        brief = boards(url, lease_s=SHORT_S)
        board.create("job", b"", shards=1, ranks=1)
        worker = board.leases.register("here")
        for _ in range(100):  # more than are expired at a time
            brief.leases.register("lost")

        def alone() -> bool:
            ask(brief, worker)
            return board.queue.gate(worker).workers == 1

        until(alone)

    def test_a_heartbeat_renews_the_lease(self, board: JobBoard) -> None:
        board.create("job", b"", shards=1)
        worker = board.leases.register("here")

        def left() -> float:
            (found,) = board.look().workers
            assert (found.id, found.host, found.clock) == (worker, "here", None)
            return found.lease_left_s

        assert LONG_S - 60 < left() <= LONG_S
        time.sleep(0.2)
        before = left()
        assert before < LONG_S - 0.1
        assert board.leases.heartbeat(worker)
        assert left() > before

    def test_expire(self, board: JobBoard) -> None:
        board.create("job", b"", shards=9)
        dead, heir = board.leases.register("dead"), board.leases.register("heir")
        board.queue.claim(dead)
        board.queue.claim(heir)
        board.queue.advance(dead, 0, 2, 2)
        board.leases.expire(dead)
        board.leases.expire(dead)
        assert [worker.id for worker in board.look().workers] == [heir]
        assert not board.queue.advance(dead, 0, 3, 3)  # nobody has taken it, but it will be taken
        assert board.queue.done(heir, 1)
        claim = board.queue.claim(heir)
        assert (claim.shard, claim.progress) == (0, 3)  # what the dead pushed last is pushed

    def test_leave_and_release(self, board: JobBoard) -> None:
        board.create("job", b"", shards=9)
        others = [board.leases.register("a"), board.leases.register("b")]
        first, second = board.leases.register("c"), board.leases.register("d")
        for worker in (*others, first):
            board.queue.claim(worker)
        board.queue.advance(first, 2, 7, 1)
        board.queue.release(first, 2)
        board.queue.release(first, 2)
        board.queue.release(second, 0)  # which is not its own
        assert not board.queue.advance(first, 2, 8, 2)
        assert not board.queue.done(first, 2)
        assert board.look().unfinished[2].owner is None
        claim = board.queue.claim(second)
        assert (claim.shard, claim.progress) == (2, 7)
        for worker in (*others, first):
            board.leases.expire(worker)
        for expected in (2, 0, 1, 3):
            assert board.queue.claim(second).shard == expected
            assert board.queue.done(second, expected)

    def test_nothing_is_claimed_while_stopping(self, board: JobBoard) -> None:
        board.create("job", b"", shards=9)
        worker = board.leases.register("here")
        board.queue.claim(worker)
        board.stop()
        assert board.queue.claim(worker) is None
        assert board.queue.advance(worker, 0, 1, 1)
        assert board.queue.gate(worker).state == "stopping"

    def test_numbers_only_grow(self, board: JobBoard) -> None:
        board.create("job", b"", shards=1)
        worker = board.leases.register("here")
        board.queue.claim(worker)
        assert board.queue.advance(worker, 0, 5, 12)
        assert board.queue.advance(worker, 0, 4, 11)
        view = board.look()
        assert (view.unfinished[0].progress, view.workers[0].clock, view.clock) == (5, 12, 12)

    def test_restore(self, url: str, board: JobBoard, boards: Boards) -> None:
        board.create("job", b"", shards=10_000, ranks=2)
        board.restore({7: 3, 9_989: 1}, [4, -1], begun=9_990)
        view = board.look()
        assert (view.begun, view.finished) == (9_990, 9_988)
        assert [(rank.prepared, rank.pushed) for rank in view.ranks] == [(4, 4), (-1, -1)]
        worker = boards(url).leases.register("here")
        for expected in ((7, 3), (9_989, 1), (9_990, 0)):
            claim = board.queue.claim(worker)
            assert (claim.shard, claim.progress) == expected
            assert board.queue.done(worker, claim.shard)
        with pytest.raises(StoreError, match="create it anew"):
            board.restore({}, begun=0)

    def test_restore_after_the_beginning(self, board: JobBoard) -> None:
        board.create("job", b"", shards=10)
        board.queue.claim(board.leases.register("here"))
        with pytest.raises(StoreError, match="create it anew"):
            board.restore({0: 1})


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

    def test_a_chunk_takes_one_round_trip(self, redis_url: str, boards: Boards) -> None:
        """What is pushed is published, and the gate is asked, without a transaction."""
        board = boards(redis_url)
        board.create("job", b"", shards=9)
        slow, fast = board.leases.register("slow"), board.leases.register("fast")
        board.queue.claim(slow)
        board.queue.claim(fast)
        with redis.Redis.from_url(redis_url) as client:
            client.config_resetstat()
            for clock in range(1, 8):
                gate = board.queue.advance(fast, 1, clock, clock)
            asked = client.info("commandstats")
        assert gate == board.queue.gate(fast)
        assert (gate.least_clock, gate.working) == (0, 2)
        assert asked["cmdstat_get"]["calls"] == 7
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
        assert (view.clock, view.least_clock, len(view.workers)) == (0, 0, 2)
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
        assert board.look().least_clock == 40
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


class TestRanks:
    """Rounds."""

    def test_each_worker_gets_one(self, board: JobBoard) -> None:
        board.create("job", b"", shards=9, ranks=3)
        workers = [board.leases.register(f"host {w}") for w in range(4)]
        assert [board.ranks.claim(worker) for worker in workers] == [[0], [1], [2], []]
        assert [board.ranks.claim(worker) for worker in workers] == [[0], [1], [2], []]
        assert [rank.owner for rank in board.look().ranks] == workers[:3]
        assert board.ranks.claim("nobody") == []

    def test_many_at_once(self, url: str, board: JobBoard, boards: Boards) -> None:
        board.create("job", b"", shards=9, ranks=8)
        owned: list[int] = []

        def work() -> None:
            own = boards(url)
            owned.extend(own.ranks.claim(own.leases.register("here")))

        at_once(*[work] * 8)
        assert sorted(owned) == list(range(8))

    def test_ranks_of_workers_that_do_not_come(self, url: str, board: JobBoard, boards: Boards) -> None:
        board.create("job", b"", shards=9, ranks=3)
        first, second = board.leases.register("a"), board.leases.register("b")
        assert board.ranks.claim(first) == [0]
        assert board.ranks.claim(first) == [0]  # the others are kept for those on their way
        assert board.ranks.claim(second) == [1]
        impatient = boards(url, lease_s=SHORT_S)
        assert until(lambda: len(impatient.ranks.claim(first)) == 2)
        assert board.ranks.claim(first) == [0, 2]

    def test_takeover_and_return(self, board: JobBoard) -> None:
        board.create("job", b"", shards=9, ranks=2)
        dead, heir = board.leases.register("dead"), board.leases.register("heir")
        assert (board.ranks.claim(dead), board.ranks.claim(heir)) == ([0], [1])
        board.ranks.prepare(0, 4, b"update")
        board.ranks.announce_prepared(0, 4)
        board.leases.expire(dead)
        assert board.ranks.claim(dead) == []
        assert board.look().ranks[0].owner is None
        assert board.ranks.claim(heir) == [0, 1]
        assert board.ranks.gate(heir).prepared == (4, -1)
        assert board.ranks.prepare(0, 4, b"another") == b"update"
        newcomer = board.leases.register("newcomer")
        assert board.ranks.claim(newcomer) == []
        assert board.ranks.claim(heir) == [0]
        assert board.ranks.claim(heir) == [0]  # the free one is for the newcomer
        assert board.ranks.claim(newcomer) == [1]

    def test_the_first_prepared_update_counts(self, url: str, board: JobBoard, boards: Boards) -> None:
        board.create("job", b"", shards=9, ranks=2)
        late = boards(url)
        assert board.ranks.prepared(1, 0) is None
        assert board.ranks.prepare(1, 0, b"first") == b"first"
        assert late.ranks.prepare(1, 0, b"second") == b"first"
        assert board.ranks.prepare(1, 0, b"first") == b"first"
        assert late.ranks.prepared(1, 0) == b"first"
        assert board.ranks.prepared(0, 0) is None
        assert board.ranks.prepare(1, 1, b"") == b""
        assert late.ranks.prepare(1, 1, b"late") == b""
        assert late.ranks.prepared(1, 0) is None
        assert late.ranks.prepare(1, 0, b"later still") is None
        assert late.ranks.prepared(1, 0) is None
        assert board.ranks.prepared(1, 1) == b""
        assert board.ranks.prepare(1, 7, b"x" * 3_000_000) == b"x" * 3_000_000

    def test_many_prepare_at_once(self, url: str, board: JobBoard, boards: Boards) -> None:
        board.create("job", b"", shards=9, ranks=1)
        counted: list[list[bytes | None]] = [[] for _ in range(4)]
        together = Barrier(4)

        def work(w: int) -> None:
            own = boards(url)
            for round_ in range(50):
                together.wait(30)
                counted[w].append(own.ranks.prepare(0, round_, b"%d of %d" % (round_, w)))

        at_once(*(lambda w=w: work(w) for w in range(4)))
        for round_, updates in enumerate(zip(*counted, strict=True)):
            assert len(set(updates) - {None}) == 1
            assert re.fullmatch(b"%d of [0-3]" % round_, next(each for each in updates if each is not None))

    def test_announcements_only_grow(self, board: JobBoard) -> None:
        board.create("job", b"", shards=9, ranks=2)
        worker = board.leases.register("here")
        for round_ in (2, 3, 2):
            board.ranks.announce_prepared(0, round_)
            board.ranks.announce_pushed(1, round_ + 10)
        gate = board.ranks.gate(worker)
        assert (gate.prepared, gate.pushed) == ((3, -1), (-1, 13))
        assert (gate.state, gate.live) == ("running", True)
        assert not board.ranks.gate("nobody").live
        assert [(rank.prepared, rank.pushed) for rank in board.look().ranks] == [(3, -1), (-1, 13)]


class TestDamage:
    """Keys that somebody has deleted or overwritten in mid-job: errors of ours, or none, but no others."""

    @pytest.mark.parametrize("ranks", [0, 2])
    @pytest.mark.parametrize("part", list(BoardPart))
    @pytest.mark.parametrize("how", ["deleted", "a string", "a list"])
    def test_a_key(self, redis_url: str, boards: Boards, part: BoardPart, how: str, ranks: int) -> None:
        board = boards(redis_url, patience_s=0.2)
        board.create("job", b"", shards=9, ranks=ranks)
        worker = board.leases.register("here")
        key = Keys("default").board(part)
        with redis.Redis.from_url(redis_url) as client:
            client.delete(key)
            if how == "a string":
                client.set(key, "x")
            if how == "a list":
                client.rpush(key, "x")
        steps: list[Callable[[], object]] = [
            board.look,
            lambda: board.look(shards=False),
            lambda: board.leases.heartbeat(worker),
            lambda: board.leases.register("there"),
            board.heartbeat_coordinator,
            lambda: board.report("life", b"1"),
            board.reports,
            lambda: board.pause(1),
            lambda: board.job("job"),
            board.stop,
            board.finish,
            lambda: boards(redis_url, patience_s=0.2).job(),
        ]
        if ranks:
            steps += [lambda: board.ranks.claim(worker), lambda: board.ranks.gate(worker)]
        else:
            steps += [lambda: board.queue.claim(worker), lambda: board.queue.gate(worker)]
        for step in steps:
            with suppress(StoreError):
                step()
        with suppress(StoreError):
            StoreObserver(parse_redis_url(redis_url)).look()
