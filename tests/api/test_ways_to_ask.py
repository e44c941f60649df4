"""Rows as columns, as candidates of a context, as Arrow, compressed; details on request; explanations."""

from __future__ import annotations

import gzip
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import orjson
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import ctr
from ctr.api.app import create_app
from ctr.api.requests.body import ARROW, Limits
from ctr.features import open_source
from ctr.model import Model
from tests.api.running import run_server

ROW = dict[str, Any]


def bits(numbers: Any) -> list[int]:
    return np.array(numbers, np.float32).view(np.uint32).tolist()


def ask(client: httpx.Client, body: object, **params: str) -> dict[str, Any]:
    response = client.post("/v1/predict", json=body, params=params)
    assert response.status_code == 200, response.text
    return dict(response.json())


@pytest.fixture(scope="module")
def rows(raw_rows: list[ROW]) -> list[ROW]:
    return raw_rows[:300]


@pytest.fixture(scope="module")
def expected(client: httpx.Client, rows: list[ROW]) -> list[int]:
    return bits(ask(client, {"rows": rows})["predictions"])


def as_columns(rows: list[ROW]) -> dict[str, list[Any]]:
    return {name: [row[name] for row in rows] for name in rows[0]}


def arrow(table: pa.Table, *, file: bool = False, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    new = pa.ipc.new_file if file else pa.ipc.new_stream
    with new(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def ask_arrow(client: httpx.Client, body: bytes, **params: str) -> httpx.Response:
    headers = {"content-type": ARROW[0]}
    return client.post("/v1/predict/arrow", content=body, headers=headers, params=params)


def test_columns(client: httpx.Client, rows: list[ROW], expected: list[int]) -> None:
    assert bits(ask(client, {"columns": as_columns(rows)})["predictions"]) == expected


def test_candidates_are_whole_rows(client: httpx.Client, rows: list[ROW]) -> None:
    context = {"city": "東京", "age": 3, "note": None}
    candidates = [{"device": row["device"], "price": row["price"]} for row in rows]
    candidates[1] = {"city": "Köln"}  # a value of its own
    candidates[2] = {"city": None}
    whole = [context | candidate for candidate in candidates]
    found = ask(client, {"context": context, "candidates": candidates})["predictions"]
    assert bits(found) == bits(ask(client, {"rows": whole})["predictions"])


@pytest.mark.parametrize("file", [False, True], ids=["stream", "file"])
def test_arrow(client: httpx.Client, model: Model, rows: list[ROW], expected: list[int], file: bool) -> None:
    table = pa.table(as_columns(rows))
    response = ask_arrow(client, arrow(table, file=file))
    assert response.status_code == 200, response.text
    answer = pa.ipc.open_stream(response.content).read_all()
    assert bits(answer["prediction"]) == expected
    assert answer.schema.metadata == {b"model": model.id.encode()}


def test_answers_as_arrow_do_not_import_pandas(model_dir: Path) -> None:
    program = f"""
import sys
from pathlib import Path
from ctr.api.answers import Answers
from ctr.model import load_model
model = load_model(Path({str(model_dir)!r}))
batch = model.transform.apply_rows([{{"city": "x"}}])
print(Answers(model).table(batch, frozenset({{"margins", "unseen"}})).num_rows, "pandas" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout == "1 False\n", done.stderr


def test_arrow_with_some_columns_typed_or_with_dictionaries(client: httpx.Client) -> None:
    table = pa.table({"city": pa.array(["Köln", None, "0"]).dictionary_encode(), "age": [1, 2, None]})
    answer = pa.ipc.open_stream(ask_arrow(client, arrow(table), include="margins,unseen").content).read_all()
    same = ask(client, {"rows": table.to_pylist()}, include="margins,unseen")
    assert bits(answer["prediction"]) == bits(same["predictions"])
    assert bits(answer["margin"]) == bits(same["margins"])
    assert bits(answer["unseen"]) == bits(same["unseen"])
    nothing = ask_arrow(client, arrow(table.slice(0, 0)))
    assert pa.ipc.open_stream(nothing.content).read_all().num_rows == 0


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_arrow_that_is_compressed_or_torn_is_refused(client: httpx.Client, codec: str) -> None:
    table = pa.table({"city": ["a" * 10_000] * 10})
    response = ask_arrow(client, arrow(table, compression=codec))
    assert response.status_code == 422
    assert "gzip" in response.json()["detail"]
    plain = arrow(table)
    for body in (b"", b"ARROW1\0\0", b"no arrow", plain[:200], plain[:-2000], bytes(100)):
        response = ask_arrow(client, body)
        assert response.status_code == 422, body[:20]
        assert "Arrow" in response.json()["detail"]
    response = ask_arrow(client, plain + plain)
    assert (response.status_code, "bytes follow the Arrow stream" in response.text) == (422, True)
    response = ask_arrow(client, arrow(pa.table({"citty": ["a"]})))
    assert response.status_code == 422
    assert "'citty'" in response.json()["detail"]
    assert client.post("/v1/predict/arrow", json={}).status_code == 415


@pytest.mark.hypothesis
@example(changes=[], name=b"ci\xffy", size=1)  # a column name that is not UTF-8
@given(
    changes=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=4),
    name=st.just(b"city") | st.binary(min_size=4, max_size=4),
    size=st.just(1.0) | st.floats(0, 1),
)
@settings(max_examples=200, suppress_health_check=list(HealthCheck))
def test_arrow_with_other_bytes_has_an_answer(
    client: httpx.Client, changes: list[tuple[float, int]], name: bytes, size: float
) -> None:
    dictionary = pa.array(["x", "y", "x"]).dictionary_encode()
    body = bytearray(arrow(pa.table({"city": ["a", "b", None], "age": [1, 2, 3], "note": dictionary})))
    body = body.replace(b"city", name)
    for place, value in changes:
        body[int(place * len(body))] = value
    response = ask_arrow(client, bytes(body[: int(size * len(body))]))
    assert response.status_code in (200, 413, 422), response.text


def test_gzip(client: httpx.Client, rows: list[ROW], expected: list[int]) -> None:
    headers = {"content-encoding": "gzip", "content-type": "application/json"}
    body = orjson.dumps({"rows": rows})
    for content in (gzip.compress(body), gzip.compress(body[:100]) + gzip.compress(body[100:])):
        response = client.post("/v1/predict", content=content, headers=headers)
        assert bits(response.json()["predictions"]) == expected
    for content, status in (
        (body, 422),
        (gzip.compress(body)[:-20], 422),
        (gzip.compress(bytes(100 << 20)), 413),  # 100 KB
    ):
        assert client.post("/v1/predict", content=content, headers=headers).status_code == status


def test_details(client: httpx.Client, model: Model, rows: list[ROW]) -> None:
    never = {"city": "never seen", "device": "nor this"}
    answer = ask(client, {"rows": [*rows[:20], never]}, include="margins,unseen,contributions")
    assert bits(answer["predictions"]) == bits(model.predict([*rows[:20], never]))
    assert bits(answer["margins"]) == bits(model.margins([*rows[:20], never]))
    sums = [sum(each["contribution"] for each in row) for row in answer["contributions"]]
    np.testing.assert_allclose(sums, answer["margins"], rtol=1e-5, atol=1e-6)
    assert [each["field"] for each in answer["contributions"][-1]] == [
        "(bias)",
        "age",
        "city",
        "device",
        "cityxdevice",
    ]
    assert answer["unseen"][-1] == 0.75  # all but the missing age
    batch = model.transform.apply_rows(rows[:20])
    weights = np.split(model.linear.weights_at(batch.slots), batch.indptr[1:-1])
    assert bits(answer["unseen"][:20]) == bits([np.mean(of_row[1:] == 0) for of_row in weights])
    response = client.post("/v1/predict", json={"rows": []}, params={"include": "weights"})
    assert response.status_code == 422
    assert "margins, unseen, contributions" in response.json()["detail"]
    assert client.post("/v1/predict?explain=1", json={"rows": []}).status_code == 422


def test_explanations(client: httpx.Client, model: Model) -> None:
    rows: list[ROW] = [{"city": "東京", "device": "tv"}, {"age": 3}]
    response = client.post("/v1/explain", json={"rows": rows})
    assert response.status_code == 200, response.text
    for row, told in zip(rows, response.json()["explanations"], strict=True):
        expected = model.explain(row)
        assert told["prediction"] == pytest.approx(expected.prediction)
        assert [each["feature"] for each in told["contributions"]] == [
            each.feature for each in expected.contributions
        ]
    wrong = client.post("/v1/explain", json={"rows": [{}, {"age": "old"}]})
    assert wrong.status_code == 422
    assert "rows[1]" in wrong.json()["detail"]
    assert client.post("/v1/explain", json={"rows": [{}] * 101}).status_code == 413


@pytest.fixture(scope="module")
def counting(model: Model) -> Iterator[httpx.Client]:
    app = create_app(model, limits=Limits(rows=5), unknown_fields="count")
    with run_server(app) as running:
        yield running.client


def test_values_of_unknown_fields_are_dropped_and_counted(counting: httpx.Client) -> None:
    plain = ask(counting, {"rows": [{"city": "Köln"}]})
    assert ask(counting, {"rows": [{"city": "Köln", "colour": "red", "deep": {"a": [1]}}]}) == plain
    assert ask(counting, {"columns": {"city": ["Köln"], "colour": [[1, 2]]}}) == plain
    assert ask_arrow(counting, arrow(pa.table({"city": ["Köln"], "colour": [1]}))).status_code == 200
    assert "ctr_unknown_values_total 4.0" in counting.get("/metrics").text


def test_more_arrow_rows_than_allowed(counting: httpx.Client) -> None:
    assert ask_arrow(counting, arrow(pa.table({"city": ["a"] * 6}))).status_code == 413


@pytest.mark.parametrize(
    ("name", "lines", "features"),
    [
        ("libsvm", "1 1:1 7:0.5\n0 2:1\n", ["1:1 7:0.5", "2:1", "9:1"]),
        ("vw", "1 |site a b:2\n-1 |site c\n", ["|site a b:2", "|site c", "|site d"]),
    ],
)
def test_models_of_rows_with_features_of_their_own(
    tmp_path: Path, name: str, lines: str, features: list[str]
) -> None:
    log = tmp_path / f"rows.{name}"
    log.write_text(lines * 100)
    model = ctr.train(log, name)
    other = tmp_path / f"other.{name}"
    other.write_text("".join(f"1 {text}\n" for text in features))
    offline = np.concatenate([model.predict(batch) for batch in open_source([other], model.spec).batches(10)])
    with run_server(create_app(model)) as running:
        client = running.client
        assert bits(ask(client, {"rows": [{"features": text} for text in features]})["predictions"]) == bits(
            offline
        )
        wrong = client.post("/v1/predict", json={"rows": [{"features": "1:x"}]})
        assert wrong.status_code == 422
        assert "'features'" in wrong.json()["detail"]
        document = client.get("/openapi.json").json()
    body = document["paths"]["/v1/predict"]["post"]["requestBody"]["content"]["application/json"]
    assert "features" in body["schema"]["oneOf"][0]["properties"]["rows"]["items"]["properties"]
