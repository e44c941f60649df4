"""`POST /v1/predict`: the predictions of the model, for every row that the model takes."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import orjson
import pytest

import ctr
from ctr.api.app import create_app
from ctr.api.service import INLINE_BYTES
from ctr.features import Batch, FeatureSpec, open_source
from ctr.jobs import run_train_job
from ctr.model import Method
from ctr.model.artifact import load_model
from ctr.model.model import Model
from ctr.settings import TrainJob
from tests.api.running import run_server


def predict(client: httpx.Client, rows: list[dict[str, object]]) -> np.ndarray:
    response = client.post("/v1/predict", json={"rows": rows})
    assert response.status_code == 200, response.text
    return np.array(response.json()["predictions"], np.float32)


def bits(predictions: np.ndarray) -> list[int]:
    return predictions.view(np.uint32).tolist()


@pytest.fixture(scope="module")
def from_file(model: Model, raw_file: Path, spec: FeatureSpec) -> np.ndarray:
    """What the model says to the same rows, read from a file as in training."""
    batches = open_source([raw_file], spec).batches(400)
    return np.concatenate([model.predict(batch) for batch in batches])


def test_predictions_differ_between_rows(from_file: np.ndarray) -> None:
    assert np.unique(from_file).size > 500
    assert from_file.max() - from_file.min() > 0.2


@pytest.mark.parametrize("rows_per_request", [1, 7, 300, 1_500])
def test_serving_equals_reading_a_raw_file_bit_for_bit(
    client: httpx.Client, raw_rows: list[dict[str, object]], from_file: np.ndarray, rows_per_request: int
) -> None:
    n = len(raw_rows) if rows_per_request > 1 else 200
    served = [predict(client, raw_rows[i : i + rows_per_request]) for i in range(0, n, rows_per_request)]
    assert bits(np.concatenate(served)) == bits(from_file[:n])


def test_json_numbers_equal_their_text(
    client: httpx.Client, raw_rows: list[dict[str, object]], from_file: np.ndarray
) -> None:
    def typed(row: dict[str, object]) -> dict[str, object]:
        numbers = {key: float(str(row[key])) if row[key] else None for key in ("age", "price")}
        device = row["device"]
        # 12345678901234567890 and -1 are categories that a client may hold as integers.
        return row | numbers | {"device": int(str(device)) if str(device).lstrip("-").isdigit() else device}

    assert bits(predict(client, [typed(row) for row in raw_rows])) == bits(from_file)


def test_a_field_left_out_null_or_empty_is_missing(client: httpx.Client) -> None:
    ways = [{"city": "Köln"}]
    ways += [{"city": "Köln", "age": v, "price": v, "device": v, "note": v} for v in (None, "")]
    predictions = predict(client, ways)
    assert np.unique(predictions).size == 1
    assert predictions[0] != predict(client, [{"city": "東京"}])[0]


def test_no_rows_no_predictions(client: httpx.Client, model: Model) -> None:
    response = client.post("/v1/predict", json={"rows": []})
    assert response.json() == {"predictions": [], "model": model.id}


def test_the_answer_names_the_model(client: httpx.Client, model: Model) -> None:
    response = client.post("/v1/predict", json={"rows": [{}]})
    assert response.json()["model"] == model.id
    assert response.headers["content-type"] == "application/json"


def test_concurrent_clients_get_their_own_answers(
    client: httpx.Client, raw_rows: list[dict[str, object]], from_file: np.ndarray
) -> None:
    sizes = (1, 3, 900)
    assert len(orjson.dumps(raw_rows[: sizes[1]])) < INLINE_BYTES < len(orjson.dumps(raw_rows[: sizes[2]]))

    def ask(at: int) -> bool:
        start, n = 37 * at % 500, sizes[at % 3]
        return bits(predict(client, raw_rows[start : start + n])) == bits(from_file[start : start + n])

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(ask, range(96)))


@pytest.mark.parametrize("method", ["isotonic", "platt"])
def test_serving_equals_reading_a_raw_file_bit_for_bit_with_calibration(
    method: Method, tmp_path: Path, raw_file: Path, raw_rows: list[dict[str, object]], spec: FeatureSpec
) -> None:
    job = TrainJob(
        inputs=[raw_file], spec=spec, model=tmp_path / "model", holdout=[raw_file], calibrate=method
    )
    calibrated = run_train_job(job).model
    offline = np.concatenate([calibrated.predict(b) for b in open_source([raw_file], spec).batches(400)])
    app = create_app(load_model(tmp_path / "model"))
    with run_server(app) as running:
        client = running.client
        for n in (1, 7, 300):
            served = [predict(client, raw_rows[i : i + n]) for i in range(0, min(100 * n, 1_500), n)]
            found = np.concatenate(served)
            assert bits(found) == bits(offline[: found.size])
        assert client.get("/v1/model").json()["calibrated"]["method"] == method


class ThreadNames:
    """A model that notes which threads predict."""

    def __init__(self, model: Model) -> None:
        self.names: list[str] = []
        self._model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def indexed(self) -> ThreadNames:
        return self

    def margins(self, batch: Batch) -> Any:
        self.names.append(threading.current_thread().name)
        return self._model.margins(batch)


@pytest.mark.parametrize(
    ("crosses", "size", "aside"),
    [("", 140, False), ("crosses: [tags * tags]", 140, True), ("crosses: [tags * tags]", 20, False)],
)
def test_crosses_of_lists_do_not_hold_the_event_loop(
    tmp_path: Path, crosses: str, size: int, aside: bool
) -> None:
    """140 values make 10,000 features, which take milliseconds; of 20 there are 210."""
    spec = "version: 1\nsource: {format: jsonl}\nlabel: click\nfields: [{name: tags, type: list}]\n"
    tags = [str(i) for i in range(140)]
    rows = [{"click": i % 2, "tags": tags[: 1 + i % 5]} for i in range(100)]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    model: Any = ThreadNames(ctr.train(tmp_path / "log.jsonl", spec + crosses))
    with run_server(create_app(model)) as running:
        model.names.clear()
        assert running.client.post("/v1/predict", json={"rows": [{"tags": tags[:size]}]}).status_code == 200
    assert [name.startswith("predict") for name in model.names] == [aside]
