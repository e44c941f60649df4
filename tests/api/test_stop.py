"""A server that is told to stop: each request that the system has accepted for it is answered."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from ctr.api.connections import LINGER_S
from tests.api.operations.test_processes import children
from tests.api.running import run_server
from tests.api.test_connection import answer, connect
from tests.api.test_server import server_process
from tests.ctr.distributed_jobs import Command

BODY = b'{"rows": [{"city": "a"}]}'
REQUEST = (
    b"POST /v1/predict HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
    % (len(BODY), BODY)
)


def whole(connection: socket.socket) -> bytes:
    """One answer, of a connection that may stay open."""
    said = b""
    while not said.endswith(b"}"):
        more = connection.recv(10_000)
        assert more, said
        said += more
    return said


@contextmanager
def frozen(process: Command) -> Iterator[None]:
    """The server's processes stand still, as on a machine that has other work."""
    pids = children(process) or [process.popen.pid]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def opened(url: str) -> socket.socket:
    """A connection over which a request was sent."""
    if not url.startswith("unix:"):
        return connect(url, REQUEST)
    with ExitStack() as failing:
        connection = failing.enter_context(socket.socket(socket.AF_UNIX))
        connection.settimeout(10)
        connection.connect(url.removeprefix("unix:"))
        connection.sendall(REQUEST)
        failing.pop_all()
        return connection


@pytest.mark.parametrize("words", [(), ("--workers", 2), ("--socket", "ctr.sock")])
def test_connections_that_wait_to_be_accepted_are_answered(
    model_dir: Path, tmp_path: Path, words: tuple[object, ...]
) -> None:
    words = tuple(tmp_path / word if word == "ctr.sock" else word for word in words)
    with server_process(model_dir, *words) as (process, line), ExitStack() as held:
        url = line.split()[-1]
        with frozen(process):
            waiting = [held.enter_context(closing(opened(url))) for _ in range(300)]
            process.popen.send_signal(signal.SIGTERM)
        for connection in waiting:
            said = whole(connection)
            assert said.startswith(b"HTTP/1.1 200")
            assert json.loads(said.partition(b"\r\n\r\n")[2])["predictions"]
        assert process.end() == (0, "")
        with pytest.raises(OSError, match=r"refused|No such file"):
            opened(url)


def test_a_request_that_came_while_the_server_stood_still_is_answered(model_dir: Path) -> None:
    """Its connection was to be closed meanwhile, as it had been idle."""
    with server_process(model_dir) as (process, line), closing(connect(line.split()[-1], REQUEST)) as client:
        assert b"connection: close" not in whole(client)
        process.popen.send_signal(signal.SIGTERM)
        time.sleep(LINGER_S / 2)
        with frozen(process):
            client.sendall(REQUEST)
            time.sleep(2 * LINGER_S)
        said = answer(client)
        assert said.startswith(b"HTTP/1.1 200")
        assert b"connection: close" in said
        assert process.end() == (0, "")


def test_a_request_of_which_part_has_come_is_awaited(model_dir: Path) -> None:
    with server_process(model_dir) as (process, line):
        client = connect(line.split()[-1], REQUEST[:40])
        process.popen.send_signal(signal.SIGTERM)
        time.sleep(2 * LINGER_S)
        client.sendall(REQUEST[40:])
        assert answer(client).startswith(b"HTTP/1.1 200")
        assert process.end() == (0, "")


def test_after_an_answer_that_did_not_announce_the_end_another_request_may_come() -> None:
    head_is_sent, end = threading.Event(), threading.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            return
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        head_is_sent.set()
        while not end.is_set():
            await asyncio.sleep(0.01)
        await send({"type": "http.response.body", "body": b"{}"})

    with run_server(app, wait_ready=False) as running:
        client = connect(running.url, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert head_is_sent.wait(10)
        running.server.should_exit = True
        time.sleep(LINGER_S)
        end.set()
        assert b"connection: close" not in whole(client)
        client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"connection: close" in answer(client)
