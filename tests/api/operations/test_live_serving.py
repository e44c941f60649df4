"""`ctr serve --store` beside the job whose weights it serves: fresh, bit for bit, and through what fails."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import httpx
import numpy as np
import pytest

from ctr.api.operations import StoreSource
from ctr.distributed.run import adopt
from ctr.errors import SettingError
from ctr.features import FeatureSpec
from ctr.learn import read_out
from ctr.model import LinearModel, Model, load_model
from ctr.optimizers.ftrl import Ftrl
from ctr.ps import JobBoard, RedisStore, parse_redis_url
from ctr.settings import ServeJob
from ctr.workers import JobDescription
from tests.api.operations.test_processes import children, new_client
from tests.command_line import Cli
from tests.ctr.distributed_jobs import Command, describe, in_memory, wait_for
from tests.ctr.jobs.test_streaming import Streaming
from tests.ps.redis_servers import StartRedis, eventually, needs_redis, timing_sensitive

pytestmark = needs_redis

ROWS = [{"I1": 3, "C1": "68fd1e64"}, {"I2": 1}]


@pytest.fixture
def streaming(redis_url: str, job_log: Path, job_spec: FeatureSpec, tmp_path: Path) -> Streaming:
    return Streaming(redis_url, job_log, job_spec, tmp_path)


@contextmanager
def serving(*words: object) -> Iterator[str]:
    """The address of `ctr serve`."""
    with server(*words) as (_, address):
        yield address


@contextmanager
def server(*words: object) -> Iterator[tuple[Command, str]]:
    """The process of `ctr serve`, and its address."""
    words = ("serve", *words, "--port", 0)
    process = Command(*words)
    try:
        wait_for(lambda: "\n" in process.out or process.popen.poll() is not None)
        assert "\n" in process.out, process.said
        address = re.search(r"http://[0-9.:]+", process.out)
        assert address is not None
        yield process, address[0]
    finally:
        process.kill()
        process.close()


def predicted_by_store(url: str, pass_: int = 0) -> list[np.float32]:
    """What the weights predict that are in the store now, in a pass of the job."""
    parsed = parse_redis_url(url)
    with closing(JobBoard(parsed)) as board:
        job = board.job()
        assert job is not None
        description = JobDescription.from_bytes(job.description)
    with closing(description.join_store(parsed)) as store:
        slots, state = read_out(store)
    linear = LinearModel.of_weights(slots, description.optimizer_in(pass_).weights(state))
    return list(Model.of(description.feature_spec(), linear, {}).predict(ROWS))


def predict(client: httpx.Client) -> tuple[list[np.float32], str]:
    answer = client.post("/v1/predict", json={"rows": ROWS})
    assert answer.status_code == 200, answer.text
    return [np.float32(each) for each in answer.json()["predictions"]], answer.json()["model"]


@timing_sensitive
def test_what_is_trained_is_served_and_a_new_job_takes_its_place(streaming: Streaming) -> None:
    streaming.append(5)
    with streaming.training(additive=False) as command:
        streaming.trained()
        served = serving("--store", streaming.store_url, "--max-age", "2s")
        with served as url, httpx.Client(base_url=url, verify=False) as client:
            seen = set[np.float32]()
            for _ in range(3):
                streaming.append(5)
                streaming.trained()
                expected = predicted_by_store(streaming.store_url)
                eventually(lambda expected=expected: predict(client)[0] == expected)
                seen.add(expected[0])
            assert len(seen) == 3
            first = predict(client)[1]
            assert client.get("/readyz").json()["age_s"] < 2
            streaming.stop(command)
            eventually(lambda: client.get("/readyz").status_code == 503)
            assert "dropped" in client.get("/readyz").json()["detail"]
            assert predict(client)[0] == expected
            with streaming.training("--warm-start", streaming.model, additive=False) as again:
                eventually(lambda: predict(client)[1] != first, 60.0)
                eventually(lambda: client.get("/readyz").status_code == 200)
                changed = changes(client)
                streaming.append(5)
                streaming.trained()
                expected = predicted_by_store(streaming.store_url)
                eventually(lambda: predict(client)[0] == expected)
                eventually(lambda: changes(client) > changed)
                streaming.stop(again)


@timing_sensitive
def test_weights_age_when_the_command_that_trains_them_is_killed(streaming: Streaming) -> None:
    streaming.append(5)
    with streaming.training(additive=False) as command:
        streaming.trained()
        served = serving("--store", streaming.store_url, "--max-age", "2s")
        with served as url, httpx.Client(base_url=url, verify=False) as client:
            assert client.get("/readyz").json()["age_s"] < 2
            command.popen.kill()
            eventually(lambda: client.get("/readyz").status_code == 503)
            assert "nobody trains them" in client.get("/readyz").json()["detail"]
            assert age_in_metrics(client) > 2


def age_in_metrics(client: httpx.Client) -> float:
    age = re.search(r"\nctr_weights_age_seconds\S* (\S+)", client.get("/metrics").text)
    assert age is not None
    return float(age[1])


def changes(client: httpx.Client) -> float:
    """Changes of slots that the server has counted."""
    return float(client.get("/metrics").text.split("\nctr_weights_changed_total ")[1].split()[0])


def test_several_processes_serve_the_same_though_they_are_killed(streaming: Streaming) -> None:
    """One of them follows the job for all."""
    streaming.append(5)
    with streaming.training(additive=False) as command:
        streaming.trained()
        with server("--store", streaming.store_url, "--workers", 2) as (parent, url):

            def all_are_fresh() -> bool:
                fresh = True
                for _ in range(12):  # a connection each, so both processes are asked
                    with suppress(httpx.TransportError), new_client(url) as client:
                        fresh &= predict(client)[0] == expected
                return fresh

            first, second = children(parent)
            for killed in (None, first, second):
                if killed is not None:
                    os.kill(killed, signal.SIGKILL)
                streaming.append(5)
                streaming.trained()
                expected = predicted_by_store(streaming.store_url)
                eventually(all_are_fresh)
                eventually(lambda: len(children(parent)) == 2)
        streaming.stop(command)


def test_a_process_that_replaces_another_serves_the_job_of_now(streaming: Streaming) -> None:
    """The job that its server began with may be over."""
    streaming.append(5)
    with streaming.training(additive=False) as command:
        streaming.trained()
        with server("--store", streaming.store_url, "--workers", 2) as (parent, url):
            streaming.stop(command)
            with streaming.training("--warm-start", streaming.model, additive=False) as again:
                streaming.append(5)
                streaming.trained()
                expected = predicted_by_store(streaming.store_url)
                for killed in children(parent):
                    os.kill(killed, signal.SIGKILL)
                    eventually(lambda pid=killed: pid not in children(parent) and len(children(parent)) == 2)

                def all_are_fresh() -> bool:
                    with suppress(httpx.TransportError):
                        for _ in range(12):
                            with new_client(url) as client:
                                if predict(client)[0] != expected:
                                    return False
                        return True
                    return False

                eventually(all_are_fresh)
                assert parent.popen.poll() is None
                streaming.stop(again)


@timing_sensitive
def test_what_is_published_is_served_until_there_is_a_job(streaming: Streaming) -> None:
    streaming.append(5)
    with streaming.training(additive=False) as command:
        streaming.trained()
        streaming.stop(command)
    published = load_model(streaming.model)
    words = ("--model", streaming.model, "--max-age", "2s")
    away = server("--store", "redis://127.0.0.1:1/0?model=away", *words)
    with away as (process, url), httpx.Client(base_url=url, verify=False) as client:
        assert predict(client) == (list(published.predict(ROWS)), published.id)
        eventually(lambda: client.get("/readyz").status_code == 503)
        assert "a published version is served" in client.get("/readyz").json()["detail"]
        assert age_in_metrics(client) > 2
        assert predict(client)[1] == published.id
        assert process.said.count("Until then, a version of") == 1
    with (
        serving("--store", streaming.store_url, *words) as url,
        httpx.Client(base_url=url, verify=False) as client,
    ):
        assert predict(client)[1] == published.id
        with streaming.training("--warm-start", streaming.model, additive=False) as again:
            eventually(lambda: predict(client)[1].startswith("live-"))
            eventually(lambda: client.get("/readyz").status_code == 200)
            streaming.append(5)
            streaming.trained()
            expected = predicted_by_store(streaming.store_url)
            eventually(lambda: predict(client)[0] == expected)
            streaming.stop(again)
        eventually(lambda: client.get("/readyz").status_code == 503)
        assert predict(client)[0] == expected


def test_a_process_that_replaces_another_while_the_store_is_away_serves_what_its_siblings_do(
    start_redis: StartRedis, job_log: Path, job_spec: FeatureSpec, tmp_path: Path, models: list[Path]
) -> None:
    redis = start_redis()
    streaming = Streaming(redis.url, job_log, job_spec, tmp_path)
    words = "--store", streaming.store_url, "--model", models[0], "--workers", 2
    with closing(streaming.stream), server(*words) as (parent, url):

        def seen() -> set[str]:
            versions = set()
            for _ in range(12):  # a connection each, so both processes are asked
                with suppress(httpx.TransportError):
                    versions.add(httpx.get(f"{url}/readyz", verify=False).json()["model"])
            return versions

        assert seen() == {load_model(models[0]).id}
        streaming.append(5)
        with streaming.training(additive=False):
            eventually(lambda: all(version.startswith("live-") for version in seen()), 60.0)
            (live,) = seen()
            redis.servers[0].kill()
            for killed in children(parent):
                os.kill(killed, signal.SIGKILL)
                eventually(lambda pid=killed: pid not in children(parent) and len(children(parent)) == 2)
            eventually(lambda: len(children(parent)) == 2 and seen() == {live})


@pytest.mark.parametrize("consistency", ["bsp", "asp"])
def test_weights_are_those_of_the_pass_that_a_job_is_in(
    redis_url: str, job_log: Path, job_spec: FeatureSpec, consistency: str
) -> None:
    url = f"{redis_url}?model=passes-{consistency}"
    parsed = parse_redis_url(url)
    ftrl = Ftrl(l1=0.1, l2=2.0)
    job = describe(job_log, job_spec, ftrl=ftrl, passes=2, consistency=consistency)
    plan, z_bits, n_bits = job.plan(), job.z_bits, job.n_bits
    shape = {"bits": job_spec.bits, "width": Ftrl.width, "facts": job.facts()}
    opened = RedisStore(parsed, **shape, z_bits=z_bits, n_bits=n_bits)
    with closing(opened) as store, closing(JobBoard(parsed)) as board:
        adopt(store, *in_memory(job)[0], ftrl)
        board.create("passes", job.to_bytes(), shards=plan.shards, ranks=job.ranks)
        source, served = StoreSource(url), []
        for pass_ in range(2):
            (version,) = source.versions()["live"]
            model = source.load(version)
            assert model.linear.live is not None
            model.linear.live.start()
            served.append(list(model.predict(ROWS)))
            assert served[pass_] == predicted_by_store(url, pass_)
            model.linear.live.close()
            if pass_:
                break
            if consistency == "bsp":
                board.restore({}, [-(-plan.shards_in_pass // job.ranks)] * job.ranks)
            else:
                board.restore({plan.shards_in_pass: 0})
        assert served[0] != served[1]
        board.finish()
        store.drop()


def test_a_store_without_a_job_is_refused(redis_url: str, cli: Cli) -> None:
    ended = cli("serve", "--store", f"{redis_url}?model=nothing", "--port", 0)
    assert ended.code == 1
    assert "?model=nothing: no job trains this model" in ended.err


@pytest.mark.parametrize("option", ["--store", "--windows"])
def test_a_stream_is_no_model(option: str, model_dir: Path, cli: Cli) -> None:
    ended = cli("serve", "--model", model_dir, option, "redis://localhost:1/0?stream=ads", "--port", 0)
    assert (ended.code, "names a stream, and not a model; write ?model=NAME" in ended.err) == (1, True)


def test_settings_that_do_not_go_together() -> None:
    with pytest.raises(SettingError, match="give one"):
        ServeJob(registry="registry", model=Path("model"))
    with pytest.raises(SettingError, match="and no"):
        ServeJob(store="redis://host", registry="registry", canary=0.1)
    with pytest.raises(SettingError, match="weights that change"):
        ServeJob(model=Path("model"), max_age="30s")
