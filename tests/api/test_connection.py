"""Connections that are many, slow, or open when the server stops."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from ctr.api.app import create_app
from ctr.api.requests.body import Limits
from ctr.api.service import INLINE_BYTES
from ctr.model.model import Model
from tests.api.running import run_server
from tests.api.test_app import Wrapped
from tests.api.test_server import server_process
from tests.ctr.distributed_jobs import Command
from tests.ps.tls import Certificates

HALF_A_HEADER = b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Half: "
HALF_A_BODY = b"POST /v1/predict HTTP/1.1\r\nHost: x\r\nContent-Length: 20000\r\n\r\n" + b'{"rows": ['
LARGE = b'{"rows": [{"city": "a"}]}'.ljust(INLINE_BYTES + 1)


def connect(url: str, sent: bytes = b"") -> socket.socket:
    """A connection over which nothing but `sent` is sent."""
    address = urlsplit(url)
    connection = socket.create_connection((address.hostname, address.port), timeout=10)
    connection.sendall(sent)
    return connection


def answer(connection: socket.socket) -> bytes:
    """All that the server says until it closes the connection."""
    with closing(connection), connection.makefile("rb") as stream:
        return stream.read()


@pytest.fixture(scope="module")
def starved(model_dir: Path) -> Iterator[tuple[Command, str]]:
    """A server process that may have 256 descriptors, and its URL."""

    def few() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (128, 256))

    with server_process(model_dir, preexec_fn=few) as (process, line):
        yield process, line.split()[-1]
        process.popen.send_signal(signal.SIGTERM)
        assert process.end() == (0, "")
        assert process.out == line


def test_more_connections_than_descriptors(starved: tuple[Command, str]) -> None:
    process, url = starved
    with ExitStack() as held:
        for _ in range(300):
            held.enter_context(closing(connect(url, HALF_A_HEADER)))
        for _ in range(5):
            assert httpx.get(f"{url}/healthz", timeout=5, verify=False).status_code == 200
        # Not only the soft limit's 128, and not so many that none would be left for a file.
        assert 150 < len(os.listdir(f"/proc/{process.popen.pid}/fd")) < 250


@pytest.mark.parametrize("unit", [b"{},", b"[[]],", b'{"city":[]},'])
@pytest.mark.parametrize("size", [2_000_000, 16_000_000])
def test_rows_are_counted_before_they_take_memory(
    starved: tuple[Command, str], unit: bytes, size: int
) -> None:
    process, url = starved

    def peak() -> int:
        lines = Path(f"/proc/{process.popen.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024

    before = peak()
    body = b'{"rows": [' + (unit * (size // len(unit)))[:-1] + b"]}"
    assert httpx.post(f"{url}/v1/predict", content=body).status_code == 413
    assert peak() - before < 32 << 20


def test_a_header_has_a_deadline(model: Model) -> None:
    with run_server(create_app(model), header_s=0.2) as running:
        assert answer(connect(running.url)) == b""
        assert answer(connect(running.url, HALF_A_HEADER)) == b""
        kept = connect(running.url, b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"200 OK" in kept.recv(10_000)
        time.sleep(0.5)
        kept.sendall(b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n" + HALF_A_HEADER)
        said = answer(kept)
        assert b'"ready"' in said
        assert said.count(b"HTTP/1.1") == 1


def test_a_body_has_a_deadline(model: Model) -> None:
    with run_server(create_app(model, limits=Limits(body_s=0.2)), header_s=0.2) as running:
        said = answer(connect(running.url, HALF_A_BODY))
    assert said.startswith(b"HTTP/1.1 408")
    assert b"did not arrive within 0.2 seconds" in said


def _send(connection: socket.socket, sent: bytes) -> None:
    with suppress(OSError):  # either side may close it
        connection.sendall(sent)


def test_a_client_that_reads_nothing_is_left(model: Model) -> None:
    """One that reads slowly is not."""
    body = b'{"rows": [' + b",".join([b'{"age": 3}'] * 10_000) + b"]}"
    head = b"POST /v1/predict?include=margins HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    requests = 40 * (head + b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
    with run_server(create_app(model), unread_s=0.5) as running, ExitStack() as held:
        silent, slow = (held.enter_context(closing(connect(running.url))) for _ in range(2))
        for client in (silent, slow):
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)
            threading.Thread(target=_send, args=(client, requests)).start()
        for _ in range(30):
            assert slow.recv(64 << 10)
            time.sleep(0.1)
        ports = {each.client[1] for each in running.server.server_state.connections}
        assert slow.getsockname()[1] in ports
        assert silent.getsockname()[1] not in ports


def test_a_small_body_of_which_nothing_comes_has_one_too(model: Model) -> None:
    head = (
        b"POST /v1/predict HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n"
    )
    with run_server(create_app(model, limits=Limits(body_s=0.2)), header_s=0.2) as running:
        said = answer(connect(running.url, head))
    assert said.startswith(b"HTTP/1.1 408")
    assert b"did not arrive within 0.2 seconds" in said


def test_a_small_body_may_come_in_pieces(model: Model) -> None:
    body = b'{"rows": [{"age": 3}]}'
    head = (
        b"POST /v1/predict HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n" % len(body)
    )
    with run_server(create_app(model)) as running, closing(connect(running.url, head)) as client:
        for place in range(len(body)):
            client.sendall(body[place : place + 1])
            time.sleep(0.001)
        said = answer(client)
    assert said.startswith(b"HTTP/1.1 200")
    assert b'"predictions":[' in said


def test_connections_without_a_request_make_room_for_others(model: Model) -> None:
    with run_server(create_app(model), limit=3) as running, ExitStack() as held:
        slow = [held.enter_context(closing(connect(running.url, HALF_A_HEADER))) for _ in range(10)]
        assert httpx.get(f"{running.url}/healthz", verify=False).status_code == 200
        began = time.monotonic()
        for first in slow[:7]:
            assert first.recv(1) == b""
        assert time.monotonic() - began < 5, "none of them waited for its deadline"
        # The client's own connection has had answers: those that never asked for any go first.
        assert running.client.get("/healthz").status_code == 200


def test_tls_handshakes_count_and_have_a_deadline(model: Model, tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    options = {"tls": certificates.server, "wait_ready": False, "limit": 3, "header_s": 2}
    trusting = ssl.create_default_context(cafile=str(certificates.ca))
    with run_server(create_app(model), **options) as running, ExitStack() as held:
        held.enter_context(closing(connect(running.url, b"no handshake")))
        slow = [held.enter_context(closing(connect(running.url, b"\x16\x03\x01"))) for _ in range(10)]
        url = running.url.replace("http://127.0.0.1", "https://localhost")
        with httpx.Client(base_url=url, verify=trusting) as client:
            for _ in range(3):
                assert client.get("/healthz").status_code == 200
        for first in slow[:7]:
            assert first.recv(1) == b""
        began = time.monotonic()
        assert slow[-1].recv(1) == b""
        assert time.monotonic() - began < 5


def test_a_connection_too_many_is_told_so(model: Model) -> None:
    slow = Wrapped(model)
    slow.gate.set()
    with ThreadPoolExecutor(1) as pool, run_server(create_app(slow), limit=1) as running:
        slow.gate.clear()
        slow.entered.clear()
        under_way = pool.submit(running.client.post, "/v1/predict", content=LARGE)
        assert slow.entered.wait(10)
        response = httpx.get(f"{running.url}/healthz", verify=False)
        assert response.status_code == 503
        assert "(CTR_SERVE_LIMIT_CONNECTIONS)" in response.json()["detail"]
        assert response.headers["connection"] == "close"
        assert "every connection" in response.json()["detail"]
        slow.gate.set()
        assert under_way.result().status_code == 200


def test_large_requests_take_turns_and_small_ones_do_not_wait(model: Model) -> None:
    slow = Wrapped(model)
    slow.gate.set()
    limits = Limits(large_bodies=1, body_s=1)
    with ThreadPoolExecutor(1) as pool, run_server(create_app(slow, limits=limits)) as running:
        slow.gate.clear()
        slow.entered.clear()
        under_way = pool.submit(running.client.post, "/v1/predict", content=LARGE)
        assert slow.entered.wait(10)
        response = httpx.post(f"{running.url}/v1/predict", content=LARGE)
        assert response.status_code == 503
        assert "large requests" in response.json()["detail"]
        assert httpx.post(f"{running.url}/v1/predict", json={"rows": 1}).status_code == 422
        slow.gate.set()
        assert under_way.result().status_code == 200
        assert httpx.post(f"{running.url}/v1/predict", content=LARGE).status_code == 200


def test_a_server_that_stops_says_so_before_it_closes_a_connection(model_dir: Path) -> None:
    with server_process(model_dir) as (process, line):
        url = line.split()[-1]
        upload = connect(url, HALF_A_BODY)
        with httpx.Client(base_url=url, verify=False) as client:
            assert "connection" not in client.get("/healthz").headers
            process.popen.send_signal(signal.SIGTERM)
            while client.get("/healthz").headers.get("connection") != "close":
                pass
        upload.sendall(b"]}".ljust(20_000 - len(b'{"rows": [')))
        assert json.loads(answer(upload).partition(b"\r\n\r\n")[2])["predictions"] == []
        assert process.end() == (0, "")
        assert process.out == line


def test_an_upload_that_is_never_finished_leaves_no_traceback(
    model: Model, caplog: pytest.LogCaptureFixture
) -> None:
    with run_server(create_app(model)) as running:
        running.server.config.timeout_graceful_shutdown = 1
        upload = connect(running.url, HALF_A_BODY)
        while not running.server.server_state.tasks:
            time.sleep(0.01)
    assert answer(upload).startswith(b"HTTP/1.1 503")
    assert not [record for record in caplog.records if record.exc_info]
