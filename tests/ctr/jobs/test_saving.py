"""A trained model is on disk before anything else is done with it; a disk that refuses does not lose it."""

from __future__ import annotations

import os
import resource
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic

import pytest
import redis

from ctr.model.artifact import load_model
from tests.command_line import Cli
from tests.ctr.distributed_jobs import Command, wait_for
from tests.ps.redis_servers import StartRedis, needs_redis

FLAGS = ["--chunk", 5_000, "--alpha", 0.2]


def train(log: Path, model: Path, *flags: object) -> Command:
    return Command("train", "--spec", "criteo", log, "--model", model, *FLAGS, *flags)


def long_holdout(log: Path, times: int) -> list[object]:
    """Rows to evaluate on for a while."""
    return [word for _ in range(times) for word in ("--holdout", log)]


def saved(job: Command, model: Path) -> None:
    """Wait until the model is on disk, with the job still at work on it."""
    wait_for((model / "manifest.json").exists, 240)  # kernels may have to be compiled
    assert job.popen.poll() is None


class TestWhileItIsEvaluated:
    @pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
    def test_in_memory(self, click_log: Path, tmp_path: Path, number: signal.Signals) -> None:
        job = train(click_log, tmp_path / "model", *long_holdout(click_log, 500))
        saved(job, tmp_path / "model")
        job.popen.send_signal(number)
        code, said = job.end()
        assert code == (-9 if number == signal.SIGKILL else 130), said
        manifest = load_model(tmp_path / "model").manifest
        assert "holdout" not in manifest["metrics"]
        assert os.listdir(tmp_path) == ["model"]

    @needs_redis
    def test_in_redis(self, cli: Cli, click_log: Path, tmp_path: Path, redis_url: str) -> None:
        store = f"{redis_url}?model=m"
        flags = ("--store", store, "--lease", 120)  # which lasts, however slow the machine is
        job = train(click_log, tmp_path / "model", *flags, *long_holdout(click_log, 500))
        saved(job, tmp_path / "model")
        job.popen.send_signal(signal.SIGKILL)
        job.popen.wait()
        job.require_gone()
        assert load_model(tmp_path / "model").linear.weights.size
        again = cli("train", "--spec", "criteo", click_log, "--model", tmp_path / "other", "--store", store)
        # The job did not come to emptying the store.
        assert "led by a `ctr train` that was alive" in again.err
        assert cli("ps", "drop", "--store", store, "--yes").code == 0

    def test_its_metrics_are_added(self, cli: Cli, click_log: Path, tmp_path: Path) -> None:
        flags = ["--model", tmp_path / "model", "--holdout-fraction", 0.2]
        assert cli("train", "--spec", "criteo", click_log, *flags).code == 0
        manifest = load_model(tmp_path / "model").manifest
        assert manifest["metrics"]["holdout"]["examples"] == 4_000
        assert manifest["calibration"] == manifest["metrics"]["holdout"]["calibration"]
        assert os.listdir(tmp_path) == ["model"]

    def test_another_model_takes_its_place(self, cli: Cli, click_log: Path, tmp_path: Path) -> None:
        job = train(click_log, tmp_path / "model", *long_holdout(click_log, 50))
        saved(job, tmp_path / "model")
        assert cli("train", "--spec", "criteo", click_log, "--model", tmp_path / "model").code == 0
        code, said = job.end()
        assert code == 1
        assert "has replaced" in said
        assert "holdout" not in load_model(tmp_path / "model").manifest["metrics"]


@needs_redis
def test_redis_dies_before_it_is_emptied(
    cli: Cli, click_log: Path, tmp_path: Path, start_redis: StartRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ctr.ps.wire.patience.monotonic", lambda: 30 * monotonic())
    servers, model = start_redis(), tmp_path / "model"

    def kill() -> None:
        wait_for((model / "manifest.json").exists, 240)
        servers.servers[0].kill()

    words = ["train", "--spec", "criteo", click_log, "--model", model, *FLAGS, *long_holdout(click_log, 10)]
    with ThreadPoolExecutor(1) as threads:
        killed = threads.submit(kill)
        done = cli(*words, "--store", f"{servers.url}?model=m")
        killed.result()
    assert done.code == 0, done.err
    assert "warning" in done.out
    assert "ctr ps drop --store 'redis://127.0.0.1:" in done.out
    assert load_model(model).manifest["metrics"]["holdout"]["examples"] == 10 * 20_000


def small_files_only(job: Command) -> Command:
    """It has not trained yet."""
    resource.prlimit(job.popen.pid, resource.RLIMIT_FSIZE, (100_000, 100_000))
    return job


class TestAFullDisk:
    @needs_redis
    def test_in_redis_the_store_keeps_the_model(
        self, cli: Cli, click_log: Path, tmp_path: Path, redis_url: str
    ) -> None:
        whole, model, store = tmp_path / "whole", tmp_path / "model", f"{redis_url}?model=m"
        assert (
            cli("train", "--spec", "criteo", click_log, "--model", whole, *FLAGS, "--store", store).code == 0
        )
        code, said = small_files_only(train(click_log, model, "--store", store)).end()
        assert code == 1
        assert "could not be saved" in said
        assert f"ctr ps export --store 'redis://{redis_url.rpartition('@')[2]}?model=m' --out {model}" in said
        assert not model.exists()
        assert cli("ps", "export", "--store", store, "--model", model).code == 0
        assert load_model(model).id == load_model(whole).id
        assert cli("ps", "drop", "--store", store, "--yes").code == 0
        with redis.Redis.from_url(redis_url) as client:
            assert client.dbsize() == 0

    def test_in_memory_it_goes_to_another_one(self, click_log: Path, tmp_path: Path) -> None:
        place = tmp_path / "place"
        job = train(click_log, place / "model", "--epochs", 100_000)
        wait_for(lambda: "training" in job.said)
        shutil.rmtree(place)
        place.write_text("no folder any more")
        job.popen.send_signal(signal.SIGINT)
        assert job.popen.wait(60) == 1
        assert "could not be saved" in job.said
        rescued = Path(job.said.rpartition("It was saved to ")[2].partition(" instead")[0])
        assert load_model(rescued).linear.weights.size
        shutil.rmtree(rescued)
        job.require_gone()

    def test_nowhere_is_room(self, click_log: Path, tmp_path: Path) -> None:
        code, said = small_files_only(train(click_log, tmp_path / "model")).end()
        assert code == 1
        assert "it is lost" in said
        assert os.listdir(tmp_path) == []
