"""Real servers on free ports, in a thread of the test's own process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import sleep
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI

from ctr.api.connections import listen, url_of
from ctr.api.server import server_of


@dataclass(frozen=True, slots=True)
class Running:
    """A server in a thread of this process, and a client that is connected to it."""

    url: str
    server: uvicorn.Server
    client: httpx.Client


@contextmanager
def run_server(app: FastAPI, *, wait_ready: bool = True, **connection: Any) -> Iterator[Running]:
    """Serve `app` for as long as the context lasts, by default from when it is ready."""
    listener = listen("127.0.0.1", 0)
    server = server_of(app, **{"limit": 100, **connection})
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        with httpx.Client(base_url=url_of(listener), timeout=30, verify=False) as client:
            while wait_ready and client.get("/readyz").status_code != 200:
                sleep(0.01)
            yield Running(url_of(listener), server, client)
    finally:
        server.should_exit = True
        thread.join()
        listener.close()
