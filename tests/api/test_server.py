"""`serve` as a process of its own: where it says it listens, how it stops, why it does not start."""

from __future__ import annotations

import re
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from ctr.api.connections import listen, listen_together, url_of
from ctr.api.server import serve
from ctr.errors import CtrError, ModelError
from ctr.model.model import Model
from ctr.settings import ServeJob
from tests.ctr.distributed_jobs import Command, wait_for


@contextmanager
def server_process(*words: object, **options: Any) -> Iterator[tuple[Command, str]]:
    """A server on a free port, and its first line of output."""
    model = () if words[0] == "--registry" else ("--model",)
    process = Command("serve", *model, *words, "--port", 0, **options)
    try:
        wait_for(lambda: "\n" in process.out or process.popen.poll() is not None)
        assert "\n" in process.out, process.said
        yield process, process.out
    finally:
        process.kill()
        process.close()


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_a_process_serves_until_it_is_told_to_stop(
    model_dir: Path, model: Model, stop: signal.Signals
) -> None:
    with server_process(model_dir) as (process, line):
        told = re.fullmatch(rf"serving model {model.id} on (http://127\.0\.0\.1:(\d+))\n", line)
        assert told is not None, line
        process.popen.send_signal(signal.SIGHUP)  # the terminal was closed
        # Ready when it says so: a newcomer's first request must not be refused.
        response = httpx.post(f"{told[1]}/v1/predict", json={"rows": [{"city": "Köln"}]})
        assert response.json()["predictions"] == pytest.approx(model.predict([{"city": "Köln"}]).tolist())
        process.popen.send_signal(stop)
        assert process.end() == (0, "")
        assert process.out == line
        with socket.create_server(("127.0.0.1", int(told[2]))):
            pass  # the port is free again


def test_an_open_connection_does_not_hold_up_the_end(model_dir: Path) -> None:
    with (
        server_process(model_dir) as (process, line),
        httpx.Client(base_url=line.split()[-1], verify=False) as client,
    ):
        assert client.get("/healthz").status_code == 200
        process.popen.send_signal(signal.SIGTERM)
        assert process.popen.wait(5) == 0


def test_a_port_in_use(model_dir: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(CtrError, match=rf"port {port} on 127\.0\.0\.1 is in use.*--port 0"):
            serve(ServeJob(model=model_dir, port=port))


def test_the_command_says_why_it_cannot_start(model_dir: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        process = Command("serve", "--model", model_dir, "--port", other.getsockname()[1])
        code, said = process.end()
    assert code == 1
    assert "is in use" in said


def test_a_missing_model(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="nowhere"):
        serve(ServeJob(model=tmp_path / "nowhere", port=0))


@pytest.mark.parametrize(
    ("host", "port", "words"),
    [
        ("127.0.0.1", 65_536, "port 65536 does not exist"),
        ("127.0.0.1", -1, "port -1 does not exist"),
        ("no such host", 0, "'no such host' is not known"),
        ("x" * 70, 0, "is not known"),
        ("192.0.2.1", 0, "not an address of this machine"),
    ],
)
def test_an_address_that_cannot_be_had(host: str, port: int, words: str) -> None:
    with pytest.raises(CtrError, match=words):
        listen(host, port)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0"])
def test_the_url_shows_the_port_that_was_found(host: str) -> None:
    with listen(host, 0) as listener:
        assert re.fullmatch(r"http://(\S+):[1-9]\d*", url_of(listener))


def test_responses_do_not_wait_for_acknowledgements() -> None:
    with listen("127.0.0.1", 0) as listener:
        # asyncio switches Nagle's algorithm off for sockets of exactly this protocol.
        assert listener.proto == socket.IPPROTO_TCP


def test_connections_are_dealt_to_all_who_listen_together() -> None:
    listeners = listen_together("127.0.0.1", 0, 2)
    port = listeners[0].getsockname()[1]
    with ExitStack() as opened:
        for listener in listeners:
            opened.enter_context(listener)
            listener.setblocking(False)
        with pytest.raises(CtrError, match=f"port {port} on 127.0.0.1 is in use"):
            listen_together("127.0.0.1", port, 2)
        for _ in range(64):
            opened.enter_context(socket.create_connection(("127.0.0.1", port)))
        shares = []
        for listener in listeners:
            accepted = 0
            with suppress(BlockingIOError):
                while True:
                    opened.enter_context(listener.accept()[0])
                    accepted += 1
            shares.append(accepted)
    assert sum(shares) == 64
    assert min(shares) > 8
