"""Jobs that are stopped or killed, and go on from their checkpoint."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from threading import Event

import numpy as np
import pytest

from ctr.checkpoint.checkpoint import read_checkpoint
from ctr.distributed.checkpointing import CheckpointSettings
from ctr.distributed.position import JobPosition
from ctr.distributed.run import StoreSettings, train_distributed
from ctr.errors import CtrError, ModelError, StoreError
from ctr.features import FeatureSpec, RawSource
from ctr.learn.first_rows import base_rate, first_rows, starting_state
from ctr.model.artifact import load_model
from ctr.optimizers.ftrl import Ftrl
from ctr.ps import (
    Filters,
    Job,
    JobBoard,
    PackedPush,
    RedisStore,
    Token,
    parse_redis_url,
)
from ctr.workers.description import JobDescription, input_bytes
from ctr.workers.report import WorkerReport
from ctr.workers.timing import Heartbeat
from tests.ctr.distributed_jobs import (
    ADDITIVE,
    CHUNK,
    ROWS,
    Command,
    StartJob,
    describe,
    frozen,
    in_memory,
    model_id,
    process_of,
    pushed,
    same,
    same_sums,
    undisturbed,
    wait_for,
)
from tests.ps.redis_servers import StartRedis, needs_redis

pytestmark = needs_redis

OFTEN = 0.15  # seconds
EPOCHS = 4


def one_worker(data: Path) -> JobDescription:
    filters = Filters(cache=True, presence=True, defer=1e-5)
    return describe(data, consistency="ssp", workers=1, passes=2, filters=filters)


class TestStopped:
    @pytest.mark.parametrize(("consistency", "seed", "admit"), [("ssp", 2, 0.5), ("bsp", 3, 0.5)])
    def test_it_goes_on_to_the_same_bits(
        self,
        start_job: StartJob,
        job_data: Path,
        redis_url: str,
        cluster_url: str,
        tmp_path: Path,
        consistency: str,
        seed: int,
        admit: float,
    ) -> None:
        """One worker, or rounds of two; from one Redis to a cluster."""
        job = one_worker(job_data) if consistency == "ssp" else describe(job_data, passes=2)
        job = job.model_copy(update={"admit": admit})
        whole, report = undisturbed(job, redis_url)
        settings = CheckpointSettings(tmp_path / "checkpoint", every_s=600)
        running = start_job(job, redis_url, checkpoints=settings)
        at = random.Random(seed).randrange(2, 10)  # of 20, as the stop must arrive before the last
        assert running.once(lambda view: pushed(view) >= at)
        running.stop.set()
        first = running.result()
        position = JobPosition.from_json(read_checkpoint(settings.folder).manifest.position)
        assert first.result.interrupted
        assert first.result.examples == sum(position.examples(job.plan())) < 2 * job.rows
        assert running.facts().checkpoints == 1
        evaluated = running.facts().report
        assert evaluated.progressive.examples + evaluated.later_passes.examples == first.result.examples

        again = start_job(job, cluster_url, checkpoints=settings, resume=True)
        second = again.result()
        assert second.result.resumed_from is not None
        assert same(second.state, whole)
        did, told = second.result, again.facts()
        assert (did.examples, did.rows, did.passes, did.interrupted) == (2 * job.rows, job.rows, 2, False)
        for evaluated, expected in (
            (told.report.progressive, report.progressive),
            (told.report.later_passes, report.later_passes),
        ):
            assert evaluated.examples == expected.examples == job.rows
            assert evaluated.logloss == pytest.approx(expected.logloss, rel=1e-12)
            assert evaluated.summary().auc == pytest.approx(expected.summary().auc, rel=1e-12)
        assert told.report.examples == 2 * job.rows
        assert told.report.admissions == report.admissions
        assert (report.admissions.left_out > 0) == (admit < 1)

    def test_with_other_workers(
        self, start_job: StartJob, job_data: Path, redis_url: str, tmp_path: Path
    ) -> None:
        """What counts is that every chunk counts once."""
        flags = {"consistency": "asp", "passes": 3, "ftrl": ADDITIVE}
        job = describe(job_data, **flags)
        settings = CheckpointSettings(tmp_path / "checkpoint", every_s=600)
        running = start_job(job, redis_url, checkpoints=settings)
        assert running.once(lambda view: pushed(view) > 20)
        running.stop.set()
        assert running.result().result.interrupted
        job = describe(job_data, **flags, workers=1, shard_chunks=64)
        again = start_job(job, redis_url, checkpoints=settings, resume=True)
        assert same_sums(again.result().state, in_memory(job)[0])
        assert again.facts().report.examples == 3 * job.rows

    @pytest.mark.parametrize("lost", [False, True])
    def test_what_is_in_the_store_counts(
        self, start_job: StartJob, job_data: Path, redis_url: str, tmp_path: Path, lost: bool
    ) -> None:
        """The killed workers have not announced their last pushes, or a failover has lost announced ones."""
        job = describe(job_data, consistency="asp", passes=50)
        settings = CheckpointSettings(tmp_path / "checkpoint", every_s=600)
        running = start_job(job, redis_url, checkpoints=settings)
        running.gather(until=1)
        assert running.once(lambda view: pushed(view) == 2)
        with closing(job.join_store(parse_redis_url(redis_url))) as store, running.board() as board:
            before, name = store.dumps.take(3), board.job().id
            board.pause(2)
            view = running.once(lambda view: pushed(view) == 4)
            assert view is not None
            for pid in running.pids():
                os.kill(pid, signal.SIGSTOP)
            if lost:
                store.dumps.restore(before)
            else:
                everywhere, nothing = np.ones(store.partitions.count, np.bool_), np.empty(0, np.int64)
                for shard in view.unfinished:
                    push = PackedPush(np.empty(0, np.uint32), nothing, Token(name, shard, 2))
                    store.push_packed(push, everywhere)
            running.stop.set()
            for pid in running.pids():
                os.kill(pid, signal.SIGKILL)
            running.result()
        position = JobPosition.from_json(read_checkpoint(settings.folder).manifest.position)
        assert position.progress == dict.fromkeys(view.unfinished, 1 if lost else 3)

    def test_again_when_a_failover_has_lost_that_it_is(
        self, start_job: StartJob, job_data: Path, redis_url: str
    ) -> None:
        """Else workers would go on while the model is read."""
        running = start_job(describe(job_data, consistency="asp", passes=50), redis_url)
        assert running.once(lambda view: pushed(view) > 4)
        with running.board() as board:
            other = board.leases.register("here")  # which does not leave yet
            with Heartbeat(0.1, lambda: board.leases.heartbeat(other)):
                running.stop.set()
                wait_for(lambda: board.look().state == "stopping")
                board._record.write(("HSET", board._key.job, "state", "running"))
                wait_for(lambda: board.look().state == "stopping", 10.0)
            board.leases.expire(other)
            assert running.result().result.interrupted

    def test_within_a_round_says_that_there_is_no_last_checkpoint(
        self, start_job: StartJob, job_data: Path, redis_url: str, tmp_path: Path
    ) -> None:
        settings = CheckpointSettings(tmp_path / "checkpoint", every_s=600)
        running = start_job(describe(job_data, passes=50), redis_url, checkpoints=settings)
        running.gather(until=2)
        assert running.once(lambda view: pushed(view) == 4)
        for pid in running.pids():
            os.kill(pid, signal.SIGSTOP)
        running.stop.set()
        for pid in running.pids():
            os.kill(pid, signal.SIGKILL)
        facts = running.facts()
        assert facts.checkpoints == 0
        assert ["within a round" in reason for reason in facts.failed_checkpoints] == [True]

    def test_checkpoints_meanwhile_disturb_nothing(
        self, start_job: StartJob, job_data: Path, redis_url: str, tmp_path: Path
    ) -> None:
        """Also with one that cannot be written, which ends no job."""
        job = describe(job_data, passes=2)
        settings = CheckpointSettings(tmp_path / "checkpoint", every_s=0.05)
        running = start_job(job, redis_url, checkpoints=settings)
        wait_for(settings.folder.exists)
        foreign = settings.folder / "mine.txt"
        for _ in range(1_000):
            try:
                foreign.write_text("mine")
                break
            except FileNotFoundError:
                continue  # just being replaced
        result = running.result()
        assert same(result.state, undisturbed(job, redis_url)[0])
        assert running.facts().report.progressive.examples == job.rows
        assert running.facts().checkpoints > 0
        assert all("mine.txt" in problem for problem in running.facts().failed_checkpoints)

    def test_a_worker_is_killed_while_all_are_held(
        self, start_job: StartJob, job_data: Path, redis_url: str, tmp_path: Path
    ) -> None:
        job = describe(job_data, passes=2)
        settings = CheckpointSettings(tmp_path / "checkpoint", every_s=0.05)
        running = start_job(job, redis_url, checkpoints=settings)
        view = running.once(
            lambda view: len(view.workers) == 2 and view.pause is not None and pushed(view) > 8
        )
        assert view is not None
        os.kill(process_of(view, 1), signal.SIGKILL)
        result = running.result()
        assert same(result.state, undisturbed(job, redis_url)[0])
        assert running.facts().report.progressive.examples == job.rows

    def test_other_settings_are_refused(
        self, start_job: StartJob, job_data: Path, redis_url: str, tmp_path: Path
    ) -> None:
        job = describe(job_data, consistency="ssp", workers=1, passes=50)
        job = job.model_copy(update={"input_bytes": input_bytes([job_data])})
        settings = CheckpointSettings(tmp_path / "checkpoint", every_s=600)
        running = start_job(job, redis_url, checkpoints=settings)
        assert running.once(lambda view: pushed(view) > 10)
        running.stop.set()
        running.result()
        for change, told in (
            ({"chunk": 99}, "chunk 300, this one 99"),
            ({"passes": 51}, "passes 50, this one 51"),
            ({"admit": 0.5}, r"admit 1\.0, this one 0\.5"),
            ({"rows": 2_000}, "rows 2950"),
            ({"consistency": "bsp"}, "consistency ssp"),
            ({"optimizer": Ftrl(alpha=0.2)}, r"optimizer alpha 0\.1, this one 0\.2"),
            ({"spec": job.spec.replace("bits: 18", "bits: 19")}, "spec bits: 18, this one bits: 19"),
        ):
            other = start_job(job.model_copy(update=change), redis_url, checkpoints=settings, resume=True)
            with pytest.raises(ModelError, match=told):
                other.result()
        manifest = settings.folder / "manifest.json"
        kept = json.loads(manifest.read_bytes())
        kept["job"] |= {"input_bytes": 9, "rows": 2_000}
        manifest.write_text(json.dumps(kept))
        with pytest.raises(ModelError, match="the input has changed since this checkpoint"):
            start_job(job, redis_url, checkpoints=settings, resume=True).result()

    def test_other_chunks_of_raw_files_are_refused(
        self, start_job: StartJob, job_log: Path, job_spec: FeatureSpec, redis_url: str, tmp_path: Path
    ) -> None:
        splits = RawSource(job_spec, [job_log]).splits()
        job = describe(job_log, job_spec, passes=50, splits=splits)
        settings = CheckpointSettings(tmp_path / "checkpoint", every_s=600)
        running = start_job(job, redis_url, checkpoints=settings)
        assert running.once(lambda view: pushed(view) > 4)
        running.stop.set()
        running.result()
        manifest = settings.folder / "manifest.json"
        kept = json.loads(manifest.read_bytes())
        del kept["job"]["splits"]
        manifest.write_text(json.dumps(kept))
        with pytest.raises(ModelError, match="cut raw files into other chunks"):
            start_job(job, redis_url, checkpoints=settings, resume=True).result()

    def test_two_jobs_do_not_write_to_one_place(
        self, start_job: StartJob, job_data: Path, redis_url: str, tmp_path: Path
    ) -> None:
        job = describe(job_data, consistency="ssp", workers=1, passes=50)
        settings = CheckpointSettings(tmp_path / "checkpoint", every_s=600)
        running = start_job(job, redis_url, checkpoints=settings)
        assert running.once(lambda view: pushed(view) > 10)
        with pytest.raises(ModelError, match="another `ctr train` writes its checkpoints there"):
            start_job(job, f"{redis_url}?model=other", checkpoints=settings).result()
        running.stop.set()
        assert running.facts().checkpoints == 1
        assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]

    def test_the_state_is_kept_at_the_scale_that_it_has(
        self, start_job: StartJob, job_data: Path, redis_url: str, tmp_path: Path
    ) -> None:
        """An older version has written the checkpoint, which kept all at one scale."""
        job = one_worker(job_data)
        assert (job.z_bits, job.n_bits) == (13, 8)
        whole, _ = undisturbed(job, redis_url)
        settings = CheckpointSettings(tmp_path / "checkpoint", every_s=600)
        running = start_job(job, redis_url, checkpoints=settings)
        assert running.once(lambda view: pushed(view) > 10)
        running.stop.set()
        running.result()
        other = job.model_copy(update={"z_bits": 6, "n_bits": 12})
        assert same(start_job(other, redis_url, checkpoints=settings, resume=True).result().state, whole)

    def test_the_lease_of_the_one_before_is_waited_for(
        self, start_job: StartJob, job_data: Path, redis_url: str, tmp_path: Path
    ) -> None:
        """Its own, not that of the command that resumes; one that is renewed belongs to somebody alive."""
        job = describe(job_data, consistency="ssp", workers=1, passes=2)
        settings = CheckpointSettings(tmp_path / "checkpoint", every_s=600)
        running = start_job(job, redis_url, checkpoints=settings)
        assert running.once(lambda view: pushed(view) > 10)
        running.stop.set()
        assert running.facts().checkpoints == 1
        lease_s, name = 2.5, read_checkpoint(settings.folder).manifest.position["job"]
        url = parse_redis_url(redis_url)
        with (
            closing(RedisStore(url, bits=18, width=2, facts={"job": name})),
            closing(JobBoard(url, lease_s=lease_s)) as board,
        ):
            board.create(name, job.to_bytes(), shards=job.plan().shards)
            with pytest.raises(StoreError, match=r"checkpoint: .*add resume\. Otherwise.*stop that first"):
                start_job(job, redis_url, checkpoints=settings).result()
            with (
                Heartbeat(0.3, board.heartbeat_coordinator),
                pytest.raises(StoreError, match="still running"),
            ):
                start_job(job, redis_url, checkpoints=settings, resume=True, lease_s=0.6).result()
            board.heartbeat_coordinator()
            began = time.monotonic()
        resumed = start_job(job, redis_url, checkpoints=settings, resume=True, lease_s=0.6)
        assert resumed.result().result.examples == 2 * ROWS
        assert time.monotonic() - began > lease_s - 0.1

    @pytest.mark.parametrize("end", [JobBoard.stop, JobBoard.finish])
    def test_one_whose_model_is_being_saved_is_not_resumed(
        self,
        start_job: StartJob,
        job_data: Path,
        redis_url: str,
        tmp_path: Path,
        end: Callable[[JobBoard], None],
    ) -> None:
        """When its command has dropped the store, or has died, the job resumes from its latest checkpoint."""
        job = describe(job_data, consistency="ssp", workers=1, passes=2)
        settings = CheckpointSettings(tmp_path / "checkpoint", every_s=600)
        running = start_job(job, redis_url, checkpoints=settings)
        assert running.once(lambda view: pushed(view) > 10)
        running.stop.set()
        assert running.facts().checkpoints == 1
        name = read_checkpoint(settings.folder).manifest.position["job"]
        url, manifest = parse_redis_url(redis_url), settings.folder / "manifest.json"
        with (
            closing(RedisStore(url, bits=18, width=2, facts={"job": name})) as store,
            closing(JobBoard(url, lease_s=1.5)) as board,
        ):
            board.create(name, job.to_bytes(), shards=job.plan().shards)
            end(board)
            with Heartbeat(0.3, board.heartbeat_coordinator):
                with pytest.raises(StoreError, match="still running"):
                    start_job(job, redis_url, checkpoints=settings, resume=True).result()
                assert not store.pull(np.zeros(1, np.uint32)).any(), "it is still there"
            resumed = start_job(job, redis_url, checkpoints=settings, resume=True)
            time.sleep(0.5)
            latest = json.loads(manifest.read_bytes()) | {"created": "2020-02-02T02:02:02+00:00"}
            manifest.write_text(json.dumps(latest))
            if end is JobBoard.stop:
                store.drop()
        result = resumed.result().result
        assert (result.examples, result.resumed_from) == (2 * ROWS, latest["created"])

    def test_its_lease_is_renewed_until_its_model_is_saved(self, job_data: Path, redis_url: str) -> None:
        job = describe(job_data, consistency="ssp", workers=1)
        settings = StoreSettings(redis_url, lease_s=0.5)
        trained, _ = train_distributed(job, job.open_source(), settings, start=None, stop=Event())
        with closing(JobBoard(parse_redis_url(redis_url))) as board:
            board.job()
            for _ in range(2):
                lease = board.look().coordinator
                wait_for(lambda: board.look().coordinator != lease, 5.0)  # noqa: B023
        assert trained.store is not None
        trained.store.drop()


class Trained:
    """A job on the command line, with a checkpoint every so often."""

    def __init__(self, data: Path, folder: Path, store: str, *flags: object) -> None:
        self.folder, self.store = folder, store
        self.folder.mkdir(exist_ok=True)
        self.checkpoint = folder / "checkpoint"
        self.words = [
            *("train", data, "--store", store, "--chunk", CHUNK, "--epochs", EPOCHS, "--lease", 1, *flags),
            *("--checkpoint", self.checkpoint, "--checkpoint-every", f"{OFTEN}s"),
        ]

    def start(self, *flags: object, model: str = "model") -> Command:
        named = ("--model", self.folder / model, "--json", self.folder / f"{model}.json")
        return Command(*self.words, *flags, *named)

    def finish(self, *flags: object, model: str = "model") -> tuple[str, dict]:
        """Run it to its end without checkpoints on the way; the model's id, and the summary."""
        code, said = self.start(*flags, "--checkpoint-every", "1h", model=model).end()
        assert code == 0, said
        summary = json.loads((self.folder / f"{model}.json").read_bytes())
        return load_model(self.folder / model).id, summary

    def taken(self) -> tuple[str, int] | None:
        """When the checkpoint was taken, and how many examples it has; None when there is none."""
        try:
            found = read_checkpoint(self.checkpoint)
        except CtrError:
            return None
        manifest = found.manifest
        job = JobDescription.model_validate(manifest.job)
        return manifest.created, sum(JobPosition.from_json(manifest.position).examples(job.plan()))

    def written(self) -> tuple[int, int] | None:
        """Which checkpoint is there; None when there is none."""
        try:
            found = self.checkpoint.stat()
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_mtime_ns

    def on_board(self) -> Job | None:
        """What is on the board now."""
        with closing(JobBoard(parse_redis_url(self.store))) as board:
            return board.job()

    def has_begun(self) -> bool:
        """Whether something was learnt."""
        with closing(JobBoard(parse_redis_url(self.store))) as board:
            found = board.job()
            if found is None:
                return False
            plan = JobDescription.from_bytes(found.description).plan()
            return sum(JobPosition.of(board.look()).examples(plan)) > 0

    def undisturbed(self, job: JobDescription, url: str) -> tuple[str, WorkerReport]:
        """The id of the model that the same comes to when nothing happens, and what the workers report."""
        job = job.model_copy(update={"z_bits": job.optimizer_in(job.passes - 1).z_bits(job.n_bits)})
        rate = base_rate(first_rows(job.open_source(), job.rows))
        start = starting_state(job.optimizer, rate, job.feature_spec().bits)
        state, report = undisturbed(job, url, start)
        return model_id(state, job), report


FLAGS = {
    "one worker": (("--workers", 1), {"consistency": "ssp", "workers": 1, "shard_chunks": 64}),
    "rounds": (("--workers", 2, "--consistency", "bsp"), {}),
}


class TestKilled:
    @pytest.mark.parametrize(("flags", "settings"), FLAGS.values(), ids=FLAGS.keys())
    def test_everything(
        self,
        job_data: Path,
        tmp_path: Path,
        redis_url: str,
        flags: tuple[object, ...],
        settings: dict[str, object],
    ) -> None:
        """The command, its workers and its servers, twice; then the rest onto other servers."""
        chances = random.Random(str(flags))
        job = Trained(job_data, tmp_path, "embedded://", *flags)
        resume: tuple[object, ...] = ()
        for _ in range(2):
            before = job.written()
            command = job.start(*resume)
            wait_for(lambda: job.written() not in (None, before) or command.popen.poll() is not None)  # noqa: B023
            time.sleep(chances.random() * OFTEN)
            command.kill()
            assert not command.processes()
            resume = ("--resume",)
        found, summary = Trained(job_data, tmp_path, "embedded://?shards=2", *flags).finish("--resume")
        expected, report = job.undisturbed(describe(job_data, passes=EPOCHS, **settings), redis_url)
        assert found == expected
        assert (summary["examples"], summary["rows"]) == (EPOCHS * ROWS, ROWS)
        for name in ("logloss", "auc"):
            evaluated = getattr(report.progressive.summary(), name)
            assert summary[name] == pytest.approx(evaluated, rel=1e-12)

    def test_the_command_alone(self, job_data: Path, tmp_path: Path, redis_url: str) -> None:
        """Its workers end; it can be gone on with at once, and that can be killed before a checkpoint."""
        job = Trained(job_data, tmp_path, f"{redis_url}?model=m", "--workers", 2, "--epochs", 30)
        for resume, every in (((), f"{OFTEN}s"), (("--resume",), "1h")):
            command = job.start(*resume, "--checkpoint-every", every)
            if not resume:
                wait_for(job.written)
            wait_for(lambda: len(command.workers()) == 2)  # noqa: B023
            time.sleep(0.2)
            command.popen.kill()
            command.require_gone()
        left = job.written()
        command = job.start("--resume")
        wait_for(lambda: job.written() not in (None, left))
        command.popen.send_signal(signal.SIGTERM)
        assert command.end()[0] == 130

    def test_before_the_first_checkpoint(self, job_data: Path, tmp_path: Path, redis_url: str) -> None:
        """The same command begins anew; a job that succeeded leaves no checkpoint to go on from."""
        flags = ("--workers", 2, "--consistency", "bsp", "--epochs", 9)
        job = Trained(job_data, tmp_path, f"{redis_url}?model=m", *flags)
        command = job.start("--checkpoint-every", "1h")
        wait_for(job.has_begun)
        command.popen.kill()
        command.require_gone()
        with closing(JobBoard(parse_redis_url(job.store))) as board:
            wait_for(lambda: not board.look().coordinator_alive)
        other = job.start("--checkpoint-every", "1h", "--epochs", 8)
        code, said = other.end()
        assert code == 1
        assert "is in this store already" in said
        again, summary = job.finish()
        assert summary["moved"]["resumed_from"] is None
        assert not job.checkpoint.exists()
        assert job.finish(model="another")[0] == again

    def test_the_command_alone_with_its_servers(self, job_data: Path, tmp_path: Path) -> None:
        command = Trained(job_data, tmp_path, "embedded://", "--workers", 2, "--epochs", 900).start()
        wait_for((tmp_path / "checkpoint").exists)
        assert len(command.processes()) > 3
        command.popen.kill()
        command.require_gone()

    def test_all_workers(self, start_job: StartJob, job_data: Path, redis_url: str, tmp_path: Path) -> None:
        """Checkpoints of several workers are taken while they train; still every chunk counts once."""
        job = describe(job_data, consistency="asp", passes=3, ftrl=ADDITIVE)
        settings = CheckpointSettings(tmp_path / "checkpoint", every_s=0.05)
        running = start_job(job, redis_url, checkpoints=settings)
        running.gather()
        assert running.once(lambda view: pushed(view) > 20)
        for pid in running.pids():
            os.kill(pid, signal.SIGKILL)
        with pytest.raises(StoreError, match="no worker is left"):
            running.result()
        position = JobPosition.from_json(read_checkpoint(settings.folder).manifest.position)
        assert 0 < sum(position.examples(job.plan())) < 3 * ROWS
        second = start_job(job, redis_url, checkpoints=settings, resume=True).result()
        assert same_sums(second.state, in_memory(job)[0])
        assert second.result.examples == 3 * ROWS


class TestFrozen:
    def test_one_that_wakes_up_after_the_job_was_resumed(
        self, job_data: Path, tmp_path: Path, redis_url: str
    ) -> None:
        """The resumed job has the same id, and does not notice it."""
        job = Trained(job_data, tmp_path, f"{redis_url}?model=m", "--workers", 1, "--epochs", 90)
        former = job.start(model="former")
        wait_for(job.written)
        with frozen(former.popen.pid), closing(JobBoard(parse_redis_url(job.store))) as board:
            first = job.on_board()
            resumed = job.start("--resume", "--checkpoint-every", "1h")
            wait_for(lambda: job.on_board() not in (None, first))
            board.pause(-1)
            wait_for(lambda: board.look().workers)
            os.kill(former.popen.pid, signal.SIGCONT)
            code, said = former.end()
            assert code == 1
            assert "another" in said or "gone" in said
            at = board.look().clock
            board.pause(None)
            wait_for(lambda: board.look().clock > at)
        resumed.popen.send_signal(signal.SIGINT)
        code, said = resumed.end()
        assert code == 130, said
        assert not (tmp_path / "former").exists()


class TestInterrupted:
    @pytest.mark.parametrize(("flags", "settings"), FLAGS.values(), ids=FLAGS.keys())
    def test_ctrl_c(
        self,
        job_data: Path,
        tmp_path: Path,
        redis_url: str,
        flags: tuple[object, ...],
        settings: dict[str, object],
    ) -> None:
        """To the whole group of processes, as a terminal does it."""
        job = Trained(job_data, tmp_path, "embedded://", *flags)
        command = job.start()
        wait_for(job.checkpoint.exists)
        os.killpg(command.popen.pid, signal.SIGINT)
        code, said = command.end()
        assert code == 130, said
        assert (job.folder / "model.interrupted").is_dir()
        assert not (job.folder / "model").exists()
        found, _ = job.finish("--resume")
        assert found == job.undisturbed(describe(job_data, passes=EPOCHS, **settings), redis_url)[0]

    def test_a_signal_to_all_processes(self, job_data: Path, tmp_path: Path, redis_url: str) -> None:
        """As a batch system ends a job: the workers still bring the round to its end."""
        flags = ("--workers", 2, "--consistency", "bsp", "--epochs", 900, "--checkpoint-every", "1h")
        job = Trained(job_data, tmp_path, redis_url, *flags)
        command = job.start()
        wait_for(lambda: len(command.workers()) == 2)
        wait_for(job.has_begun)
        for pid in command.processes():
            os.kill(pid, signal.SIGTERM)
        assert command.end()[0] == 130
        taken = job.taken()
        assert taken is not None
        assert taken[1] > 0


class TestReplicas:
    """What a job starts from must survive a failover before its first push."""

    @pytest.mark.parametrize("resume", [True, False])
    def test_are_waited_for(
        self, start_job: StartJob, start_redis: StartRedis, job_data: Path, tmp_path: Path, resume: bool
    ) -> None:
        job = describe(job_data, consistency="ssp", workers=1, passes=2 if resume else 1, ftrl=ADDITIVE)
        first = describe(job_data, consistency="ssp", workers=1, ftrl=ADDITIVE)
        settings = CheckpointSettings(tmp_path / "checkpoint", every_s=600)
        servers = start_redis(replicas=1)
        start = None if resume else in_memory(first)[0]
        if resume:
            running = start_job(job, servers.url, checkpoints=settings)
            assert running.once(lambda view: pushed(view) > 10)
            running.stop.set()
            running.result()
        ((_, replica),) = servers.nodes
        replica.freeze()
        again = start_job(
            job, servers.url, checkpoints=settings if resume else None, resume=resume, start=start
        )
        with closing(JobBoard(parse_redis_url(servers.url))) as board:
            time.sleep(1.0)
            assert board.job() is None
            assert not again.over
            replica.thaw()
            wait_for(lambda: board.job() is not None or again.over)
        state = again.result().state
        assert same_sums(state, in_memory(job)[0] if resume else in_memory(job, start)[0])
