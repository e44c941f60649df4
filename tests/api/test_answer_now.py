"""Requests that are answered as soon as they have arrived, without the application."""

from __future__ import annotations

import json
import logging
import random
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest

from ctr.api.app import create_app
from ctr.api.operations import Access, FolderSource, Tokens, Versions
from tests.api.running import Running, run_server
from tests.api.test_connection import answer, connect

pytest.importorskip("httptools")

ROWS = [b'{"rows":[{"city":"a","age":%d}]}' % age for age in range(5)]


def request_of(body: bytes, headers: bytes = b"", path: bytes = b"/v1/predict") -> bytes:
    return (
        b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n%bcontent-length: %d\r\n\r\n%b"
        % (path, headers, len(body), body)
    )


GETS = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n"
LAST = request_of(ROWS[0], b"connection: close\r\n")


def access_of(model_dir: Path, log: Path | None = None) -> Access:
    source, nobody = FolderSource(model_dir), Tokens(None, "")
    versions = Versions(
        source,
        source.load(source.versions()[source.main][0]),
        lambda model, metrics, on_warm: create_app(model, metrics=metrics, on_warm=on_warm),
    )
    return Access(versions, nobody, nobody, log)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("log") / "access.log"


@pytest.fixture(scope="module")
def running(model_dir: Path, log: Path) -> Iterator[Running]:
    with run_server(access_of(model_dir, log), header_s=0.4, limit=6) as running:
        yield running


def predictions(said: bytes) -> list[float]:
    """The predictions of all answers in turn."""
    bodies = [part.partition(b"\r\n\r\n")[2] for part in said.split(b"HTTP/1.1 ")[1:]]
    return [value for body in bodies for value in json.loads(body).get("predictions", [])]


def test_requests_in_any_pieces_are_answered_in_their_order(running: Running) -> None:
    """Also those between which the application has to be called."""
    sent = b"".join(
        (
            *map(request_of, ROWS),
            GETS,
            request_of(ROWS[1]),
            request_of(ROWS[2], b"content-encoding: identity\r\n"),
            request_of(ROWS[3]),
            request_of(b'{"rows":[{"town":1}]}'),  # refused, with the reason
            request_of(ROWS[4], path=b"/v1/predict?include=margins"),
            request_of(ROWS[4]),
            LAST,
        )
    )
    whole = answer(connect(running.url, sent))
    of_ages = predictions(whole)[:5]
    assert predictions(whole) == [*of_ages, *(of_ages[age] for age in (1, 2, 3, 4, 4, 0))]
    assert whole.count(b"HTTP/1.1 200 OK") == 12
    assert whole.count(b"HTTP/1.1 422") == 1
    assert whole.count(b"x-request-id: ") == whole.count(b"date: ") == 13
    draw = random.Random(5)
    for _ in range(10):
        cuts = sorted(draw.sample(range(1, len(sent)), 9))
        connection = connect(running.url)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for first, last in zip([0, *cuts], [*cuts, len(sent)], strict=True):
            connection.sendall(sent[first:last])
            time.sleep(0.002)
        assert predictions(answer(connection)) == predictions(whole)


def test_a_connection_may_stay_idle_between_requests(running: Running) -> None:
    """The deadline of a header ends when its request is answered."""
    with closing(connect(running.url)) as connection:
        for _ in range(2):
            message = request_of(ROWS[0])
            connection.sendall(message[:20])
            time.sleep(0.02)
            connection.sendall(message[20:])
            assert connection.recv(10_000).startswith(b"HTTP/1.1 200")
            time.sleep(0.6)


@pytest.mark.parametrize(("sent", "answers"), [(b"\r\n", 0), (request_of(ROWS[0]) + GETS[:20], 1)])
def test_part_of_a_header_has_a_deadline(running: Running, sent: bytes, answers: int) -> None:
    began = time.monotonic()
    assert answer(connect(running.url, sent)).count(b"HTTP/1.1 200") == answers
    assert 0.3 < time.monotonic() - began < 5


def test_connections_that_never_asked_make_room_first(running: Running) -> None:
    with ExitStack() as held:
        asked = held.enter_context(closing(connect(running.url, request_of(ROWS[0]))))
        assert asked.recv(10_000).startswith(b"HTTP/1.1 200")
        for _ in range(12):
            held.enter_context(closing(connect(running.url)))
        asked.sendall(request_of(ROWS[0]))
        assert asked.recv(10_000).startswith(b"HTTP/1.1 200")


def test_the_application_waits_for_the_rest_of_a_body(model_dir: Path) -> None:
    with run_server(access_of(model_dir), header_s=0.2) as running:
        connection = connect(running.url, request_of(ROWS[0])[:-1])
        time.sleep(0.5)  # the deadline of the header is over
        connection.sendall(b"}")
        assert connection.recv(10_000).startswith(b"HTTP/1.1 200")
        connection.close()


def test_each_request_is_logged_and_counted_once(running: Running, log: Path) -> None:
    before = len(log.read_text().splitlines())
    name = 'ctr_requests_total{path="/v1/predict",status="200"}'

    def counted() -> float:
        lines = running.client.get("/metrics").text.splitlines()
        return float(next(line for line in lines if line.startswith(name)).split()[-1])

    count = counted()
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    for headers in ({}, {"x-forwarded-for": "192.0.2.7"}):
        response = running.client.post(
            "/v1/predict",
            content=ROWS[0],
            headers={
                "content-type": "application/json",
                "x-request-id": "mine",
                "traceparent": trace,
                **headers,
            },
        )
        assert response.headers["x-request-id"] == "mine"
        assert response.headers["ctr-model"] == response.json()["model"]
    assert counted() == count + 2
    lines = [json.loads(line) for line in log.read_text().splitlines()[before:]]
    predicted = [line for line in lines if line["path"] == "/v1/predict"]
    assert [line["client"] for line in predicted] == ["127.0.0.1", "192.0.2.7"]
    for line in predicted:
        assert line["bytes"] == len(response.content)
        assert (line["id"], line["traceparent"], line["status"]) == ("mine", trace, 200)
        assert line["model"] == response.headers["ctr-model"]


def test_a_failure_is_answered_by_the_application(
    running: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no")

    with monkeypatch.context() as patch:
        patch.setattr(Versions, "answer_now", fail)
        assert predictions(answer(connect(running.url, request_of(ROWS[0]) + LAST)))
    assert "a request failed" in caplog.text


def test_http_1_0_closes_the_connection_after_its_answer(running: Running) -> None:
    """Its clients read until the connection ends, unless a header says otherwise."""
    message = request_of(ROWS[0], b"connection: keep-alive\r\n").replace(b"HTTP/1.1", b"HTTP/1.0")
    assert b"\r\nconnection: close\r\n" in answer(connect(running.url, message))


def test_a_malformed_url_is_refused_before_its_body_has_arrived(running: Running) -> None:
    sent = request_of(ROWS[0], path=b"http://x")[:-1]
    assert answer(connect(running.url, sent)).startswith(b"HTTP/1.1 400")


def test_a_request_may_take_longer_than_a_connection_may_be_idle(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that arrived together with a request that was answered at once."""
    monkeypatch.setattr("ctr.api.server.KEEP_ALIVE_S", 0.1)
    with run_server(access_of(model_dir)) as running:
        for headers in (b"", b"content-encoding: identity\r\n"):
            connection = connect(running.url, request_of(ROWS[0]) + request_of(ROWS[1], headers)[:-1])
            time.sleep(0.4)
            connection.sendall(b"}" + LAST)
            assert len(predictions(answer(connection))) == 3


def test_the_first_type_of_content_counts(running: Running) -> None:
    second = b"content-type: application/json\r\nconnection: close\r\n"
    sent = request_of(ROWS[0], second).replace(b"application/json", b"text/plain", 1)
    sent = sent.replace(b"connection: close\r\n", b"") + sent
    assert answer(connect(running.url, sent)).count(b"HTTP/1.1 415") == 2


def test_requests_may_be_sent_without_waiting_for_answers(running: Running) -> None:
    with closing(connect(running.url)) as connection, ThreadPoolExecutor(1) as thread:
        sending = thread.submit(connection.sendall, 2_000 * request_of(ROWS[0]) + LAST)
        with connection.makefile("rb") as stream:
            assert len(predictions(stream.read())) == 2_001
        sending.result()


def test_a_client_that_reads_no_answers_cannot_fill_the_memory(running: Running) -> None:
    requests = 1_000 * request_of(ROWS[0])
    with closing(connect(running.url)) as connection:
        connection.settimeout(1)
        with suppress(TimeoutError):
            for _ in range(400):
                connection.sendall(requests)
        waiting = [len(each.pipeline) for each in list(running.server.server_state.connections)]
    assert max(waiting) < 10_000


def test_a_client_that_leaves_while_its_requests_wait_is_no_error(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    logging.getLogger("uvicorn.error").addHandler(caplog.handler)
    with closing(connect(running.url)) as connection:
        connection.settimeout(1)
        with suppress(TimeoutError):
            for _ in range(400):
                connection.sendall(1_000 * request_of(ROWS[0]))
    time.sleep(0.5)
    logging.getLogger("uvicorn.error").removeHandler(caplog.handler)
    assert not caplog.records
