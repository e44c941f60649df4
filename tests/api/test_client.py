"""The clients: what they take, what they repeat, what they raise; and the application inside another one."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from fastapi import FastAPI

from ctr.api import AsyncClient, Client, create_app
from ctr.errors import CtrError, DataError
from ctr.model.model import Model
from tests.api.running import Running, run_server

COLUMNS = {"city": ["Köln", "東京", ""] * 7, "age": [1.0, 2.5, None] * 7}
ROWS = [dict(zip(COLUMNS, values, strict=True)) for values in zip(*COLUMNS.values(), strict=True)]


@pytest.mark.parametrize(
    "data",
    [
        ROWS,
        pa.table(COLUMNS),
        pa.RecordBatch.from_pydict(COLUMNS),
        pd.DataFrame(COLUMNS),
        pl.DataFrame(COLUMNS),
    ],
    ids=lambda data: type(data).__module__,
)
def test_kinds_of_data(running: Running, model: Model, data: Any) -> None:
    expected = model.predict(ROWS)
    with Client(running.url, batch_rows=4) as client:
        np.testing.assert_array_equal(client.predict(data), expected)

    async def ask() -> np.ndarray:
        async with AsyncClient(running.url, batch_rows=4) as client:
            assert (await client.model())["id"] == model.id
            return await client.predict(data)

    np.testing.assert_array_equal(asyncio.run(ask()), expected)


def test_little_and_nothing(running: Running, model: Model) -> None:
    with Client(running.url) as client:
        np.testing.assert_array_equal(client.predict(ROWS[0]), model.predict(ROWS[:1]))
        assert client.predict([]).shape == (0,)
        assert client.predict(pa.table(COLUMNS).slice(0, 0)).dtype == np.float32
        assert client.model()["id"] == model.id


@contextmanager
def answering(*answers: tuple[int, dict[str, str], bytes]) -> Iterator[tuple[str, list[float]]]:
    """A server with these answers, one after the other, and when it was asked."""
    times: list[float] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            status, headers, body = answers[min(len(times), len(answers) - 1)]
            times.append(time.monotonic())
            self.send_response(status)
            for name, value in {"content-length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", times
        finally:
            server.shutdown()
            thread.join()


BUSY = (503, {}, b'{"detail":"busy"}')
GOOD = (200, {}, b'{"predictions":[0.5],"model":"x"}')


def test_what_may_pass_is_asked_again() -> None:
    with answering(BUSY, (503, {"retry-after": "1"}, b""), GOOD) as (url, times), Client(url) as client:
        assert client.predict(ROWS[0]).tolist() == [0.5]
    assert len(times) == 3
    assert times[2] - times[1] >= 1
    with answering(BUSY) as (url, times), Client(url, retries=2) as client:
        with pytest.raises(CtrError, match=r"busy \(503\)"):
            client.predict(ROWS[0])
        assert len(times) == 3


def test_what_is_wrong_is_not(running: Running) -> None:
    with answering((422, {}, b'{"detail":"no"}')) as (url, times), Client(url) as client:
        with pytest.raises(DataError, match=r"no \(422\)"):
            client.predict(ROWS[0])
        assert len(times) == 1
    with Client(running.url) as client, pytest.raises(DataError, match="unknown"):
        client.predict({"unknown": 1})
    with (
        Client("http://127.0.0.1:9", retries=1) as client,
        pytest.raises(CtrError, match="cannot be reached"),
    ):
        client.predict(ROWS[0])


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (pd.DataFrame({"city": [1, "a"]}), "DataFrame cannot be sent .* one type each"),
        (pd.Series({"city": "a"}), "Series cannot be sent"),
        (pl.LazyFrame({"city": ["a"]}), "LazyFrame cannot be sent"),
        (7, "int cannot be sent"),
        ([{"city": {"a", "b"}}], "cannot be sent as JSON .* give text or numbers"),
    ],
    ids=["mixed column", "series", "lazy frame", "number", "set"],
)
def test_data_that_cannot_be_sent(data: Any, problem: str) -> None:
    with Client("http://127.0.0.1:9") as client, pytest.raises(DataError, match=problem):
        client.predict(data)


def test_tables_predict_the_same_as_json(running: Running) -> None:
    """Their rows are sent as JSON when the client asks for ids."""
    table = pa.table(
        {
            "age": pa.array([0.1, 3, None, 1e20], pa.float32()),
            "price": [0.25, float("nan"), -1e-7, 2.0],
            "city": pa.array(["Köln", None, "", "東京"]).dictionary_encode(),
            "device": pa.array([12345678901234567890, 0, 1, None], pa.uint64()),
            "note": pa.array([date(2026, 1, 1), None, date(1, 1, 1), date(9999, 1, 1)]),
        }
    )
    with Client(running.url) as client:
        np.testing.assert_array_equal(client.ask(table).predictions, client.predict(table))
        empty = pa.table({"city": ["a", "b"]}).select([])
        np.testing.assert_array_equal(client.ask(empty).predictions, client.predict(empty))
        assert client.predict(empty).size == 2
        with pytest.raises(DataError, match=r"rows\[0\]\.city: 1.5 is a fraction"):
            client.ask(pa.table({"city": [1.5]}))
        for one in ([["a"]], pa.array([b"\xff"], pa.binary()), [{"a": 1}]):
            with pytest.raises(DataError, match=r"cannot be sent as JSON|got the list"):
                client.ask(pa.table({"city": one}))
        with pytest.raises(DataError, match="two columns have the same name"):
            client.ask(pa.table([["a"], ["b"]], ["city", "city"]))


def test_rows_predict_the_same_as_in_this_process(running: Running, model: Model) -> None:
    rows = [
        {"note": date(2026, 1, 1)},
        {"note": datetime(2026, 1, 1, 3)},
        {"note": pd.NaT, "age": float("nan")},
    ]
    with Client(running.url) as client:
        np.testing.assert_array_equal(client.predict(rows), model.predict(rows))
        long = [{"note": "x" * 1_000}] * 3_000
        assert client.predict(long).size == 3_000, "3 MB, in several requests"
        with pytest.raises(DataError, match=r"rows\[1\]: column 'age': inf is not a finite number"):
            client.predict([{"age": None}, {"age": float("inf")}])


def test_a_bad_row_is_named_by_its_place_in_the_data(running: Running) -> None:
    rows = [{"age": "3"}] * 7 + [{"age": "many"}]
    with Client(running.url, batch_rows=5) as client:
        with pytest.raises(DataError, match=r"/v1/predict: rows\[7\]: column 'age': 'many'"):
            client.predict(rows)
        with pytest.raises(DataError, match=r"/v1/predict/arrow: the table: row 8: column 'age': 'many'"):
            client.predict(pa.Table.from_pylist(rows))


def test_inside_another_application(model: Model) -> None:
    app = FastAPI()
    mine = create_app(model)
    app.mount("/ctr", mine)
    app.router.lifespan_context = mine.router.lifespan_context

    @app.get("/readyz")
    async def readyz() -> dict[str, bool]:  # for `run_server`
        return {"ready": True}

    with run_server(app) as running:
        for _ in range(200):
            if running.client.get("/ctr/readyz").status_code == 200:
                break
            time.sleep(0.05)
        with Client(f"{running.url}/ctr") as client:
            np.testing.assert_array_equal(client.predict(ROWS), model.predict(ROWS))
        counted = 'ctr_requests_total{path="/v1/predict",status="200"} 1.0'
        assert counted in running.client.get("/ctr/metrics").text.splitlines()


def test_inside_another_application_that_does_not_start_it(model: Model) -> None:
    app = FastAPI()
    app.mount("/ctr", create_app(model))
    with run_server(app, wait_ready=False) as running:
        refused = running.client.post("/ctr/v1/predict", json={"rows": ROWS})
    assert refused.status_code == 503
    assert "FastAPI(lifespan=app.router.lifespan_context)" in refused.json()["detail"]
