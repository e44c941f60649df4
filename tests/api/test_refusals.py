"""Requests that get no predictions: the status, and a message that says what, where and the remedy."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from ctr.api.app import create_app
from ctr.api.requests.body import DRAIN_FACTOR, Limits
from ctr.model.model import Model
from tests.api.running import run_server


@pytest.fixture(scope="module")
def small(model: Model) -> Iterator[httpx.Client]:
    """A server with a limit of 3 rows and 1,000 bytes."""
    with run_server(create_app(model, limits=Limits(rows=3, body_bytes=1_000))) as running:
        yield running.client


@pytest.mark.parametrize(
    ("body", "words"),
    [
        # What is inside a row: the row, the field, the value.
        ('{"rows": [{}, {"colour": "red"}]}', ["rows[1]", "colour", "age"]),
        ('{"rows": [{"city": ["a"]}]}', ["rows[0]", "city", "list"]),
        ('{"rows": [{"city": {"a": 1}}]}', ["rows[0]", "city", "dict"]),
        ('{"rows": [{}, {}, {"city": 1.5}]}', ["rows[2]", "city", "1.5", "text"]),
        # No longer exact once JSON is parsed, so it could become another category than it says.
        ('{"rows": [{"city": 18446744073709551617}]}', ["rows[0]", "city", "text"]),
        ('{"rows": [{"city": [true]}]}', ["rows[0]", "city", "[True]"]),
        ('{"rows": [{"age": "old"}]}', ["rows[0]", "age", "old"]),
        ('{"rows": [{"age": "1 2"}]}', ["rows[0]", "age", "1 2"]),
        ('{"rows": [{"age": "-inf"}]}', ["rows[0]", "age", "-inf"]),
        ('{"rows": [{"age": 1e999}]}', ["not JSON"]),
        ('{"rows": [{"age": Infinity}]}', ["not JSON"]),
        # What is around the rows.
        ('{"rows": [{}, 5]}', ["rows[1]", "a number", "object"]),
        ('{"rows": [null]}', ["rows[0]", "null"]),
        ('{"rows": {"age": 1}}', ["'rows'", "an object", "list"]),
        ('{"rows": null}', ["'rows'", "null"]),
        ('{"rows": [], "model": "x"}', ["'model'", "'rows'"]),
        ("{}", ["'rows'", "missing"]),
        ('[{"age": 1}]', ["a list", '"rows"']),
        ('"rows"', ["a string"]),
        ("true", ["a boolean"]),
        # What is no JSON.
        ("", ["not JSON"]),
        ('{"rows": [{"age": 1}', ["not JSON", '"rows"']),
        ('{"rows": [{"age": NaN}]}', ["not JSON"]),
        ('{"rows": [{"city": "\\ud800"}]}', ["not JSON"]),
        (b'{"rows": [{"city": "\xff"}]}', ["not JSON", "UTF-8"]),
        ('{"rows": ' + "[" * 5_000, ["not JSON"]),
    ],
)
def test_a_malformed_request_is_told_what_is_wrong(
    client: httpx.Client, body: str | bytes, words: list[str]
) -> None:
    response = client.post("/v1/predict", content=body, headers={"content-type": "application/json"})
    assert response.status_code == 422
    assert list(response.json()) == ["detail"]
    detail = response.json()["detail"]
    assert [word for word in words if word not in detail] == [], detail
    assert "Traceback" not in detail
    assert "\n" not in detail


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ({"content-type": "text/xml"}, ["text/xml", "application/json"]),
        (
            {"content-type": "application/x-www-form-urlencoded"},
            ["urlencoded", "Content-Type: application/json"],
        ),
        ({"content-type": "application/json; charset=latin-1"}, ["latin-1", "UTF-8"]),
        ({"content-encoding": "br"}, ["br", "gzip", "Content-Encoding"]),
        ({"content-type": "x" * 9_000}, ["xxx"]),
    ],
)
def test_a_body_of_another_type(client: httpx.Client, headers: dict[str, str], words: list[str]) -> None:
    response = client.post("/v1/predict", content=b'{"rows": []}', headers=headers)
    assert response.status_code == 415
    detail = response.json()["detail"]
    assert [word for word in words if word not in detail] == []
    assert len(detail) < 200


@pytest.mark.parametrize(
    "kind", ["application/json", "Application/JSON;charset=UTF-8", "application/json; q=1"]
)
def test_json_by_any_of_its_names(client: httpx.Client, kind: str) -> None:
    headers = {"content-type": kind, "content-encoding": "identity"}
    assert client.post("/v1/predict", content=b'{"rows": []}', headers=headers).status_code == 200


def test_messages_stay_short(client: httpx.Client) -> None:
    for body in ({"x" * 100_000: 1}, {"rows": [{"x" * 100_000: 1}]}, {"rows": [{"age": "x" * 100_000}]}):
        response = client.post("/v1/predict", json=body)
        assert response.status_code == 422
        assert len(response.text) < 500


def test_lists_in_the_rows_are_refused_before_they_are_made(small: httpx.Client) -> None:
    response = small.post("/v1/predict", content=b'{"rows": [{"city": [[], [], []]}]}')
    assert response.status_code == 422
    assert "text, a number or null" in response.json()["detail"]
    brackets = {"rows": [{"city": "[{" * 10, "note": '\\"[[[[['}]}
    assert small.post("/v1/predict", json=brackets).status_code == 200


def test_more_rows_than_allowed(small: httpx.Client) -> None:
    assert small.post("/v1/predict", json={"rows": [{}] * 3}).status_code == 200
    response = small.post("/v1/predict", json={"rows": [{}] * 4})
    assert response.status_code == 413
    assert response.json() == {"detail": "4 rows in one request; send at most 3 (CTR_SERVE_LIMIT_ROWS)"}


@pytest.mark.parametrize("chunked", [False, True], ids=["declared", "chunked"])
@pytest.mark.parametrize("size", [1_001, 1_000 * DRAIN_FACTOR, 50_000])
def test_a_larger_body_than_allowed(small: httpx.Client, size: int, chunked: bool) -> None:
    body = b'{"rows": [{}]}'.ljust(size)
    response = small.post("/v1/predict", content=iter([body[:900], body[900:]]) if chunked else body)
    assert response.status_code == 413
    assert "1,000 bytes" in response.json()["detail"]


def test_a_body_as_large_as_allowed(small: httpx.Client) -> None:
    assert small.post("/v1/predict", content=b'{"rows": [{}]}'.ljust(1_000)).status_code == 200


def test_the_default_limits_refuse_cleanly(client: httpx.Client) -> None:
    assert client.post("/v1/predict", json={"rows": [{}] * 10_000}).status_code == 200
    assert client.post("/v1/predict", json={"rows": [{}] * 10_001}).status_code == 413
    assert client.post("/v1/predict", content=b" " * (3 << 20)).status_code == 413


def test_unknown_paths_and_methods(client: httpx.Client) -> None:
    assert client.get("/v1/nothing").status_code == 404
    response = client.get("/v1/predict")
    assert (response.status_code, response.headers["allow"]) == (405, "POST")
