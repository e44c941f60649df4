"""`JobBoard` against real servers, one Redis and a cluster: what coordinator and workers rely on."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import fields
from typing import Any

import pytest
import redis

from ctr.errors import StoreError
from ctr.ps.board.job_board import JobBoard
from ctr.ps.redis.creation import drop_model
from ctr.ps.status.observer import StoreObserver
from ctr.ps.wire.connection import Connection
from ctr.ps.wire.keys import BoardKeys, Keys
from ctr.ps.wire.nodes import connect
from ctr.ps.wire.url import parse_redis_url
from ctr.workers.timing import Heartbeat
from tests.ps.job_boards import SHORT_S, Boards, until
from tests.ps.redis_servers import needs_redis

pytestmark = needs_redis


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
        assert (view.started, view.finished, view.workers, view.unfinished) == (0, 0, (), {})
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
        with (
            Heartbeat(SHORT_S / 5, board.heartbeat_coordinator),
            pytest.raises(StoreError, match="'old' is running"),
        ):
            other.create("new", b"", shards=1)
        worker = board.leases.register("here")
        board.stop()
        with (
            Heartbeat(SHORT_S / 5, lambda: board.leases.heartbeat(worker)),
            pytest.raises(StoreError, match="'old' is stopping"),
        ):
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
        assert (view.state, view.message, view.pause, view.started, view.workers) == (
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
        board = boards(url, lease_s=1.0)
        board.create("old", b"", shards=1)
        with Heartbeat(SHORT_S, board.heartbeat_coordinator):
            time.sleep(1.5)
            assert board.look().coordinator_alive
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
        assert (view.state, view.started, view.clock, view.ranks[0].pushed) == ("running", 0, 0, -1)

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
        with closing(Connection(connect(parsed, 5.0), patience_s=5.0)) as connection:
            connection.ask(("HSET", Keys("default").meta, "incarnation", 1))
            drop_model(connection, Keys("default"), b"1")
        servers = request.getfixturevalue("shared_redis" if url.startswith("redis:") else "shared_cluster")
        for server in servers.servers:
            with server.connect() as client:
                assert list(client.scan_iter("*")) == []


class TestDamage:
    """Keys that somebody has deleted or overwritten in mid-job: errors of ours, or none, but no others."""

    @pytest.mark.parametrize("ranks", [0, 2])
    @pytest.mark.parametrize("part", [field.name for field in fields(BoardKeys)])
    @pytest.mark.parametrize("how", ["deleted", "a string", "a list"])
    def test_a_key(self, redis_url: str, boards: Boards, part: str, how: str, ranks: int) -> None:
        board = boards(redis_url, patience_s=0.2)
        board.create("job", b"", shards=9, ranks=ranks)
        worker = board.leases.register("here")
        key = getattr(Keys("default").board, part)
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
