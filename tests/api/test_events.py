"""Served windows: the features of rows sent for scoring are those that the same rows have offline."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from ctr.api.app import create_app
from ctr.api.operations import ServingMetrics
from ctr.api.requests.body import Limits
from ctr.api.server import _Applications
from ctr.features import DatasetSource, RawSource, parse_spec
from ctr.features.windows import Windows, load_windows
from ctr.jobs import run_train_job
from ctr.model import Model, load_model
from ctr.settings import ServeJob, TrainJob
from tests.api.running import Running, run_server
from tests.features.raw_files import write_windowed

SPEC = parse_spec(
    """
version: 1
source: {format: delimited}
label: click
fields: [{name: site, type: category}]
windows:
  - {name: user, key: [user], time: t, format: unix, spans: [1m, 1h], half_life: 10m, delay: 20s, expire: 2h,
     features: [count, clicks, rate, since_last]}
  - {name: pair, key: [user, site], time: t, format: unix, spans: [10m], features: [count]}
crosses: [site * user.count.1m]
""",
    "windows",
)
START = 1_510_000_000


def write_log(path: Path, first: int, rows: int, seed: int) -> list[dict[str, object]]:
    rng = np.random.default_rng(seed)
    times = START + first + np.sort(rng.integers(0, 2_000, rows))
    users, sites = np.minimum(rng.integers(0, 9, rows), 4), rng.integers(0, 3, rows)
    clicks = rng.random(rows) < np.where(users == 4, 0.7, 0.1)
    log = [
        {"click": int(c), "t": int(t), "user": f"u{u}" if u else "", "site": f"s{s}"}
        for c, t, u, s in zip(clicks, times, users, sites, strict=True)
    ]
    lines = [",".join(map(str, row.values())) for row in log]
    path.write_text("\n".join(["click,t,user,site", *lines, ""]))
    return log


def build(path: Path, windows: Windows, out: Path) -> Path:
    write_windowed(RawSource(SPEC, [path], windows=windows).batches(65_536), windows, out)
    return out


@pytest.fixture
def model(tmp_path: Path) -> Model:
    write_log(tmp_path / "1.csv", 0, 1_000, seed=1)
    first = build(tmp_path / "1.csv", Windows(SPEC), tmp_path / "first")
    run_train_job(TrainJob(inputs=[first], spec=None, model=tmp_path / "model", chunk=100))
    return load_model(tmp_path / "model")


@pytest.fixture
def running(model: Model) -> Iterator[Running]:
    with run_server(create_app(model)) as found:
        yield found


def send(running: Running, what: str, *rows: dict[str, object]) -> int:
    answer = running.client.post(f"/v1/events/{what}", json={"rows": rows})
    assert answer.status_code == 200, answer.text
    return int(answer.json()["taken"])


def test_replayed_rows_have_the_features_that_they_have_offline(
    tmp_path: Path, model: Model, running: Running
) -> None:
    log = write_log(tmp_path / "2.csv", 2_500, 300, seed=2)
    second = build(tmp_path / "2.csv", load_windows(SPEC, tmp_path / "model"), tmp_path / "second")
    offline = DatasetSource(second).sample(len(log))
    served, clicks, features = [], [], []
    for row in log:
        shown = {name: row[name] for name in ("t", "user", "site")}
        while clicks and clicks[0]["t"] + 20 <= row["t"]:  # type: ignore[operator]
            assert send(running, "clicks", clicks.pop(0)) == 1
        features.append(model.transform.apply_rows([shown]).slots.tolist())
        answer = running.client.post("/v1/predict", json={"rows": [shown]}).json()
        served.append(answer["predictions"][0])
        assert send(running, "impressions", shown) == bool(row["user"])
        if row["click"] and row["user"]:
            clicks.append(shown)
    bounds = offline.indptr
    assert features == [offline.slots[a:b].tolist() for a, b in pairwise(bounds)]
    np.testing.assert_array_equal(np.array(served, np.float32), model.predict(offline))
    assert len(set(served)) > 50


def test_rows_without_key_or_time_are_predicted(running: Running) -> None:
    rows = [
        {"t": START + 9_999, "user": "u1"},
        {"user": "u1"},
        {"t": START + 2_100},
        {"t": None, "user": None},
    ]
    assert running.client.post("/v1/predict", json={"rows": rows}).status_code == 200
    assert send(running, "impressions", {"t": START + 3_000}, {"user": "u1"}) == 0
    assert send(running, "impressions") == send(running, "clicks") == 0


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (
            {"t": START, "user": "u1"},
            "rows[1].t: '1510000000' is earlier than an event before it by more than 0s",
        ),
        ({"t": 33_000_000_000, "user": "u1"}, "rows[1].t: '33000000000' is later than the server's clock"),
        ({"t": "yesterday", "user": "u1"}, "rows[1].t: 'yesterday' is not a time"),
        ({"t": START, "person": 1}, "rows[1]: the feature spec names no column 'person'"),
        ({"t": START + 4_000, "user": ["a", "b"]}, "rows[1].user"),
    ],
)
def test_wrong_events_are_refused_as_a_whole(
    model: Model, running: Running, row: dict[str, object], problem: str
) -> None:
    assert model.windows is not None
    before = [model.windows.arrays(k) for k in range(2)]
    rows = [{"t": START + 4_000, "user": "u1"}, row]
    answer = running.client.post("/v1/events/impressions", json={"rows": rows})
    assert answer.status_code == 422
    assert problem in answer.json()["detail"]
    for k, arrays in enumerate(before):
        after = model.windows.arrays(k)
        assert all(np.array_equal(after[name], arrays[name]) for name in arrays)


def test_a_row_of_the_past_is_refused_as_an_event_of_then_is(running: Running) -> None:
    past = {"rows": [{"t": START + 9_999, "user": "u1"}, {"t": START, "user": "u1"}]}
    for path in ("/v1/predict", "/v1/events/impressions"):
        answer = running.client.post(path, json=past)
        assert answer.status_code == 422
        assert "rows[1]" in answer.json()["detail"]
        assert "'1510000000' is earlier than" in answer.json()["detail"]
        assert "0s" in answer.json()["detail"] or "the slack of a window" in answer.json()["detail"]


def test_only_models_with_windows_take_events(running: Running) -> None:
    paths = running.client.get("/openapi.json").json()["paths"]
    assert {"/v1/events/impressions", "/v1/events/clicks"} < set(paths)
    body = paths["/v1/predict"]["post"]["requestBody"]["content"]["application/json"]
    assert {"t", "user", "site"} <= set(
        body["schema"]["oneOf"][0]["properties"]["rows"]["items"]["properties"]
    )
    assert running.client.post("/v1/predict", json=body["example"]).status_code == 200


def test_events_may_have_lists_where_predictions_may(tmp_path: Path) -> None:
    spec = parse_spec(
        """
version: 1
source: {format: jsonl}
label: click
fields: [{name: tags, type: list}]
windows: [{name: user, key: [user], time: t, format: unix, spans: [1h], features: [count]}]
""",
        "lists",
    )
    row = {"t": START, "user": "u1", "tags": ["a"] * 3}
    (tmp_path / "log.jsonl").write_text(
        "".join(json.dumps({**row, "click": i % 2}) + "\n" for i in range(50))
    )
    windows = Windows(spec)
    batches = RawSource(spec, [tmp_path / "log.jsonl"], windows=windows).batches(100)
    write_windowed(batches, windows, tmp_path / "hashed")
    run_train_job(TrainJob(inputs=[tmp_path / "hashed"], spec=None, model=tmp_path / "model"))
    # More lists than rows that one request may have.
    with run_server(create_app(load_model(tmp_path / "model"), limits=Limits(rows=3))) as running:
        rows = [row, row, {**row, "tags": []}]
        assert running.client.post("/v1/predict", json={"rows": rows}).status_code == 200
        assert send(running, "impressions", *rows) == 3
        assert running.client.post("/v1/events/clicks", json={"rows": [row] * 4}).status_code == 413


def test_a_version_without_counts_continues_with_those_of_the_server(model: Model, tmp_path: Path) -> None:
    """As versions from a stream have none. One of other windows, or with counts, has its own."""
    apps = _Applications(ServeJob(model=tmp_path / "model"))
    without = Model.of(SPEC, model.linear, {})
    strength = SPEC.windows[0].model_copy(update={"strength": 5.0})
    other = SPEC.model_copy(update={"windows": (strength, SPEC.windows[1])})
    of_other = Model.of(other, model.linear, {})
    row = {"t": START + 3_000, "user": "u9", "site": "s1"}

    def counted(version: Model, events: int) -> list[object]:
        with run_server(apps.make(version, ServingMetrics(version.id), lambda _: None)) as running:
            for _ in range(events):
                send(running, "impressions", row)
            request = {"rows": [row]}
            answer = running.client.post("/v1/predict?include=contributions", json=request).json()
        return [each for each in answer["contributions"][0] if each["field"] == "user.count.1h"]

    first = counted(model, 3)
    assert counted(without, 0) == first
    assert counted(of_other, 0) != first
    assert counted(load_model(tmp_path / "model"), 0) != first
