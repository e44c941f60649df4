"""Jobs through real Redis servers that nothing disturbs: what they come to, and who may help with them."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest

from ctr.cli.ps.status import look
from ctr.distributed.run import StoreSettings, adopt, train_distributed
from ctr.errors import CtrError, DataError, ModelError, StoreError
from ctr.features import FeatureSpec
from ctr.jobs.training.distributed import describe_job
from ctr.jobs.training.setup import set_up
from ctr.learn.learner import Learner
from ctr.optimizers.ftrl import Ftrl
from ctr.ps import (
    DEFAULT_FILTERS,
    BoardView,
    Claim,
    Filters,
    JobBoard,
    PackedPush,
    RedisStore,
    Saturations,
    parse_redis_url,
)
from ctr.ps.partitions import Bools
from ctr.ps.status.observer import StoreObserver
from ctr.settings import TrainJob
from ctr.workers import Consistency, input_digest
from ctr.workers.ssp_worker import SspWorker
from ctr.workers.timing import Reports
from ctr.workers.worker import sessions_of, take_part
from tests.command_line import Cli
from tests.ctr.distributed_jobs import (
    ADDITIVE,
    CHUNK,
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
    result_in_memory,
    same,
    same_sums,
    source_of,
    undisturbed,
    weights,
)
from tests.ps.job_boards import least_clock
from tests.ps.redis_servers import needs_redis, timing_sensitive

pytestmark = needs_redis


def test_a_worker_refuses_another_build_of_the_data_set(job_data: Path) -> None:
    job = describe(job_data)
    job.model_copy(update={"dataset": job.open_source().manifest.digest}).open_source()
    with pytest.raises(DataError, match="was it built again"):
        job.model_copy(update={"dataset": "0" * 12}).open_source()


class TestRounds:
    """`bsp`: the same to the bit, whatever the timing."""

    def test_any_number_of_workers_and_any_store(
        self, job_data: Path, redis_url: str, cluster_url: str
    ) -> None:
        job = describe(job_data, workers=3, passes=2, chunk=400)
        first, report = in_threads(job, redis_url, 1)
        for workers, url in ((3, redis_url), (4, cluster_url)):
            state, _ = in_threads(job, url, workers)
            assert same(state, first)
        assert report.examples == 2 * job.rows
        exact, _ = in_memory(job)
        assert np.abs(weights(first, job) - weights(exact, job)).mean() < 1e-3

    def test_processes(self, start_job: StartJob, job_data: Path, redis_url: str) -> None:
        job = describe(job_data)
        running = start_job(job, redis_url)
        running.gather()
        result = running.result()
        assert same(result.state, undisturbed(job, redis_url)[0])
        did, (_, logloss) = result.result, in_memory(job)
        assert (did.examples, did.rows, did.passes, did.interrupted) == (job.rows, job.rows, 1, False)
        assert (running.facts().workers_seen, running.facts().dead_workers) == (2, [])
        assert did.progressive.examples == job.rows
        assert did.progressive.logloss == pytest.approx(logloss, abs=2e-4)

    def test_raw_files_give_what_hashed_ones_give(
        self, job_log: Path, job_spec: FeatureSpec, job_data: Path, redis_url: str
    ) -> None:
        raw, _ = in_threads(describe(job_log, job_spec, passes=2), redis_url, 2)
        assert same(raw, undisturbed(describe(job_data, passes=2), redis_url)[0])


class TestClocks:
    """`ssp` and `asp`: every chunk counts once."""

    @pytest.mark.parametrize("consistency", ["ssp", "asp"])
    def test_several_workers_lose_and_double_nothing(
        self, job_data: Path, redis_url: str, consistency: str
    ) -> None:
        filters = Filters(cache=True, presence=True, defer=1e-5)
        job = describe(job_data, consistency=consistency, passes=2, ftrl=ADDITIVE, filters=filters)
        state, report = in_threads(job, redis_url, 3)
        assert same_sums(state, in_memory(job)[0])
        assert report.progressive.examples == report.later_passes.examples == job.rows

    def test_one_worker_learns_the_same_with_filters(self, job_data: Path, redis_url: str) -> None:
        flags = {"consistency": "ssp", "workers": 1, "ftrl": Ftrl(l1=0.5), "passes": 2}
        job = describe(job_data, **flags)
        plain, report = in_threads(job, redis_url, 1)
        for filters in (
            Filters(cache=True, presence=True),
            Filters(cache=True, defer=1e-4),
            Filters(presence=True, kkt=True),
        ):
            filtered, its_report = in_threads(describe(job_data, **flags, filters=filters), redis_url, 1)
            assert same(filtered, plain)
            assert its_report.counts.pushed < report.counts.pushed or not filters.defers
        exact, logloss = in_memory(job)
        assert np.abs(weights(plain, job) - weights(exact, job)).mean() < 1e-3
        assert report.progressive.logloss == pytest.approx(logloss, abs=2e-4)

    def test_several_workers_learn_about_as_well(
        self, start_job: StartJob, job_data: Path, redis_url: str
    ) -> None:
        filters = Filters(cache=True, presence=True)
        job = describe(job_data, consistency="ssp", filters=filters, passes=2)
        running = start_job(job, redis_url)
        running.gather()
        found = running.result()
        did, told = found.result, running.facts()
        _, alone = undisturbed(describe(job_data, consistency="ssp", workers=1, passes=2), redis_url)
        assert told.report.later_passes.logloss == pytest.approx(alone.later_passes.logloss, rel=0.04)
        assert (did.examples, did.rows, told.workers_seen) == (2 * ROWS, ROWS, 2)
        assert 0 < did.seconds < 30
        assert running.fractions == sorted(running.fractions)

    def test_peers_are_the_workers_that_have_work(self, job_data: Path, redis_url: str) -> None:
        job, url = describe(job_data, consistency="asp"), parse_redis_url(redis_url)
        peers = set()

        class Noting(Learner):
            def learn(self, *arguments, **settings):
                peers.add(settings["peers"])
                return super().learn(*arguments, **settings)

        facts = {"bits": job.feature_spec().bits, "width": Ftrl.width, "facts": job.facts()}
        with closing(RedisStore(url, **facts)) as store, closing(JobBoard(url)) as board:
            board.create("peers", job.to_bytes(), shards=job.plan().shards)
            idle, at_work = board.leases.register("idle"), board.leases.register("at work")
            assert board.queue.claim(at_work) is not None
            for expected in (2, 1):
                worker = SspWorker(board, sessions_of(job, store, "peers"), source_of(job), job)
                worker.learner = Noting(job.safe_adding)
                worker_id = board.leases.register("here")
                assert worker.run(worker_id, lambda: len(peers) > 0, Reports(lambda: b"", lambda _: None))
                board.leases.expire(worker_id)
                assert peers == {expected}
                peers.clear()
                board.leases.expire(at_work)
            board.leases.expire(idle)

    def test_long_logs_are_folded(self, job_data: Path, redis_url: str) -> None:
        job, url = (
            describe(job_data, consistency="ssp", filters=Filters(defer=1e9)),
            parse_redis_url(redis_url),
        )
        facts = {"bits": job.feature_spec().bits, "width": Ftrl.width, "facts": job.facts()}
        with closing(RedisStore(url, **facts)) as store, closing(JobBoard(url)) as board:
            board.create("folds", job.to_bytes(), shards=job.plan().shards)
            worker = SspWorker(board, sessions_of(job, store, "folds"), source_of(job), job)
            here = board.leases.register("here")
            assert worker.run(here, lambda: False, Reports(lambda: b"", lambda _: None))
            one_of_each = np.arange(0, 1 << store.bits, store.layout.pieces.size, dtype=np.uint32)
            assert store.pull_packed(one_of_each).folds.max() >= 1

    def test_a_worker_that_fails_folds_nothing_more(
        self, job_data: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        job, url, folded = describe(job_data, consistency="ssp"), parse_redis_url(redis_url), Event()

        class Failing(Learner):
            def learn(self, *arguments, **settings):
                if folded.is_set():
                    raise CtrError("it fails")
                return super().learn(*arguments, **settings)

        def fold_log() -> bool:
            folded.set()
            return not over.wait(0.01)  # there is always more

        facts = {"bits": job.feature_spec().bits, "width": Ftrl.width, "facts": job.facts()}
        with closing(RedisStore(url, **facts)) as store, closing(JobBoard(url)) as board:
            board.create("fails", job.to_bytes(), shards=job.plan().shards)
            sessions, over = sessions_of(job, store, "fails"), Event()
            monkeypatch.setattr(sessions, "fold_log", fold_log)
            worker = SspWorker(board, sessions, source_of(job), job)
            worker.learner = Failing(job.safe_adding)
            here, reports = board.leases.register("here"), Reports(lambda: b"", lambda _: None)
            with ThreadPoolExecutor(1) as pool:
                ran = pool.submit(worker.run, here, lambda: False, reports)
                try:
                    with pytest.raises(CtrError, match="it fails"):
                        ran.result(20)
                finally:
                    over.set()

    def test_nobody_waits_for_a_worker_whose_last_push_arrives_while_it_asks_for_more(
        self, job_data: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        job, url, over = describe(job_data, consistency="asp"), parse_redis_url(redis_url), Event()
        facts = {"bits": job.feature_spec().bits, "width": Ftrl.width, "facts": job.facts()}
        with closing(RedisStore(url, **facts)) as store, closing(JobBoard(url)) as board:
            shards = job.plan().shards
            board.create("last", job.to_bytes(), shards=shards)
            at_work, here = board.leases.register("at work"), board.leases.register("here")
            assert board.queue.claim(at_work) is not None
            claim = board.queue.claim

            def slowly(push: PackedPush, only: Bools | None) -> list[int]:
                time.sleep(0.2)
                return store.push_packed(push, only)

            worker = SspWorker(board, sessions_of(job, store, "last", slowly), source_of(job), job)

            def late(
                asking: str, held: Collection[int] = (), *, ahead: bool = False, **options: Any
            ) -> Claim | None:
                found = claim(asking, held, ahead=ahead, **options)
                if found is None and held and not ahead:
                    while any(shard.owner == here for shard in board.look().unfinished.values()):
                        time.sleep(0.01)
                    time.sleep(0.1)
                return found

            monkeypatch.setattr(board.queue, "claim", late)
            with ThreadPoolExecutor(1) as pool:
                ran = pool.submit(worker.run, here, over.is_set, Reports(lambda: b"", lambda _: None))
                until = time.monotonic() + 20
                gate = board.queue.gate(at_work)
                while (gate.working > 1 or gate.finished < shards - 1) and time.monotonic() < until:
                    time.sleep(0.01)
                    gate = board.queue.gate(at_work)
                over.set()
                assert ran.result()
            assert (gate.working, gate.finished) == (1, shards - 1)


class TestAdmission:
    """`--admit`: what is left out is what training in memory leaves out."""

    def test_the_slots_of_training_in_memory(self, job_data: Path, redis_url: str) -> None:
        job = describe(job_data, consistency="ssp", workers=1, admit=0.3)
        state, report = in_threads(job, redis_url, 1)
        exact, result = result_in_memory(job)
        assert np.array_equal(state[0], exact[0])
        assert np.abs(weights(state, job) - weights(exact, job)).mean() < 1e-3
        assert report.admissions == result.admissions
        assert 0.65 < report.admissions.left_out / report.admissions.asked < 0.75
        everything, _ = in_memory(describe(job_data, consistency="ssp", workers=1))
        assert len(state[0]) < 0.7 * len(everything[0])

    def test_in_rounds_it_is_the_same_for_any_number_of_workers(self, job_data: Path, redis_url: str) -> None:
        job = describe(job_data, workers=3, admit=0.3)
        (one, report), (three, its_report) = (in_threads(job, redis_url, count) for count in (1, 3))
        assert same(one, three)
        assert its_report.admissions == report.admissions
        counts = report.counts
        assert 0.99 < counts.pushed / (counts.wanted - report.admissions.left_out) <= 1
        assert 0.65 < report.admissions.left_out / report.admissions.asked < 0.75

    def test_filters_change_nothing_and_what_is_left_out_does_not_travel(
        self, job_data: Path, redis_url: str
    ) -> None:
        flags = {"consistency": "ssp", "workers": 1, "passes": 2, "admit": 0.3}
        plain, report = in_threads(describe(job_data, **flags), redis_url, 1)
        counts = report.counts
        # All else is pushed, but for the few updates that are rounded to nothing.
        assert 0.99 < counts.pushed / (counts.wanted - report.admissions.left_out) <= 1
        for filters in (Filters(presence=True), Filters(cache=True, presence=True, defer=1e-4)):
            filtered, told = in_threads(describe(job_data, **flags, filters=filters), redis_url, 1)
            assert same(filtered, plain)
            assert told.admissions == report.admissions
            counts = told.counts
            assert counts.pushed + counts.deferred_small == report.counts.pushed
            logged = counts.logged_new + counts.deferred_small
            assert len(plain[0]) <= logged if filters.defers else len(plain[0]) == counts.logged_new

    def test_several_processes_add_up(self, start_job: StartJob, job_data: Path, redis_url: str) -> None:
        job = describe(job_data, consistency="ssp", admit=0.3, filters=DEFAULT_FILTERS)
        running = start_job(job, redis_url)
        running.gather()
        found = running.result()
        told = running.facts().report.admissions
        assert found.result.admissions == told
        assert 0.65 < told.left_out / told.asked < 0.75


@timing_sensitive
class TestStraggler:
    """A worker that gets the processor only now and then."""

    @pytest.mark.parametrize("staleness", [0, 1])
    def test_the_others_wait_within_the_bound(
        self, start_job: StartJob, job_data: Path, redis_url: str, staleness: int
    ) -> None:
        job = describe(job_data, consistency="ssp", staleness=staleness, passes=99)
        # It may begin a chunk at `staleness` ahead, and has pushed it some time.
        bound = staleness + 1
        lags = self._lags(start_job, job, redis_url, lambda lags: len(lags) > 150 and max(lags) >= bound)
        assert max(lags) == bound

    def test_asynchronous_ones_do_not(self, start_job: StartJob, job_data: Path, redis_url: str) -> None:
        job = describe(job_data, consistency="asp", passes=99)
        assert max(self._lags(start_job, job, redis_url, lambda lags: max(lags, default=0) > 5)) > 5

    @staticmethod
    def _lags(start_job: StartJob, job, url: str, enough) -> list[int]:
        running = start_job(job, url, lease_s=30)  # so that it is not taken for dead
        running.gather()
        met: list[int] = []  # the highest clock, from when both were at work
        lags: list[int] = []

        def together(view: BoardView) -> bool:
            """Whether who began alone, and went on as one does, has been caught up with."""
            clocks = [worker.clock for worker in view.workers if worker.clock is not None]
            if len(clocks) == 2:
                met.append(max(clocks))
            return len(clocks) == 2 and min(clocks) > met[0] + 2  # pushed, trained and pulled at that time

        begun = running.once(together)
        assert begun is not None

        def note(view: BoardView) -> bool:
            clocks = [worker.clock for worker in view.workers if worker.clock is not None]
            lags.append(max(clocks) - min(clocks) if len(clocks) == 2 else 0)
            return enough(lags) or len(lags) % 50 == 0

        deadline = time.monotonic() + 60
        while not enough(lags) and time.monotonic() < deadline:
            with frozen(process_of(begun, 0)):
                running.once(note)
            time.sleep(0.02)
        running.stop.set()
        assert running.result().result.interrupted
        return lags


@pytest.mark.parametrize("consistency", ["asp", "bsp"])
def test_a_job_that_is_stopped_counts_no_row_that_is_held_out(
    start_job: StartJob, tmp_path: Path, redis_url: str, consistency: Consistency
) -> None:
    spec, log = tmp_path / "spec.yaml", tmp_path / "log.csv"
    spec.write_text(
        "version: 1\nsource: {format: delimited}\nlabel: y\nbits: 10\nfields: [{name: c, type: category}]\n"
    )
    rows = [f"{k % 2},v{k % 7},{'early' if k < 2_000 and k % 5 else 'late'}" for k in range(3_000)]
    log.write_text("\n".join(["y,c,day", *rows]) + "\n")
    job = TrainJob(
        inputs=[log],
        spec=str(spec),
        model=tmp_path / "model",
        store=redis_url,
        workers=2,
        chunk=100,
        epochs=500,
        consistency=consistency,
        holdout_where="day = early",
        base_rate=0.5,
    )
    description = describe_job(set_up(job))
    running = start_job(description, redis_url)
    assert running.once(lambda view: pushed(view) > 12)
    running.stop.set()
    did, told = running.result().result, running.facts().report
    assert did.interrupted
    assert did.examples == told.progressive.examples + told.later_passes.examples
    assert (description.held_out, did.examples > 0) == (1_600, True)


class TestJoining:
    """`ctr worker`."""

    def test_a_worker_comes_and_goes(self, start_job: StartJob, job_data: Path, redis_url: str) -> None:
        running = start_job(describe(job_data, consistency="asp", workers=1, passes=2_000), redis_url)
        with running.board() as board:
            job = board.job()
        assert job is not None
        words = ("worker", "--store", redis_url, "--job", job.id, "--lease", 1)
        interrupted, terminated = Command(*words), Command(*words)
        stays = Helpers(redis_url, 1)
        all_here = running.once(lambda view: len(view.workers) == 4 and all(w.clock for w in view.workers))
        assert all_here is not None
        assert running.once(lambda view: least_clock(view) > all_here.clock)
        interrupted.popen.send_signal(signal.SIGINT)
        terminated.popen.send_signal(signal.SIGTERM)
        for left in (interrupted, terminated):
            code, said = left.end()
            assert code == 130, said
            assert int(re.fullmatch(r"trained ([\d,]+) examples\n", left.out)[1].replace(",", "")) > 0
        went_on = running.once(lambda view: len(view.workers) == 2)
        assert went_on is not None
        assert running.once(lambda view: pushed(view) > pushed(went_on) + 15)
        running.stop.set()
        did = running.facts()
        assert (did.workers_seen, did.dead_workers) == (3, [])  # two are threads of one process
        assert [report.examples > 0 for report in stays.join()] == [True]

    def test_a_helper_sees_the_job_to_its_end(
        self, start_job: StartJob, job_data: Path, redis_url: str
    ) -> None:
        """And what it did is in the job's summary."""
        job = describe(job_data, consistency="ssp", workers=1, ftrl=ADDITIVE, passes=2)
        running = start_job(job, redis_url)
        assert running.once(lambda view: len(view.workers) == 1)
        helpers = Helpers(redis_url, 2)
        result = running.result()
        helpers.join()
        assert helpers.errors == []
        assert same_sums(result.state, in_memory(job)[0])
        report, by_worker = running.facts().report, running.facts().by_worker
        assert report.progressive.examples == report.later_passes.examples == job.rows
        assert sum(of.examples for of in by_worker.values()) == 2 * job.rows  # all in one process

    def test_there_is_no_such_job(self, cli: Cli, job_data: Path, redis_url: str) -> None:
        words = ("worker", "--store", redis_url)
        nothing, unknown = cli(*words), cli(*words, "--job", "abc")
        assert (nothing.code, unknown.code) == (1, 1)
        assert "ctr train --store" in nothing.err
        assert "abc" in unknown.err
        with closing(JobBoard(parse_redis_url(redis_url))) as board:
            board.create("one", describe(job_data).to_bytes(), shards=1)
            other = cli(*words, "--job", "two")
            assert other.code == 1
            assert "'one', not 'two'" in other.err
            board.fail("the disk is full")
            over = cli(*words)
            assert over.code == 1
            assert "the disk is full" in over.err

    @pytest.mark.parametrize(
        ("changes", "told"),
        [({"inputs": ("/nowhere/clicks",)}, "/nowhere/clicks"), ({"input_bytes": 1}, "the same data")],
    )
    def test_without_the_data_it_goes_alone(
        self, job_data: Path, redis_url: str, changes: dict, told: str
    ) -> None:
        job, url = describe(job_data).model_copy(update=changes), parse_redis_url(redis_url)
        facts = {"bits": job.feature_spec().bits, "width": Ftrl.width, "facts": job.facts()}
        with closing(RedisStore(url, **facts)), closing(JobBoard(url)) as board:
            board.create("one", job.to_bytes(), shards=9, ranks=2)
            with pytest.raises(DataError, match=told):
                take_part(url, "one", stop=Event())
            assert board.look().state == "running"

    @pytest.mark.parametrize("at_end", [False, True])
    def test_another_file_of_the_same_size_is_refused(
        self, job_log: Path, job_spec: FeatureSpec, redis_url: str, tmp_path: Path, at_end: bool
    ) -> None:
        """Known by its first and its last MiB, of a file of several."""
        log, url = tmp_path / "clicks.tsv", parse_redis_url(redis_url)
        rows = job_log.read_bytes()
        log.write_bytes(rows * (1 + 4_000_000 // len(rows)))
        job = describe(log, job_spec, consistency="ssp")
        job = job.model_copy(update={"input_digest": input_digest([log])})
        job.open_source()
        content = bytearray(log.read_bytes())
        row_end = content.index(b"\n", len(content) - 900_000 if at_end else 0)
        content[row_end + 1] ^= 1  # the label of the next row
        log.write_bytes(content)
        facts = {"bits": job.feature_spec().bits, "width": Ftrl.width, "facts": job.facts()}
        with closing(RedisStore(url, **facts)), closing(JobBoard(url)) as board:
            board.create("one", job.to_bytes(), shards=job.plan().shards)
            with pytest.raises(DataError, match="other content here than where the job was started"):
                take_part(url, "one", stop=Event())
            assert board.look().state == "running"


class TestWarmStart:
    @pytest.mark.parametrize("scale", [1.0, 3e6])
    def test_it_goes_on_from_the_model(
        self, start_job: StartJob, job_data: Path, redis_url: str, scale: float
    ) -> None:
        """Also from numbers so large that one push cannot add them."""
        (slots, state), _ = in_memory(describe(job_data))
        start = slots, np.stack([state[:, 0], np.minimum(state[:, 1] * scale, 8e6)], axis=1)
        assert scale == 1 or start[1][:, 1].max() == 8e6
        job = describe(job_data, consistency="ssp", workers=1, passes_before=1)
        result = start_job(job, redis_url, start=start).result()
        exact, _ = in_memory(job, start)
        assert np.abs(weights(result.state, job) - weights(exact, job)).mean() < 1e-3
        assert result.state[1][:, 1].max() == pytest.approx(exact[1][:, 1].max(), rel=1e-4)

    def test_weights_stay_where_n_has_no_room(self, redis_url: str) -> None:
        slots, optimizer = np.arange(3, dtype=np.uint32), Ftrl()
        state = np.array([[5e3, 1e6], [-2e4, 9e6], [3e5, 1e9]], np.float32)
        options = {"z_bits": optimizer.z_bits(8), "n_bits": 8}
        with closing(RedisStore(parse_redis_url(redis_url), bits=4, width=2, **options)) as store:
            assert adopt(store, slots, state, optimizer) == Saturations(z=0, n=2)
            held = store.pull(slots)
        assert held[:, 1].tolist() == [1e6, 2**23, 2**23]
        assert optimizer.weights(held) == pytest.approx(optimizer.weights(state), rel=1e-5)


class TestBadRows:
    @pytest.fixture
    def torn(self, job_log: Path, tmp_path: Path) -> Path:
        """With three rows that cannot be read: 60, 1,500 and 2,900 from 0."""
        lines = job_log.read_bytes().splitlines(keepends=True)
        for row in (60, 1_500, 2_900):
            lines[row] = b"torn %d\n" % row
        path = tmp_path / "torn.tsv"
        path.write_bytes(b"".join(lines))
        return path

    def words(self, torn: Path, url: str, spec: FeatureSpec, *flags: object) -> list[object]:
        spec_file = torn.with_name("spec.yaml")
        spec_file.write_text(spec.to_yaml())
        return [
            *("train", torn, "--spec", spec_file, "--model", torn.with_name("model"), "--store", url),
            *("--chunk", CHUNK, "--json", torn.with_name("summary.json"), *flags),
        ]

    def test_the_first_that_is_met_ends_the_job(
        self, torn: Path, job_spec: FeatureSpec, redis_url: str
    ) -> None:
        # Files where the command runs are not taken for modules.
        (torn.parent / "numpy.py").write_text("raise SystemExit('this is not numpy')")
        words = self.words(torn, redis_url, job_spec, "--workers", 2)
        code, said = Command(*words, cwd=torn.parent).end()
        assert code == 1
        assert re.search(r"torn\.tsv:(61|1501|2901): ", said)
        assert "--on-bad-rows" in said

    def test_the_first_ends_a_job_of_one_worker(
        self, cli: Cli, torn: Path, job_spec: FeatureSpec, redis_url: str
    ) -> None:
        done = cli(*self.words(torn, redis_url, job_spec, "--workers", 1, "--consistency", "bsp"))
        assert done.code == 1
        assert "torn.tsv:61: " in done.err
        assert "--on-bad-rows" in done.err

    @pytest.mark.parametrize("consistency", ["bsp", "asp"])
    def test_each_is_kept_and_counted_once(
        self, cli: Cli, torn: Path, job_spec: FeatureSpec, redis_url: str, consistency: str
    ) -> None:
        flags = ["--on-bad-rows", "quarantine", "--workers", 2, "--epochs", 2, "--consistency", consistency]
        done = cli(*self.words(torn, redis_url, job_spec, *flags))
        assert done.code == 0, done.err
        summary = json.loads(torn.with_name("summary.json").read_bytes())
        assert (summary["bad_rows"], summary["rows"], summary["examples"]) == (3, 2_947, 5_894)
        assert torn.with_name("model.bad-rows").read_bytes() == b"torn 60\ntorn 1500\ntorn 2900\n"
        assert [path.name for path in torn.parent.glob("*bad-rows*")] == ["model.bad-rows"]
        assert done.out.count("torn.tsv:61:") == 1

    def test_too_many_end_the_job_and_leave_nothing_behind(
        self, cli: Cli, torn: Path, job_spec: FeatureSpec, redis_url: str
    ) -> None:
        with torn.open("ab") as file:
            file.write(b"torn\n" * 30)
        words = self.words(torn, redis_url, job_spec, "--workers", 2, "--on-bad-rows", "skip")
        done = cli(*words)
        assert done.code == 1
        assert "33 of the 2,980 rows read are bad (1.1%)" in done.err
        assert "33 with 1 column instead of" in done.err
        assert not torn.with_name("model").exists()
        done = cli(*words, "--workers", 1, "--max-bad-fraction", 0.02)
        assert done.code == 0  # so the store is empty, too

    @pytest.mark.parametrize("consistency", ["bsp", "ssp"])
    def test_status_does_not_count_them(
        self, torn: Path, job_spec: FeatureSpec, redis_url: str, consistency: str
    ) -> None:
        flags = {"consistency": consistency, "workers": 2 if consistency == "bsp" else 1}
        job = describe(torn, job_spec, on_bad_rows="skip", passes=2, **flags)
        found, _ = train_distributed(job, source_of(job), StoreSettings(redis_url), start=None, stop=Event())
        assert (found.result.examples, found.result.rows) == (2 * 2_947, 2_947)
        with closing(found.store):
            _, status = look(StoreObserver(parse_redis_url(redis_url)))
            found.store.drop()
        assert status is not None
        assert (status.examples, status.examples_in_all) == (2 * 2_947, 2 * 2_947)

    def test_rounds_with_bad_rows_are_the_same_to_the_bit(
        self, torn: Path, job_spec: FeatureSpec, redis_url: str
    ) -> None:
        job = describe(torn, job_spec, on_bad_rows="skip", passes=2, workers=3)
        one, report = in_threads(job, redis_url, 1)
        three, again = in_threads(job, redis_url, 3)
        assert same(one, three)
        for bad_rows in (report.bad_rows, again.bad_rows):
            assert (bad_rows.count, bad_rows.end) == (3, 2_901)
        assert report.examples == again.examples == 2 * 2_947


class TestWrongUse:
    @pytest.mark.parametrize("workers", [1, 2])
    def test_diverging_training(
        self, start_job: StartJob, job_data: Path, redis_url: str, workers: int
    ) -> None:
        job = describe(
            job_data, consistency="ssp", workers=workers, ftrl=Ftrl(alpha=1e29, beta=1e-29), passes=50
        )
        with pytest.raises((ModelError, StoreError), match="diverged"):
            start_job(job, redis_url).result()

    def test_checkpoints_cannot_go_there(
        self, cli: Cli, job_data: Path, redis_url: str, tmp_path: Path
    ) -> None:
        words = ("train", job_data, "--model", tmp_path / "model", "--store", redis_url, "--checkpoint")
        (tmp_path / "mine").mkdir()
        (tmp_path / "mine" / "diary.txt").write_text("dear diary")
        for place, told in (
            (tmp_path / "mine", "diary.txt"),
            (tmp_path / "model", "the model goes there"),
            (tmp_path / "mine" / "diary.txt" / "deeper", "cannot be written"),
        ):
            done = cli(*words, place)
            assert done.code == 1
            assert told in done.err
        done = cli(*words, tmp_path / "none", "--resume")
        assert done.code == 1
        assert "there is no checkpoint" in done.err
        assert cli("ps", "drop", "--store", redis_url, "--yes").code == 1  # nothing was begun

    def test_a_running_job_is_not_disturbed(
        self, start_job: StartJob, cli: Cli, job_data: Path, redis_url: str, tmp_path: Path
    ) -> None:
        # with a lease that a busy machine does not let run out
        running = start_job(
            describe(job_data, consistency="asp", workers=1, passes=500), redis_url, lease_s=30.0
        )
        assert running.once(lambda view: pushed(view) > 3)
        done = cli("train", job_data, "--model", tmp_path / "model", "--store", redis_url)
        assert done.code == 1
        assert "led by a `ctr train` that was alive" in done.err
        assert "drop" not in done.err
        before = running.once(lambda view: True)
        assert before is not None
        assert running.once(lambda view: pushed(view) > pushed(before))
