"""What the application says about itself, and what it does before it is ready and when it breaks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from time import sleep
from typing import Any

import httpx
import numpy as np
import pytest
from numpy.typing import NDArray

from ctr.api.app import create_app
from ctr.api.requests import Limits
from ctr.api.service import INLINE_BYTES, Service
from ctr.features import Batch
from ctr.features.text import Cells
from ctr.model.model import Model
from tests.api.running import run_server


@dataclass
class Wrapped:
    """A model that waits for its gate, and fails when it is told to."""

    model: Model
    gate: threading.Event = field(default_factory=threading.Event)
    entered: threading.Event = field(default_factory=threading.Event)
    failure: Exception | None = None
    thread: str = ""
    """Of the last prediction."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def indexed(self) -> Wrapped:
        return self

    def margins(self, batch: Batch) -> NDArray[np.float32]:
        self.entered.set()
        self.thread = threading.current_thread().name
        assert self.gate.wait(30)
        if self.failure is not None:
            raise self.failure
        return self.model.margins(batch)


def test_health_and_readiness(client: httpx.Client, model: Model) -> None:
    assert client.get("/healthz").json() == {"status": "alive"}
    assert client.get("/readyz").json() == {"status": "ready", "model": model.id}


def test_the_manifest_is_shown(client: httpx.Client, model: Model) -> None:
    shown = client.get("/v1/model").json()
    hidden = ("inputs", "warm_start")
    training = {name: entry for name, entry in model.manifest["training"].items() if name not in hidden}
    assert shown == {**model.manifest, "training": training}, "without names of files"
    assert shown["id"] == model.id


def test_the_folder_that_training_began_with_is_not_shown(model: Model) -> None:
    training = {**model.manifest["training"], "warm_start": "/home/me/yesterday"}
    trained = replace(model, manifest={**model.manifest, "training": training})
    with run_server(create_app(trained)) as running:
        assert "/home/me" not in running.client.get("/v1/model").text


def test_not_ready_before_the_first_prediction(model: Model) -> None:
    cold = Wrapped(model)
    outcomes: list[Exception | None] = []
    with run_server(create_app(cold, on_warm=outcomes.append), wait_ready=False) as running:
        client = running.client
        assert client.get("/healthz").status_code == 200
        assert client.get("/v1/model").status_code == 200
        for response in (client.get("/readyz"), client.post("/v1/predict", json={"rows": [{}]})):
            assert response.status_code == 503
            assert "warming up" in response.json()["detail"]
        assert outcomes == []
        cold.gate.set()
        while client.get("/readyz").status_code != 200:
            sleep(0.01)
        assert client.post("/v1/predict", json={"rows": [{}]}).status_code == 200
    assert outcomes == [None]


@pytest.mark.parametrize("told", [True, False], ids=["told", "logged"])
def test_a_model_that_cannot_predict_never_gets_ready(
    model: Model, caplog: pytest.LogCaptureFixture, told: bool
) -> None:
    broken = Wrapped(model, failure=RuntimeError("no such kernel"))
    outcomes: list[Exception | None] = []
    app = create_app(broken, on_warm=outcomes.append if told else None)
    with run_server(app, wait_ready=False) as running:
        broken.gate.set()
        while "warming up" in running.client.get("/readyz").text:
            sleep(0.01)
        response = running.client.get("/readyz")
        assert response.status_code == 503
        assert "no such kernel" in response.json()["detail"]
        assert running.client.get("/healthz").status_code == 200
    assert outcomes == ([broken.failure] if told else [])
    assert ("no such kernel" in caplog.text) is not told


def test_a_failure_while_predicting_is_logged_and_not_shown(
    model: Model, caplog: pytest.LogCaptureFixture
) -> None:
    broken = Wrapped(model)
    broken.gate.set()
    with run_server(create_app(broken)) as running:
        broken.failure = RuntimeError("secret")
        response = running.client.post("/v1/predict", json={"rows": [{}]})
        assert response.status_code == 500
        assert response.json() == {"detail": "the server failed on this request; its log has the reason"}
        assert "secret" in caplog.text
        tensor = {"name": "city", "datatype": "BYTES", "shape": [1], "data": ["x"]}
        response = running.client.post("/v2/models/ctr/infer", json={"inputs": [tensor]})
        assert response.status_code == 500
        assert response.json() == {"error": "the server failed on this request; its log has the reason"}
        broken.failure = None
        assert running.client.post("/v1/predict", json={"rows": [{}]}).status_code == 200


def test_a_request_under_way_is_finished_before_the_server_stops(model: Model) -> None:
    slow = Wrapped(model)
    slow.gate.set()
    body = b'{"rows": [{"city": "a"}]}'.ljust(INLINE_BYTES + 1)
    with ThreadPoolExecutor(1) as pool:
        with run_server(create_app(slow)) as running:
            slow.gate.clear()
            slow.entered.clear()
            answer = pool.submit(httpx.post, f"{running.url}/v1/predict", content=body)
            assert slow.entered.wait(10)
            running.server.should_exit = True
            while True:  # until it takes no new connections
                try:
                    httpx.get(f"{running.url}/healthz", timeout=0.2, verify=False)
                except httpx.TransportError:
                    break
            slow.gate.set()
        assert answer.result().status_code == 200


@pytest.mark.parametrize(("rows", "apart"), [(1, False), (20, False), (5_000, True)])
def test_work_that_would_hold_up_other_clients_is_done_in_a_thread(
    model: Model, rows: int, apart: bool
) -> None:
    watched = Wrapped(model)
    watched.gate.set()
    with run_server(create_app(watched)) as running:
        body = b'{"rows":[' + b",".join([b"{}"] * rows) + b"]}"
        assert len(body) <= INLINE_BYTES
        assert running.client.post("/v1/predict", content=body).status_code == 200
        assert watched.thread.startswith("predict") is apart


def test_head_where_get_is(client: httpx.Client) -> None:
    for path in ("/healthz", "/readyz", "/v1/model", "/openapi.json"):
        whole, head = client.get(path), client.head(path)
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-length"] == str(len(whole.content))
    response = client.head("/v1/predict")
    assert (response.status_code, response.headers["allow"]) == (405, "POST")


def test_an_example_is_explained_when_the_server_is_ready(model: Model) -> None:
    rows: list[dict[str, Any]] = []
    when_ready: list[int] = []

    class Transforming:
        """The model's transform, which notes the rows that are made into cells one by one."""

        def __getattr__(self, name: str) -> Any:
            return getattr(model.transform, name)

        def cells_of(self, given: Sequence[dict[str, Any]]) -> Cells:
            rows.extend(given)
            return model.transform.cells_of(given)

    service = Service(replace(model, transform=Transforming()), Limits())  # type: ignore[arg-type]
    asyncio.run(service.warm(lambda _: when_ready.append(len(rows))))
    (explained,) = rows[when_ready[0] :]
    assert set(explained) == set(model.transform.columns)
