"""Servers with windows in Redis: they say what offline windows say, and share events."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from time import sleep
from typing import Any

import httpx
import numpy as np
import pytest
import redis
from numpy.typing import NDArray

from ctr.api.app import create_app
from ctr.api.shared_windows import SharedWindows
from ctr.errors import StoreError
from ctr.features import DatasetSource, Transform, parse_spec
from ctr.features.windows import Windows, load_windows
from ctr.jobs import run_train_job
from ctr.model import Model, load_model
from ctr.ps.wire import parse_redis_url
from ctr.settings import TrainJob
from tests.api.running import Running, run_server
from tests.api.test_events import SPEC, START, build, write_log
from tests.api.test_server import server_process
from tests.command_line import Cli
from tests.ps.breakable_redis import BreakableRedis
from tests.ps.redis_servers import StartRedis, eventually, needs_faketime, needs_redis
from tests.ps.stepped_clock import SteppedClock

pytestmark = needs_redis

Serve = Callable[[str], Running]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model of a first day, and the data set of a second one."""
    found = tmp_path_factory.mktemp("days")
    write_log(found / "1.csv", 0, 1_000, seed=1)
    first = build(found / "1.csv", Windows(SPEC), found / "first")
    run_train_job(TrainJob(inputs=[first], spec=None, model=found / "model", chunk=100))
    return found


@pytest.fixture(scope="module")
def model(folder: Path) -> Model:
    return load_model(folder / "model")


@pytest.fixture
def serve(model: Model) -> Iterator[Serve]:
    """Starts servers of the model with windows at a URL."""
    with ExitStack() as started:

        def start(url: str) -> Running:
            assert model.windows is not None
            shared = SharedWindows(parse_redis_url(url), SPEC, model.windows)
            return started.enter_context(run_server(create_app(model.with_shared(shared), windows=shared)))

        yield start


def ask(running: Running, path: str, *rows: dict[str, object]) -> httpx.Response:
    return running.client.post(path, json={"rows": rows})


def send(running: Running, what: str, *rows: dict[str, object]) -> int:
    answer = ask(running, f"/v1/events/{what}", *rows)
    assert answer.status_code == 200, answer.text
    return int(answer.json()["taken"])


def all_known(url: str) -> list[dict[str, NDArray[Any]]]:
    """What the windows in Redis know, as those in memory would say it."""
    shared = SharedWindows(parse_redis_url(url), SPEC, Windows(SPEC))
    users = [{"user": f"u{u}", "site": f"s{s}", "t": START} for u in range(1, 5) for s in range(3)]
    transform = Transform(SPEC, with_label=False)
    names = shared._records.names_in(
        transform.cells_of(users), np.zeros(len(users), np.uint8), transform.columns, slice(None)
    )
    windows, _ = shared._windows(names, *shared._store.read(names))
    return [windows.arrays(k) for k in range(len(SPEC.windows))]


@pytest.mark.parametrize("where", ["redis_url", "cluster_url"])
def test_replayed_rows_have_the_features_that_they_have_offline(
    request: pytest.FixtureRequest, folder: Path, tmp_path: Path, model: Model, serve: Serve, where: str
) -> None:
    """Sent in turn to two servers, each of which is asked for the row before it is told of it."""
    log = write_log(tmp_path / "2.csv", 2_500, 250, seed=2)
    second = build(tmp_path / "2.csv", load_windows(SPEC, folder / "model"), tmp_path / "second")
    offline = DatasetSource(second).sample(len(log))
    servers = [serve(request.getfixturevalue(where)) for _ in range(2)]
    shared = SharedWindows(parse_redis_url(request.getfixturevalue(where)), SPEC, Windows(SPEC))
    transform = model.with_shared(shared).transform
    served, clicks, features = [], [], []
    for i, row in enumerate(log):
        shown = {name: row[name] for name in ("t", "user", "site")}
        while clicks and clicks[0]["t"] + 20 <= row["t"]:  # type: ignore[operator]
            assert send(servers[i % 2], "clicks", clicks.pop(0)) == 1
        features.append(transform.apply_rows([shown]).slots.tolist())
        served.append(ask(servers[i % 2], "/v1/predict", shown).json()["predictions"][0])
        assert send(servers[(i + i // 2) % 2], "impressions", shown) == bool(row["user"])
        if row["click"] and row["user"]:
            clicks.append(shown)
    assert features == [offline.slots[a:b].tolist() for a, b in pairwise(offline.indptr)]
    np.testing.assert_array_equal(np.array(served, np.float32), model.predict(offline))
    assert len(set(served)) > 50


def test_two_servers_at_once_lose_no_event(redis_url: str, folder: Path, serve: Serve) -> None:
    servers = [serve(redis_url), serve(redis_url)]
    at = START + 3_000  # all at one time, so that their order does not matter
    rows = [{"t": at, "user": f"u{1 + i % 4}", "site": f"s{i % 3}"} for i in range(12)]

    def feed(k: int) -> int:
        with httpx.Client(base_url=servers[k % 2].url, timeout=30, verify=False) as client:
            taken = 0
            for i in range(40):
                some = rows if i % 8 == 0 else [rows[(k + i) % 12]]
                for what in ("impressions", "clicks")[: 1 + i % 2]:
                    answer = client.post(f"/v1/events/{what}", json={"rows": some})
                    assert answer.status_code == 200, answer.text
                    taken += answer.json()["taken"]
            return taken

    with ThreadPoolExecutor(6) as threads:
        taken = sum(threads.map(feed, range(6)))
    windows = load_windows(SPEC, folder / "model")
    expected = 0
    transform = Transform(SPEC, with_label=False)
    sent = [
        (what, rows if i % 8 == 0 else [rows[(k + i) % 12]])
        for what in ("impressions", "clicks")
        for k in range(6)
        for i in range(40)
        if what == "impressions" or i % 2
    ]
    for what, some in sent:
        cells = transform.cells_of(some)
        add = windows.take_in if what == "impressions" else windows.add_clicks
        expected += add(cells, transform.columns)
    assert taken == expected
    for k, found in enumerate(all_known(redis_url)):
        for name, array in windows.arrays(k).items():
            np.testing.assert_array_equal(found[name], array)


def test_a_server_that_is_started_again_goes_on(redis_url: str, model: Model, serve: Serve) -> None:
    row = {"t": START + 3_000, "user": "u1", "site": "s1"}
    first = serve(redis_url)
    before = ask(first, "/v1/predict", row).json()["predictions"]
    assert send(first, "impressions", *[row] * 9) == 9
    after = ask(first, "/v1/predict", row).json()["predictions"]
    again = serve(redis_url)
    assert ask(again, "/v1/predict", row).json()["predictions"] == after != before
    other = serve(f"{redis_url}?model=other")  # which knows what the model does
    assert ask(other, "/v1/predict", row).json()["predictions"] == before


def test_wrong_events_are_refused_as_a_whole_and_others_are_not(redis_url: str, serve: Serve) -> None:
    running = serve(redis_url)
    good, late = {"t": START + 4_000, "user": "u1"}, {"t": START, "user": "u2"}
    before = all_known(redis_url)
    answer = ask(running, "/v1/events/impressions", good, late)
    assert answer.status_code == 422
    assert "rows[1].t: '1510000000' is earlier than an event before it" in answer.json()["detail"]
    for found, arrays in zip(all_known(redis_url), before, strict=True):
        assert all(np.array_equal(found[name], arrays[name]) for name in arrays)
    assert send(running, "impressions", good) == 1
    assert send(running, "impressions") == send(running, "clicks") == 0


def test_while_redis_is_away_the_answer_is_503(start_redis: StartRedis, serve: Serve) -> None:
    servers = start_redis(config={"appendonly": "yes", "appendfsync": "always"})
    running, row = serve(servers.url), {"t": START + 3_000, "user": "u1", "site": "s1"}
    assert send(running, "impressions", row) == 1
    told = ask(running, "/v1/predict", row).json()
    servers.servers[0].kill()
    for path in ("/v1/predict", "/v1/events/impressions", "/v1/events/clicks"):
        answer = ask(running, path, row)
        assert answer.status_code == 503
        assert "the windows could not be reached for 1 s" in answer.json()["detail"]
    assert running.client.get("/readyz").status_code == 503
    assert running.client.get("/healthz").status_code == 200
    servers.servers[0].restart()
    eventually(lambda: running.client.get("/readyz").status_code == 200)
    assert ask(running, "/v1/predict", row).json() == told


def test_the_windows_of_another_spec_are_refused(redis_url: str, serve: Serve) -> None:
    serve(redis_url)
    text = "{version: 1, source: {format: delimited}, label: click, fields: [{name: site, type: category}],"
    windows = " windows: [{name: user, key: [user], time: t, spans: [1d], features: [count]}]}"
    other = parse_spec(text + windows, "other")
    with pytest.raises(StoreError, match=r"another spec \(there are 2 windows and here 1\)"):
        SharedWindows(parse_redis_url(redis_url), other, Windows(other))


def test_the_command_says_where_its_windows_are(folder: Path, redis_url: str) -> None:
    for told in ("as the model has them", "as they are there"):
        with server_process(folder / "model", "--windows", redis_url) as (_, line):
            assert line.endswith(f", windows in redis://{redis_url.rpartition('@')[2]} ({told})\n")


def test_wrong_use_is_refused_before_it_listens(cli: Cli, folder: Path, model_dir: Path) -> None:
    for model, url, problem in (
        (folder / "model", "memory://", "memory:// names no Redis store"),
        (folder / "model", "redis://127.0.0.1:1/0", "redis://127.0.0.1:1/0: cannot be reached"),
        (
            model_dir,
            "redis://127.0.0.1:1/0",
            "the model has no windows to keep in Redis; leave --windows out",
        ),
    ):
        ended = cli("serve", "--model", model, "--port", 0, "--windows", url)
        assert (ended.code, problem in ended.err) == (1, True), ended.err


@needs_faketime
def test_a_step_of_the_servers_clock_changes_no_prediction(
    start_redis: StartRedis, stepped_clock: SteppedClock, serve: Serve
) -> None:
    servers = start_redis(clock=stepped_clock)
    running, row = serve(servers.url), {"t": START + 3_000, "user": "u1", "site": "s1"}
    assert send(running, "impressions", *[row] * 9) == 9
    before = ask(running, "/v1/predict", row).json()
    for step_s in (365 * 86_400.0, 0.0, -86_400.0, 0.0):
        stepped_clock.step(step_s)
        assert servers.servers[0].call("DBSIZE") > 0
        sleep(0.3)  # in which Redis deletes what has expired
        assert ask(running, "/v1/predict", row).json() == before
        assert send(running, "clicks", {"t": START, "user": "nobody"}) == 0
    assert send(running, "impressions", row) == 1


def test_windows_that_are_partly_lost_are_known_as_lost(
    redis_url: str, shared_redis: BreakableRedis, serve: Serve
) -> None:
    """Whichever key of theirs is deleted."""
    row = {"t": START + 3_000, "user": "u1", "site": "s1"}
    with shared_redis.servers[0].connect() as client:
        for number in range(len(keys_of(client, serve(redis_url)))):
            client.flushall()
            running = serve(redis_url)
            assert send(running, "impressions", row) == 1
            key = sorted(keys_of(client, running))[number]
            client.delete(key)
            for path in ("/v1/predict", "/v1/events/impressions", "/v1/events/clicks"):
                answer = ask(running, path, row)
                assert (answer.status_code, "are gone" in answer.text) == (503, True), key
            assert running.client.get("/readyz").status_code == 503


def keys_of(client: redis.Redis, _: Running) -> list[str]:
    """All keys of windows but what only tells which change of a server was the last."""
    return [key for key in client.keys("*") if not key.endswith(":writers")]
