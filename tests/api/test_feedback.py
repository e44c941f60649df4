"""From a served row to a click, and to a row for training."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from time import monotonic
from typing import Any

import httpx
import numpy as np
import polars as pl
import pyarrow as pa
import pytest

import ctr
from ctr.api import Answer, AsyncClient, Client
from ctr.api.app import create_app
from ctr.api.feedback import FeedbackLog
from ctr.api.operations import RegistrySource, Versions
from ctr.api.server import serve
from ctr.errors import CtrError, DataError, SettingError, StoreError
from ctr.features import open_source
from ctr.features.spec import SERVED
from ctr.features.windows import Windows
from ctr.model import Model, load_model
from ctr.registry import Registry
from ctr.settings import ServeJob
from ctr.stream import ExampleStream, JoinSettings, join, join_stream
from ctr.stream.event_log import IMPRESSIONS, now, segments
from tests.api.operations.test_metrics import value
from tests.api.operations.test_processes import children
from tests.api.operations.test_versions import until
from tests.api.running import Running, run_server
from tests.api.test_events import SPEC as WINDOWED
from tests.api.test_events import build, write_log
from tests.api.test_server import server_process
from tests.command_line import Cli
from tests.ps.redis_servers import StartRedis, needs_redis, timing_sensitive

LATER = 3_600_000_000
FLAGS: list[dict[str, bool]] = [{}, {"log": True}, {"log": False}]
ROWS = [{"city": "Köln", "age": 3}, {"city": "東京", "price": "1e3"}, {}]


@pytest.fixture
def kept(model: Model, tmp_path: Path) -> Iterator[tuple[Running, Path]]:
    log = FeedbackLog(tmp_path / "log")
    with run_server(create_app(model, feedback=log)) as running:
        yield running, tmp_path / "log"
    log.close()


def joined_rows(log: Path, out: Path, **options: Any) -> list[dict[str, Any]]:
    joined = join(log, out, JoinSettings(60, **options), until=now() + LATER)
    return [] if joined.file is None else [json.loads(line) for line in joined.file.read_text().splitlines()]


def test_rows_are_kept_as_they_came(kept: tuple[Running, Path], model: Model, tmp_path: Path) -> None:
    client, log = kept[0].client, kept[1]
    answer = client.post("/v1/predict", json={"rows": ROWS, "log": True}).json()
    assert answer["predictions"] == pytest.approx(model.predict(ROWS).tolist())
    assert len(set(answer["ids"])) == 3
    for request in ({"rows": ROWS}, {"rows": ROWS, "log": False}):
        assert "ids" not in client.post("/v1/predict", json=request).json()
    repeated = (b'{"rows":[{}],"log":true,"log":false}', b'{"rows":[{"city":",\\"log\\":"}],"log":false}')
    for body in repeated:  # the last of a key counts
        assert "ids" not in client.post("/v1/predict", content=body).json()
    others = [
        {"columns": {"city": ["Köln", "Rom"]}, "log": True},
        {"context": {"city": "Köln"}, "candidates": [{"age": 1}, {"age": 2}], "log": True},
    ]
    for request in others:
        assert len(client.post("/v1/predict", json=request).json()["ids"]) == 2
    clicked = client.post("/v1/feedback", json={"clicks": [answer["ids"][1], answer["ids"][1]]})
    assert clicked.json() == {"taken": 2}
    (only,) = segments(log, IMPRESSIONS)
    events = [event for event, _ in only.events()]
    assert [event["row"] for event in events[:3]] == ROWS
    assert [event["prediction"] for event in events[:3]] == pytest.approx(answer["predictions"])
    assert {event["model"] for event in events} == {model.id}
    rows = joined_rows(log, tmp_path / "joined")
    assert [row["click"] for row in rows] == [0, 1, 0, 0, 0, 0, 0]
    assert rows[1] == {"click": 1, "city": "東京", "price": "1e3"}
    assert rows[5] == {"click": 0, "city": "Köln", "age": 1}


def test_drift_is_measured_on_rows_that_are_kept(kept: tuple[Running, Path]) -> None:
    client = kept[0].client
    client.post("/v1/predict", json={"rows": ROWS, "log": True})
    until(lambda: value(client.get("/metrics").text, 'ctr_field_features_total{field="city"}') > 0)


def test_the_document_of_a_server_with_a_log_is_whole(kept: tuple[Running, Path]) -> None:
    paths = kept[0].client.get("/openapi.json").json()["paths"]
    for path in ("/v1/feedback", "/v1/predict", "/v2/models/ctr/infer"):
        assert "requestBody" in paths[path]["post"], path


def test_a_repeat_of_a_client_is_not_logged_again(model: Model, tmp_path: Path) -> None:
    log = FeedbackLog(tmp_path / "log", 1.0)
    app = create_app(model, feedback=log)
    unanswered: list[bytes] = []

    async def losing_answers(scope: Any, receive: Any, send: Any) -> None:
        """The application, whose next answer never arrives if `unanswered` is empty."""
        if scope["type"] != "http" or scope["method"] != "POST" or unanswered:
            await app(scope, receive, send)
            return
        unanswered.append(scope["path"])

        async def sending(_message: Any) -> None:
            pass

        await app(scope, receive, sending)
        while (await receive())["type"] != "http.disconnect":
            pass

    async def ask(url: str) -> Any:
        async with AsyncClient(url, timeout_s=0.5) as client:
            return (await client.ask(ROWS)).predictions

    expected = model.predict(ROWS).tolist()
    with run_server(losing_answers) as running:  # type: ignore[arg-type]
        with Client(running.url, timeout_s=0.5) as client:
            answer = client.ask(ROWS)
            assert answer.predictions.tolist() == expected
            assert answer.ids == [None] * 3, "of the answer that never came"
        unanswered.clear()
        assert asyncio.run(ask(running.url)).tolist() == expected
    log.close()
    (only,) = segments(tmp_path / "log", IMPRESSIONS)
    assert [event["row"] for event, _ in only.events()] == 2 * ROWS


def test_clients_report_clicks_on_logged_rows(model: Model, tmp_path: Path) -> None:
    """By the ids of their rows, whichever way they are sent; rows without ids are not logged."""
    log, columns = FeedbackLog(tmp_path / "log", 1.0), {"city": ["Köln", "東京", None], "age": [3, None, 4]}
    table = pa.table(columns)
    rows = table.to_pylist()

    async def ask(url: str) -> tuple[Answer, int]:
        async with AsyncClient(url, batch_rows=2) as client:
            answer = await client.ask(table, log=True)
            return answer, await client.feedback(answer.ids)

    with run_server(create_app(model, feedback=log)) as running, Client(running.url, batch_rows=2) as client:
        for data in (rows, table, table.to_pandas(), pl.DataFrame(columns), rows[0]):
            answer = client.ask(data)
            np.testing.assert_array_equal(answer.predictions, client.predict(data))
            assert len(answer.ids) == answer.predictions.size
            assert client.feedback(answer.ids[0]) == 1
            assert set(client.ask(data, log=False).ids) == {None}
        answer, stored = asyncio.run(ask(running.url))
        np.testing.assert_array_equal(answer.predictions, client.predict(table))
        assert stored == 3
        assert client.feedback([None, None]) == 0
        for wrong in (["x"], [1], 5):
            with pytest.raises(DataError, match=r"is not an id from an answer|give ids from answers"):
                client.feedback(wrong)  # type: ignore[arg-type]
    log.close()
    joined = joined_rows(tmp_path / "log", tmp_path / "joined")
    assert [row["click"] for row in joined] == [*([1, 0, 0] * 4), 1, 1, 1, 1]
    assert [row["city"] for row in joined[3:6]] == columns["city"]
    with run_server(create_app(model)) as running, Client(running.url) as client:
        assert client.ask(table).ids == [None] * 3
        with pytest.raises(DataError, match="this server has no feedback log; start it with --feedback-log"):
            client.ask(table, log=True)
        with pytest.raises(CtrError, match=r"this server has no feedback log; .*404"):
            client.feedback("x")


def test_a_column_that_is_called_log(tmp_path: Path) -> None:
    """Is no wish to keep its row; and a request that says no is not kept, whatever was drawn."""
    spec = "{version: 1, source: {format: jsonl}, label: y, fields: [{name: log, type: category}]}"
    model = ctr.train([{"log": "ab"[i % 2], "y": i % 3 // 2} for i in range(90)], spec)
    for share, kept in ((0.0, [False, True, False]), (1.0, [True, True, False])):
        log = FeedbackLog(tmp_path / str(share), share)
        with run_server(create_app(model, feedback=log)) as running:
            requests: list[dict[str, Any]] = [{"rows": [{"log": "a"}], **flag} for flag in FLAGS]
            answers = [running.client.post("/v1/predict", json=request).json() for request in requests]
        log.close()
        assert ["ids" in answer for answer in answers] == kept


def test_rows_of_the_open_inference_protocol_are_not_kept(model: Model, tmp_path: Path) -> None:
    """Its answers have no ids, so each row would count as not clicked."""
    log = FeedbackLog(tmp_path / "log", 1.0)
    with run_server(create_app(model, feedback=log)) as running:
        city = {"name": "city", "datatype": "BYTES", "shape": [1], "data": ["Köln"]}
        running.client.post("/v2/models/ctr/infer", json={"inputs": [city]}).raise_for_status()
    log.close()
    assert segments(tmp_path / "log", IMPRESSIONS) == []


def test_a_large_request_is_drawn_once_too(model: Model, tmp_path: Path) -> None:
    """It is parsed in a thread."""
    log = FeedbackLog(tmp_path / "log", 0.5)
    with run_server(create_app(model, feedback=log)) as running:
        rows = 400 * [{"city": "Köln", "age": 3}]
        answers = [running.client.post("/v1/predict", json={"rows": rows}).json() for _ in range(200)]
    log.close()
    assert 60 < sum("ids" in answer for answer in answers) < 140


def test_a_shadow_predicts_what_is_kept(
    registry: Registry, models: list[Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """And keeps nothing itself."""
    log = FeedbackLog(tmp_path / "log")
    source = RegistrySource(registry.place, ["stable", "shadow"])
    registry.publish(models[1], ["shadow"])

    def make_app(model: Model, metrics: Any, on_warm: Any) -> Any:
        return create_app(model, metrics=metrics, on_warm=on_warm, feedback=log)

    first = source.load(source.versions()["stable"][0])
    with run_server(Versions(source, first, make_app, {"shadow": 1.0}, poll_s=0.02)) as running:
        until(lambda: len(running.client.get("/v1/models").json()["served"]) == 2)
        answer = running.client.post("/v1/predict", json={"rows": ROWS, "log": True}).json()
        until(lambda: value(running.client.get("/metrics").text, "ctr_shadow_difference_count") == 3)
    log.close()
    (only,) = segments(tmp_path / "log", IMPRESSIONS)
    assert [event["id"] for event, _ in only.events()] == answer["ids"]
    assert "failed on a request" not in caplog.text


def test_a_model_learns_from_what_it_served(
    model_dir: Path, raw_rows: list[dict[str, str]], tmp_path: Path, cli: Cli
) -> None:
    """As the files say that it was trained on, with the same features."""
    with server_process(model_dir, "--feedback-log", tmp_path / "log", "--log-impressions", "100%") as (
        process,
        line,
    ):
        with httpx.Client(base_url=line.split()[-1], verify=False) as client:
            served = client.post("/v1/predict", json={"rows": raw_rows[:400]}).json()
            clicks = [id_ for id_, row in zip(served["ids"], raw_rows, strict=False) if row["city"] == "東京"]
            client.post("/v1/feedback", json={"clicks": clicks}).raise_for_status()
        process.popen.send_signal(signal.SIGTERM)
        assert process.end()[0] == 0
    joined_rows(tmp_path / "log", tmp_path / "joined")
    spec = model_dir / "features.yaml"
    trained = ctr.train(tmp_path / "joined", spec, model=tmp_path / "model", warm_start=model_dir)
    assert trained.manifest["training"]["rows"] == 400
    margins = [
        each.margins([{"city": "東京"}, {"city": "Köln"}]) for each in (load_model(model_dir), trained)
    ]
    before, after = (float(clicked - other) for clicked, other in margins)
    assert after > before + 0.1
    ended = cli("join", tmp_path / "log", "--out", tmp_path / "other", "--window", "1s", "--grace", "1s")
    assert ended.code == 0
    assert "joined " in ended.out


@pytest.mark.parametrize(
    ("body", "status", "problem"),
    [
        ({"clicks": ["x"]}, 422, "'x' is not an id"),
        ({"clicks": [7]}, 422, "'7' is not an id"),
        ({"clicks": [None]}, 422, "'None' is not an id"),
        ({"clicks": "0006549a7e4d80-0f0f0f0f-0"}, 422, "send {"),
        ({"clicks": [], "more": 1}, 422, "nothing else"),
        ({}, 422, "send {"),
        ([], 422, "send {"),
        ({"clicks": ["0006549a7e4d80-0f0f0f0f-0"] * 10_001}, 413, "CTR_SERVE_LIMIT_ROWS"),
    ],
)
def test_wrong_clicks(kept: tuple[Running, Path], body: object, status: int, problem: str) -> None:
    answer = kept[0].client.post("/v1/feedback", json=body)
    assert answer.status_code == status
    assert problem in answer.json()["detail"]
    answer = kept[0].client.post("/v1/feedback?clicks=1", json={"clicks": []})
    assert (answer.status_code, answer.json()["detail"]) == (
        422,
        "unknown parameter 'clicks'; there are none",
    )
    answer = kept[0].client.post("/v1/explain", json={"rows": [], "log": True})
    assert (answer.status_code, "does not log rows" in answer.json()["detail"]) == (422, True)
    for log in ("yes", 1, None):
        answer = kept[0].client.post("/v1/predict", json={"rows": [], "log": log})
        assert (answer.status_code, "'log' is" in answer.json()["detail"]) == (422, True)


def test_a_server_without_a_log_says_so(client: httpx.Client) -> None:
    answer = client.post("/v1/predict", json={"rows": ROWS, "log": True})
    assert answer.status_code == 422
    assert "has no feedback log; start it with --feedback-log" in answer.json()["detail"]
    assert client.post("/v1/predict", json={"rows": ROWS, "log": False}).status_code == 200
    answer = client.post("/v1/feedback", json={"clicks": []})
    assert answer.status_code == 404
    assert "has no feedback log; start it with --feedback-log" in answer.json()["detail"]
    assert "/v1/feedback" not in client.get("/openapi.json").json()["paths"]


def test_a_disk_that_refuses(kept: tuple[Running, Path], caplog: pytest.LogCaptureFixture) -> None:
    """Rows are answered all the same; clicks are to be sent again."""
    client, log = kept[0].client, kept[1]
    shutil.rmtree(log)
    for _ in range(2):
        answer = client.post("/v1/predict", json={"rows": ROWS, "log": True})
        assert answer.status_code == 200
        assert "ids" not in answer.json()
    refused = client.post("/v1/feedback", json={"clicks": ["0006549a7e4d80-0f0f0f0f-0"]})
    assert refused.status_code == 503
    assert "send them again" in refused.json()["detail"]
    assert value(client.get("/metrics").text, "ctr_rows_not_kept_total") == 6
    assert caplog.text.count("rows that were served are not stored") == 1


@needs_redis
@timing_sensitive
def test_a_log_in_redis(model: Model, start_redis: StartRedis) -> None:
    """While Redis is away, rows are answered with ids and wait for it; clicks are to be sent again."""
    servers = start_redis()
    url = f"{servers.url}?stream=served"
    log = FeedbackLog(url, kept_s=600)
    with run_server(create_app(model, feedback=log)) as running:
        client = running.client
        first = client.post("/v1/predict", json={"rows": ROWS, "log": True}).json()["ids"]
        clicks = {"clicks": first[:1]}
        assert client.post("/v1/feedback", json=clicks).json() == {"taken": 1}
        servers.servers[0].freeze()
        began = monotonic()
        second = client.post("/v1/predict", json={"rows": ROWS, "log": True}).json()["ids"]
        assert monotonic() - began < 1
        refused = client.post("/v1/feedback", json=clicks, timeout=20)
        assert (refused.status_code, "send them again" in refused.json()["detail"]) == (503, True)
        servers.servers[0].thaw()
    log.close()
    settings = JoinSettings(window_s=60, grace_s=1)
    joined = join_stream(url, f"{servers.url}?stream=joined", settings, follow=False)
    assert (joined.rows, joined.clicked) == (len(first + second), 1)
    with closing(ExampleStream(f"{servers.url}?stream=joined")) as stream:
        rows = [json.loads(line) for line in stream.read({0: 0})[0].rows.splitlines()]
    assert [row for row in rows if row["click"]] == [{"click": 1, **ROWS[0]}]
    assert [row for row in rows if not row["click"]] == [{"click": 0, **row} for row in ROWS + ROWS]


def test_a_log_in_redis_is_checked_before_a_server_starts(model_dir: Path) -> None:
    with pytest.raises(SettingError, match="names a model, and not a stream"):
        ServeJob(model=model_dir, feedback_log="redis://localhost:1/0?model=clicks")
    with pytest.raises(StoreError, match="cannot be reached"):
        serve(ServeJob(model=model_dir, port=0, feedback_log="redis://localhost:1/0?stream=served"))


def test_what_was_answered_outlives_a_process(model_dir: Path, tmp_path: Path) -> None:
    """Two processes, one of which is killed under load: every id that a client got is joined, once."""
    ids: list[str] = []
    words = ("--workers", 2, "--feedback-log", tmp_path / "log", "--log-impressions", "100%")
    with server_process(model_dir, *words) as (process, line):

        def ask() -> None:
            with httpx.Client(base_url=line.split()[-1], verify=False) as client:
                for _ in range(150):
                    try:
                        answer = client.post("/v1/predict", json={"rows": ROWS})
                    except httpx.TransportError:
                        continue
                    ids.extend(answer.json()["ids"])

        askers = [threading.Thread(target=ask) for _ in range(3)]
        for asker in askers:
            asker.start()
        until(lambda: len(ids) >= 300)
        os.kill(children(process)[0], signal.SIGKILL)
        for asker in askers:
            asker.join()
        process.popen.send_signal(signal.SIGTERM)
        assert process.end()[0] == 0
    assert len(set(ids)) == len(ids) > 900
    kept = [event["id"] for each in segments(tmp_path / "log", IMPRESSIONS) for event, _ in each.events()]
    assert len(set(kept)) == len(kept)
    assert set(ids) <= set(kept)
    assert len(joined_rows(tmp_path / "log", tmp_path / "joined")) == len(kept)


def test_a_model_with_windows_learns_from_the_features_that_it_served(tmp_path: Path, cli: Cli) -> None:
    """Those of a share of the rows, which could not be counted again."""
    spec = tmp_path / "spec.yaml"
    spec.write_text(WINDOWED.to_yaml())
    write_log(tmp_path / "1.csv", 0, 1_000, seed=1)
    first = build(tmp_path / "1.csv", Windows(WINDOWED), tmp_path / "first")
    before = ctr.train(first, model=tmp_path / "before")
    log, served, clicks = FeedbackLog(tmp_path / "log"), [], []
    with run_server(create_app(before, feedback=log)) as running:
        for i, row in enumerate(write_log(tmp_path / "2.csv", 2_500, 200, seed=2)):
            is_clicked, request = row.pop("click"), {"rows": [row], "log": i % 3 == 0}
            answer = running.client.post("/v1/predict?include=contributions", json=request).json()
            running.client.post("/v1/events/impressions", json={"rows": [row]}).raise_for_status()
            if "ids" in answer:
                served.append([feature["slot"] for feature in answer["contributions"][0]])
                clicks += answer["ids"] * bool(is_clicked)
        running.client.post("/v1/feedback", json={"clicks": clicks}).raise_for_status()
    log.close()
    rows = joined_rows(tmp_path / "log", tmp_path / "joined")
    assert sum(row["click"] for row in rows) == len(clicks) > 0
    source = open_source([tmp_path / "joined"], WINDOWED, windows=Windows(WINDOWED))
    for _ in range(2):
        (batch,) = source.batches(1_000)
        assert [batch.slots[a:b].tolist() for a, b in pairwise(batch.indptr)] == served
    after = ctr.train(
        tmp_path / "joined", spec, warm_start=tmp_path / "before", epochs=2, holdout=[tmp_path / "joined"]
    )
    assert after.windows is not None
    assert after.windows.keys == load_model(tmp_path / "before").windows.keys > 0  # type: ignore[union-attr]
    assert SERVED not in ctr.draft_spec(tmp_path / "joined").columns
    for rows_ in (tmp_path / "joined", pa.Table.from_pylist(rows)):
        np.testing.assert_array_equal(after.predict(rows_), after.predict(batch))
    built = cli("features", "build", "--spec", spec, tmp_path / "joined", "--out", tmp_path / "hashed")
    assert "they did not count these rows, which carry their window features" in built.out
    for data, remedy in (("joined", "Train with --warm-start"), ("hashed", "Build the data set with")):
        with pytest.warns(UserWarning, match=f"the model's windows start empty: .* {remedy}"):
            ctr.train(tmp_path / data, spec)
    assert WINDOWED.crosses
    with (tmp_path / "joined" / "part-000001.jsonl").open("w") as more:
        more.write('{"click": 0, "t": 1510009999, "user": "u1", "site": "s1"}\n')
    with pytest.raises(
        DataError, match=r"part-000001.jsonl:1: column 'ctr:windows': '' holds no window features"
    ):
        ctr.train(tmp_path / "joined", spec, warm_start=tmp_path / "before")
