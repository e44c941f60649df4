"""Jobs through real Redis servers while processes are killed and frozen, and servers fail."""

from __future__ import annotations

import fcntl
import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from threading import Event, Thread

import numpy as np
import pytest
import redis

from ctr.errors import StoreError
from ctr.features import FeatureSpec, open_source
from ctr.learn.result import TrainResult
from ctr.learn.rounds import Rounds, TrainSettings, read_out
from ctr.optimizers.ftrl import Ftrl
from ctr.ps import Filters, JobBoard, MemoryStore, PackedPush, RedisStore, Token, parse_redis_url
from ctr.ps.wire.keys import Keys
from ctr.workers.description import Consistency, JobDescription, absolute, input_bytes
from ctr.workers.report import read_stalls
from ctr.workers.timing import Heartbeat
from tests.ctr.distributed_jobs import (
    ADDITIVE,
    LEASE_S,
    ROWS,
    Command,
    Helpers,
    StartJob,
    describe,
    frozen,
    in_memory,
    in_threads,
    process_of,
    pushed,
    same,
    same_sums,
    undisturbed,
    wait_for,
)
from tests.ps.redis_servers import StartRedis, needs_redis, timing_sensitive

pytestmark = needs_redis


@timing_sensitive
class TestWorkers:
    @pytest.mark.parametrize(("seed", "hashed", "passes"), [(1, True, 1), (2, False, 2), (3, True, 2)])
    def test_a_killed_one_changes_no_bit_of_rounds(
        self,
        start_job: StartJob,
        job_log: Path,
        job_spec: FeatureSpec,
        job_data: Path,
        redis_url: str,
        seed: int,
        hashed: bool,
        passes: int,
    ) -> None:
        chances = random.Random(seed)
        job = describe(*((job_data, None) if hashed else (job_log, job_spec)), passes=passes)
        whole, report = undisturbed(describe(job_data, passes=passes), redis_url)
        running = start_job(job, redis_url)
        running.gather()
        at = chances.randrange(1, 7 * passes)
        view = running.once(lambda view: pushed(view) >= at)
        assert view is not None
        os.kill(process_of(view, chances.randrange(2)), signal.SIGKILL)
        result = running.result()
        did = result.result
        assert same(result.state, whole)
        assert (did.examples, did.rows) == (passes * ROWS, ROWS)
        assert did.progressive.examples == ROWS
        assert did.progressive.logloss == pytest.approx(report.progressive.logloss, rel=1e-12)
        (dead,) = running.facts().dead_workers
        assert "signal 9" in dead

    @pytest.mark.parametrize(("seed", "consistency"), [(1, "ssp"), (2, "asp")])
    def test_a_killed_ones_shard_is_trained_to_its_end(
        self,
        start_job: StartJob,
        job_data: Path,
        redis_url: str,
        seed: int,
        consistency: str,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        """Every chunk counts once."""
        chances = random.Random(seed)
        filters = Filters(cache=True, presence=True)
        job = describe(job_data, consistency=consistency, passes=2, ftrl=ADDITIVE, filters=filters, workers=3)
        running = start_job(job, redis_url)
        running.gather()
        at = chances.randrange(3, 11)
        view = running.once(lambda view: pushed(view) >= at)
        assert view is not None
        os.kill(process_of(view, chances.randrange(3)), signal.SIGKILL)
        result = running.result()
        assert same_sums(result.state, in_memory(job)[0])
        assert result.result.examples == 2 * ROWS
        (dead,) = running.facts().dead_workers
        assert f"a worker died, others continue: {dead}\n" in capsys.readouterr().err

    def test_what_a_killed_one_has_logged_counts_once(
        self, start_job: StartJob, job_data: Path, redis_url: str
    ) -> None:
        """Each example adds a quarter to the second number of its slots once."""
        small = Ftrl(alpha=1.0, beta=1e20, l1=2.0)  # weights are zero until a slot was seen some more
        filters = Filters(kkt=True)
        job = describe(job_data, consistency="asp", passes=3, ftrl=small, filters=filters)
        slots, expected = in_memory(job)[0]
        running = start_job(job, redis_url)
        running.gather()
        # In the middle of a data shard of four chunks.
        view = running.once(lambda view: any(shard.progress == 3 for shard in view.unfinished.values()))
        assert view is not None
        owner = next(shard.owner for shard in view.unfinished.values() if shard.progress == 3)
        number = next((n for n, worker in enumerate(view.workers) if worker.id == owner), 0)
        os.kill(process_of(view, number), signal.SIGKILL)
        found_slots, found = running.result().state
        sums = np.zeros((1 << job.feature_spec().bits, 2), np.float32)
        sums[found_slots] = found
        assert not np.round((sums[slots] - expected)[:, 1] / 0.25).any()

    @pytest.mark.parametrize("consistency", ["bsp", "ssp"])
    def test_one_that_wakes_up_after_it_was_taken_for_dead(
        self, start_job: StartJob, job_data: Path, redis_url: str, consistency: str
    ) -> None:
        """It goes on where it was, on what others have long trained; then it helps again."""
        flags = {} if consistency == "bsp" else {"consistency": "ssp", "ftrl": ADDITIVE}
        job = describe(job_data, passes=4, **flags)
        running = start_job(job, redis_url)
        running.gather()
        view = running.once(lambda view: pushed(view) > 10)
        assert view is not None
        with running.board() as board:
            with frozen(process_of(view, 0)):
                alone = running.once(lambda view: len(view.workers) == 1)
                assert alone is not None
                assert running.once(lambda view: pushed(view) > pushed(alone) + 6)
                board.pause(-1)  # or the other could be done before this one is back
            wait_for(lambda: len(board.look().workers) == 2)
            board.pause(None)
        result = running.result()
        whole = undisturbed(job, redis_url)[0] if consistency == "bsp" else in_memory(job)[0]
        assert (same if consistency == "bsp" else same_sums)(result.state, whole)
        assert running.facts().dead_workers == []
        assert running.facts().workers_seen == 2
        if consistency == "bsp":
            assert running.facts().report.progressive.examples == ROWS

    @pytest.mark.parametrize("consistency", ["bsp", "asp"])
    def test_the_last_one_is_killed(
        self, start_job: StartJob, job_data: Path, redis_url: str, consistency: str
    ) -> None:
        running = start_job(describe(job_data, consistency=consistency, passes=500), redis_url)
        running.gather()
        assert running.once(lambda view: pushed(view) > 5)
        for pid in running.pids():
            os.kill(pid, signal.SIGKILL)
        with pytest.raises(StoreError, match=r"no worker is left.*signal 9.*signal 9"):
            running.result()

    def test_the_last_one_is_elsewhere_and_its_lease_runs_out(
        self, start_job: StartJob, job_data: Path, redis_url: str
    ) -> None:
        """As it may when the board goes back to an old snapshot. It registers again, and goes on."""
        job = describe(job_data)
        running = start_job(job, redis_url, lease_s=2.0)
        running.gather(until=2)
        helper = Command("worker", "--store", redis_url)
        assert running.once(lambda view: len(view.workers) == 3)
        with frozen(helper.popen.pid):
            for pid in running.pids():
                os.kill(pid, signal.SIGKILL)
            assert running.once(lambda view: not view.workers)
            time.sleep(0.5)  # within a lease
        running.pause(None)
        assert same(running.result().state, undisturbed(job, redis_url)[0])
        assert helper.end()[0] == 0

    def test_all_are_killed_while_the_job_is_stopped(
        self, start_job: StartJob, job_data: Path, redis_url: str
    ) -> None:
        """Nobody is left to bring the round to its end."""
        running = start_job(describe(job_data, passes=500), redis_url)
        running.gather()
        assert running.once(lambda view: pushed(view) > 5)
        pids = running.pids()
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        running.stop.set()
        time.sleep(LEASE_S / 2)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        assert running.result().result.interrupted


@contextmanager
def hanging(path: Path) -> Iterator[None]:
    """Whoever opens this file, which nobody has open, waits: for the block's end, or 45 s."""
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)
    try:
        with path.open("rb+") as file:
            fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
            yield
            fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    finally:
        signal.signal(signal.SIGIO, before)


@pytest.fixture
def logs(job_log: Path, tmp_path: Path) -> list[Path]:
    rows = job_log.read_bytes().splitlines(keepends=True)
    parts = [tmp_path / "first.tsv", tmp_path / "second.tsv"]
    parts[0].write_bytes(b"".join(rows[:2_000]))
    parts[1].write_bytes(b"".join(rows[2_000:]))
    return parts


@timing_sensitive
class TestStalls:
    """Workers that live and do not get on: their input is on a disk that hangs, from the second file on."""

    def job(self, logs: list[Path], spec: FeatureSpec, workers: int) -> JobDescription:
        job = describe(logs[0], spec, consistency="ssp", workers=workers, ftrl=ADDITIVE, stall_s=2.0)
        both = {"inputs": absolute(logs), "input_bytes": input_bytes(logs), "rows": ROWS}
        return job.model_copy(update=both)

    def test_the_others_go_on_with_what_it_had(
        self, logs: list[Path], job_spec: FeatureSpec, redis_url: str
    ) -> None:
        """And when the disk answers again, it helps again."""
        job, url = self.job(logs, job_spec, 2), parse_redis_url(redis_url)
        with (
            closing(RedisStore(url, bits=job_spec.bits, width=Ftrl.width, facts=job.facts())) as store,
            closing(JobBoard(url, lease_s=LEASE_S)) as board,
        ):
            board.create("stalls", job.to_bytes(), shards=job.plan().shards)
            board.pause(-1)
            helpers = Helpers(redis_url, 2)
            wait_for(lambda: len(board.look().workers) == 2)
            hosts = {worker.host for worker in board.look().workers}
            with hanging(logs[1]):
                board.pause(None)
                wait_for(lambda: len(board.look().workers) < 2)
            helpers.join()
            assert helpers.errors == []
            assert same_sums(read_out(store), in_memory(job)[0])
            assert "no progress for" in read_stalls(board, hosts)[0]

    @pytest.mark.parametrize("consistency", ["ssp", "bsp"])
    def test_waiting_for_one_who_does_not_get_on_is_no_progress(
        self, job_data: Path, redis_url: str, consistency: Consistency
    ) -> None:
        """Though that one renews its lease. While others get on, or the coordinator pauses, it is none."""
        job = describe(
            job_data, consistency=consistency, workers=2, passes=3, ftrl=ADDITIVE, staleness=0, stall_s=1.2
        )
        url = parse_redis_url(redis_url)
        with (
            closing(RedisStore(url, bits=18, width=Ftrl.width, facts=job.facts())) as store,
            closing(JobBoard(url, lease_s=LEASE_S)) as board,
            ExitStack() as other_lives,
        ):
            board.create("waits", job.to_bytes(), shards=job.plan().shards, ranks=job.ranks)
            other = board.leases.register("other")
            other_lives.enter_context(Heartbeat(LEASE_S / 5, lambda: board.leases.heartbeat(other)))
            shard = 0 if job.ranks else board.queue.claim(other).shard
            assert not job.ranks or board.ranks.claim(other) == [0]
            helpers = Helpers(redis_url, 1)
            wait_for(lambda: len(board.look().workers) == 2)
            (helper,) = {worker.host for worker in board.look().workers} - {"other"}

            everywhere = np.ones(store.partitions.count, np.bool_)

            def get_on(number: int) -> None:
                if job.ranks:
                    round_ = number - 1
                    wait_for(lambda: board.look().ranks[1].prepared == round_)
                    board.ranks.announce_prepared(0, round_)
                    nothing = np.empty(0, np.uint32), np.empty(0, np.int64)
                    store.push_packed(PackedPush(*nothing, Token("waits", 0, round_)), everywhere)
                    board.ranks.announce_pushed(0, round_)
                else:
                    board.queue.advance(other, shard, number, number)

            for number in range(1, 6):
                time.sleep(0.3)
                get_on(number)
            assert read_stalls(board, [helper]) == []
            board.pause(0)
            for _ in range(5):
                time.sleep(0.3)
                board.heartbeat_coordinator()
            assert read_stalls(board, [helper]) == []
            board.pause(None)
            wait_for(lambda: read_stalls(board, [helper]))
            board.fail("seen")
            helpers.join()

    def test_nobody_is_left_who_gets_on(
        self, start_job: StartJob, logs: list[Path], job_spec: FeatureSpec, redis_url: str
    ) -> None:
        running = start_job(self.job(logs, job_spec, 1), redis_url)
        with running.board() as board:
            board.pause(-1)
            wait_for(lambda: board.look().workers)
            with hanging(logs[1]):
                board.pause(None)
                with pytest.raises(StoreError, match=r"no worker makes progress.*no progress for \d+ s"):
                    running.result()


@pytest.mark.slow
def test_a_job_in_memory_whose_disk_hangs_can_be_stopped(logs: list[Path], job_spec: FeatureSpec) -> None:
    """With what was learnt before. It waits 10 s for the disk, which takes nobody the processor."""
    source, stop, begun = open_source(logs, job_spec), Event(), Event()
    results: list[TrainResult] = []

    def work() -> None:
        results.append(
            Rounds(
                source,
                MemoryStore(job_spec.bits, Ftrl.width),
                Ftrl(),
                TrainSettings(chunk=1_500),
                on_progress=lambda _: begun.set(),
                progress_every_s=0,
                stop=stop,
            ).train()
        )

    with hanging(logs[1]):
        thread = Thread(target=work, daemon=True)
        thread.start()
        assert begun.wait(60)
        stop.set()
        thread.join(30)
    assert [(result.examples, result.interrupted) for result in results] == [(1_500, True)]


@timing_sensitive
class TestServers:
    def test_updates_that_a_failover_loses_are_prepared_again(self, job_data: Path, redis_url: str) -> None:
        job, over = describe(job_data, passes=2), Event()
        whole, _ = undisturbed(job, redis_url)

        def lose() -> None:
            ranks = random.Random(0)
            with redis.Redis.from_url(redis_url) as client:
                while not over.wait(0.03 * ranks.random()):
                    client.delete(Keys("default").rank(ranks.randrange(2)))

        thread = Thread(target=lose)
        thread.start()
        try:
            assert same(in_threads(job, redis_url, 2)[0], whole)
        finally:
            over.set()
            thread.join()

    @pytest.mark.parametrize("workers", [1, 2])
    def test_a_primary_that_comes_back_empty_ends_the_job(
        self, start_job: StartJob, start_redis: StartRedis, job_data: Path, workers: int
    ) -> None:
        with start_redis() as servers:
            job = describe(job_data, consistency="ssp", workers=workers, passes=500)
            running = start_job(job, servers.url)
            running.gather()
            assert running.once(lambda view: pushed(view) > 5)
            servers.servers[0].restart()
            with pytest.raises(StoreError, match=r"lost (its|the) data"):
                running.result()

    @pytest.mark.parametrize("staleness", [0, 2])
    def test_full_memory_ends_the_job(
        self, start_job: StartJob, start_redis: StartRedis, job_data: Path, staleness: int
    ) -> None:
        """Of one of two nodes, which is not the board's: pushes to it fail, and nothing else does."""
        servers = start_redis(nodes=2)
        job = describe(job_data, consistency="ssp", staleness=staleness, passes=500)
        running = start_job(job, servers.url)
        running.gather()
        with running.board() as board:
            assert running.once(lambda view: pushed(view) > 5)
            _, port = board._record.connection.nodes.owner(board._record.key.job)
        (other,) = [server for server in servers.servers if server.port != port]
        with other.connect() as client:
            client.config_set("maxmemory", "1mb")
        began = time.monotonic()
        with pytest.raises(StoreError, match="maxmemory"):
            running.result()
        assert time.monotonic() - began < 20
