"""Serving beside a bare FastAPI endpoint on the same server: loads from another process on loopback."""

from __future__ import annotations

import multiprocessing
import os
import random
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter, sleep
from urllib.request import urlopen

import numpy as np
import orjson
import pyarrow as pa
from fastapi import FastAPI, Request, Response

from benchmarks.measure import ctr
from ctr.features import load_spec

BITS = 24
TRAINED_ROWS = 300_000
FIELDS_OF_CONTEXT = 10
SECONDS = 1.5
"""Of load for each figure of each side in each round."""

Row = dict[str, int | str]


@dataclass(frozen=True)
class Load:
    """One kind of request, sent over and over by so many connections."""

    path: str
    body: bytes
    connections: int
    kind: str = "application/json"

    @property
    def message(self) -> bytes:
        """The request as it goes over the wire."""
        head = f"POST {self.path} HTTP/1.1\r\nHost: x\r\nContent-Type: {self.kind}\r\n"
        return f"{head}Content-Length: {len(self.body)}\r\n\r\n".encode() + self.body


def measure(folder: Path, rounds: int) -> None:
    """Print requests per second and latencies, as ratios to the bare endpoint."""
    model_dir = saved_model(folder)
    rows = random_rows(10_000)
    columns = {name: [row[name] for row in rows[:100]] for name in rows[0]}
    context = dict(list(rows[0].items())[:FIELDS_OF_CONTEXT])
    candidates = [{name: row[name] for name in row if name not in context} for row in rows[:100]]
    table = pa.table({name: [row[name] for row in rows] for name in rows[0]})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    one, many = (orjson.dumps({"rows": rows[:n]}) for n in (1, 100))
    loads = {
        "one row": Load("/v1/predict", one, 8),
        "one row, bare": Load("/bare", one, 8),
        "100 rows": Load("/v1/predict", many, 2),
        "100 rows, bare": Load("/bare", many, 2),
        "100 rows as columns": Load("/v1/predict", orjson.dumps({"columns": columns}), 2),
        "100 candidates": Load(
            "/v1/predict", orjson.dumps({"context": context, "candidates": candidates}), 2
        ),
        "10,000 rows in Arrow": Load(
            "/v1/predict/arrow", bytes(sink.getvalue()), 1, "application/vnd.apache.arrow.stream"
        ),
    }
    several = {f"one row, {n} processes": (n, Load("/v1/predict", one, 32)) for n in (1, 2)}
    seconds: dict[str, list[float]] = {name: [] for name in (*loads, *several)}
    slowest: dict[str, list[float]] = {name: [] for name in seconds}
    in_process: list[float] = []
    with server_of(serve_model, model_dir) as served, server_of(_serve_bare, model_dir) as bare:
        for _ in range(rounds):
            for name, load in loads.items():
                latencies, wall = timed(bare if load.path == "/bare" else served, load)
                seconds[name].append(wall / len(latencies))
                slowest[name].append(float(np.quantile(latencies, 0.99)))
            in_process.append(_aside(_predict_table, model_dir, table))
    with ExitStack() as opened:
        ports = {n: opened.enter_context(_command(model_dir, n)) for n, _ in several.values()}
        for _ in range(rounds):
            for name, (processes, load) in several.items():
                latencies, wall = timed(ports[processes], load)
                seconds[name].append(wall / len(latencies))
                slowest[name].append(float(np.quantile(latencies, 0.99)))
    _print(seconds, slowest, median(in_process))


def _print(seconds: dict[str, list[float]], slowest: dict[str, list[float]], in_process: float) -> None:
    took = {name: median(of_rounds) for name, of_rounds in seconds.items()}
    p99 = {name: median(of_rounds) for name, of_rounds in slowest.items()}
    print(f"\nserving 39 fields, 2**{BITS} slots, client on the same {os.cpu_count()} cores; medians")
    print(f"  {'':32}{'requests/s':>12}{'p99 ms':>9}")
    for name, of_one in took.items():
        print(f"  {name:32}{1 / of_one:12,.0f}{p99[name] * 1e3:9.2f}")
    print(f"  {'Model.predict of 10,000 rows':32}{1 / in_process:12,.0f}")
    ratios = [
        ("one row / bare", took["one row, bare"] / took["one row"], "at least 0.85"),
        ("p99 of one row / of bare", p99["one row"] / p99["one row, bare"], "at most 2"),
        ("100 rows / bare", took["100 rows, bare"] / took["100 rows"], "at least 0.7"),
        ("columns / rows", took["100 rows"] / took["100 rows as columns"], "at least 1.5"),
        ("candidates / rows", took["100 rows"] / took["100 candidates"], "at least 2"),
        (
            "two processes / one",
            took["one row, 1 processes"] / took["one row, 2 processes"],
            "at least 1.5, client included",
        ),
        ("Arrow / in process", in_process / took["10,000 rows in Arrow"], "at least 0.5"),
    ]
    print(f"  {'ratio of requests/s':32}{'':12}{'':9}  asked")
    for name, ratio, asked in ratios:
        print(f"  {name:32}{ratio:12.2f}{'':9}  {asked}")


def random_rows(number: int) -> list[Row]:
    draw = random.Random(7)

    def row() -> Row:
        numbers: Row = {f"I{i}": draw.randint(0, 3_000) for i in range(1, 14)}
        return numbers | {f"C{i}": f"{draw.getrandbits(32):08x}" for i in range(1, 27)}

    return [row() for _ in range(number)]


def saved_model(folder: Path) -> Path:
    model = folder / f"serve-{BITS}"
    if not model.exists():
        log = folder / "serve.tsv"
        ctr("synth", "--rows", TRAINED_ROWS, "--out", log)
        spec = folder / "serve.yaml"
        spec.write_text(load_spec("criteo").model_copy(update={"bits": BITS}).to_yaml())
        ctr("train", log, "--spec", spec, "--model", model)
    return model


@contextmanager
def server_of(run: Callable[[Path, socket.socket], None], model: Path) -> Iterator[int]:
    """A server in a process of its own; yields its port once it is ready."""
    from ctr.api.connections import listen, url_of

    listener = listen("127.0.0.1", 0)
    process = multiprocessing.get_context("spawn").Process(target=run, args=(model, listener))
    process.start()
    url = url_of(listener)
    try:
        while True:
            try:
                with urlopen(f"{url}/readyz", timeout=60):
                    break
            except OSError:
                sleep(0.1)
        yield listener.getsockname()[1]
    finally:
        assert process.pid is not None
        os.kill(process.pid, signal.SIGTERM)
        process.join()
        listener.close()


@contextmanager
def _command(model: Path, workers: int) -> Iterator[int]:
    """`ctr serve` with so many processes; yields its port."""
    words = [sys.executable, "-m", "ctr", "serve", "--model", model, "--workers", workers, "--port", 0]
    with subprocess.Popen([*map(str, words)], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield int(server.stdout.readline().rpartition(":")[2])
        finally:
            server.send_signal(signal.SIGTERM)


def serve_model(model: Path, listener: socket.socket) -> None:
    """As `ctr serve` does."""
    from ctr.api import create_app
    from ctr.api.operations import Access, FolderSource, Tokens, Versions
    from ctr.api.server import server_of

    source, nobody = FolderSource(model), Tokens(None, "")
    versions = Versions(
        source,
        source.load(source.versions()[source.main][0]),
        lambda model, metrics, on_warm: create_app(model, metrics=metrics, on_warm=on_warm),
    )
    server_of(Access(versions, nobody, nobody, None), limit=100).run(sockets=[listener])


def _serve_bare(_model: Path, listener: socket.socket) -> None:
    """What a FastAPI endpoint takes at least that reads JSON."""
    from ctr.api.server import server_of

    app = FastAPI()
    answer = orjson.dumps({"predictions": [0.1], "model": "0123456789ab"})

    @app.get("/readyz")
    async def ready() -> None:
        return

    @app.post("/bare")
    async def bare(request: Request) -> Response:
        orjson.loads(await request.body())
        return Response(answer, media_type="application/json")

    server_of(app, limit=100).run(sockets=[listener])


def _aside(call: Callable[..., float], *arguments: object) -> float:
    """The result of a function in a process of its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return float(pool.apply(call, arguments))


def _predict_table(model_dir: Path, table: pa.Table) -> float:
    from ctr.model import load_model

    model = load_model(model_dir)
    model.predict(table)
    seconds = []
    for _ in range(20):
        began = perf_counter()
        model.predict(table)
        seconds.append(perf_counter() - began)
    return median(seconds)


def timed(port: int, load: Load) -> tuple[Sequence[float], float]:
    """Latencies of requests sent for `SECONDS`, and how long that was; this process is the client.

    It shares the machine with the servers, so it does as little as a client can: blocking reads of the
    connections that have an answer.
    """
    latencies: list[float] = []

    def run(seconds: float) -> float:
        with ExitStack() as opened:
            selector = opened.enter_context(selectors.DefaultSelector())
            began = perf_counter()
            for _ in range(load.connections):
                connection = opened.enter_context(socket.create_connection(("127.0.0.1", port)))
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                selector.register(connection, selectors.EVENT_READ, [perf_counter()])
                connection.sendall(load.message)
            under_way = load.connections
            while under_way:
                for key, _ in selector.select():
                    assert isinstance(key.fileobj, socket.socket)
                    _read_answer(key.fileobj)
                    now = perf_counter()
                    latencies.append(now - key.data[0])
                    if now < began + seconds:
                        key.data[0] = now
                        key.fileobj.sendall(load.message)
                    else:
                        under_way -= 1
            return perf_counter() - began

    run(SECONDS / 5)
    latencies.clear()
    return latencies, run(SECONDS)


def _read_answer(connection: socket.socket) -> None:
    """Read one answer as a whole. Ends the program if it is a refusal."""
    head, _, body = connection.recv(1 << 16).partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200"):
        sys.exit(f"refused: {head!r} {body!r}")
    rest = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]) - len(body)
    while rest > 0:
        piece = connection.recv(min(rest, 1 << 20))
        if not piece:
            sys.exit("an answer ended too soon")
        rest -= len(piece)
