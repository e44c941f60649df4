"""Live serving: how soon a push is served, and what requests notice of weights that change."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from multiprocessing import get_context
from multiprocessing.synchronize import Event
from pathlib import Path
from time import monotonic, perf_counter, sleep
from urllib.request import urlopen

import numpy as np
import orjson

from benchmarks.measure import CTR, ctr
from ctr.ps import JobBoard, PackedPush, RedisStore, Token, parse_redis_url
from ctr.ps.servers import EmbeddedRedis
from ctr.stream import ExampleStream
from ctr.workers import JobDescription

EXAMPLES_PER_S, SLOTS_PER_S, REQUESTS_PER_S = 50_000, 1_000_000, 200
ROWS, CHUNK = 400_000, 8_192
WARM_S, SECONDS = 6.0, 10.0
_COLUMNS = ("label", *(f"I{i}" for i in range(1, 14)), *(f"C{i}" for i in range(1, 27)))


def measure(folder: Path) -> None:
    """Print the seconds from push to served, and latencies of requests meanwhile."""
    rows = _rows(folder)
    with EmbeddedRedis() as redis:
        stream, store = f"{redis.url}?stream=live", f"{redis.url}?model=live"
        with closing(ExampleStream(stream)) as first:
            first.append(0, rows[:CHUNK], {})
        words = ("--stream", stream, "--store", store, "--spec", "criteo", "--model", folder / "live.ctr")
        served = _server("--store", store), _server("--model", _frozen(folder))
        with _training(store, *words), served[0] as live, served[1] as frozen:
            body = orjson.dumps({"rows": [{k: v for k, v in orjson.loads(rows[0]).items() if k != "label"}]})
            asyncio.run(_load(live, body, WARM_S))
            latencies = {"quiet": _both(live, frozen, body)}
            with _beside(_fill, stream, rows):
                sleep(WARM_S)
                fresh, trained = -_freshness(live), -_examples(store)
                latencies["while it is trained"] = _both(live, frozen, body)
                fresh, trained = fresh + _freshness(live), trained + _examples(store)
            sleep(WARM_S)
            with _beside(_push, store):
                sleep(WARM_S)
                changed = -_changed(live)
                of_both = _both(live, frozen, body)
                changed += _changed(live)
            latencies[f"{changed / 2 / SECONDS:,.0f} slots/s change"] = of_both
    print(f"\n{trained / 2 / SECONDS:,.0f} examples/s from a stream:")
    median, p99 = (_quantile(fresh, share) for share in (0.5, 0.99))
    print(f"  push to served: median {median:.2f} s (asked 0.5), p99 {p99:.2f} s (asked 2)")
    print(
        f"{REQUESTS_PER_S} requests/s of one row, p99 in ms: live weights, and a model that does not change"
    )
    for name, p99s in latencies.items():
        live_ratio, frozen_ratio = p99s / latencies["quiet"]
        print(
            f"  {name:28} {p99s[0]:6.2f} ({live_ratio:.2f} of quiet, asked 1.5)  "
            f"{p99s[1]:6.2f} ({frozen_ratio:.2f})"
        )


def _both(live: str, frozen: str, body: bytes) -> np.ndarray:
    """The p99 of either server in ms, float64[2], measured one after the other."""
    return np.array(
        [np.quantile(asyncio.run(_load(url, body, SECONDS)), 0.99) * 1e3 for url in (live, frozen)]
    )


def _frozen(folder: Path) -> Path:
    """A model of the same rows."""
    model, log = folder / "live-frozen.ctr", folder / f"live-{ROWS}.tsv"
    if not model.exists():
        ctr("train", "--spec", "criteo", log, "--model", model)
    return model


def _rows(folder: Path) -> list[bytes]:
    log = folder / f"live-{ROWS}.tsv"
    if not log.exists():
        ctr("synth", "--rows", ROWS, "--out", log, "--seed", 3)
    rows = []
    for line in log.read_text().splitlines():
        cells = zip(_COLUMNS, line.split("\t"), strict=True)
        rows.append(orjson.dumps({name: int(c) if name[0] in "lI" else c for name, c in cells if c}))
    return rows


@contextmanager
def _command(*words: object) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([CTR, *map(str, words)], stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


@contextmanager
def _server(*words: object) -> Iterator[str]:
    with _command("serve", *words, "--port", 0) as process:
        assert process.stdout is not None
        if (address := re.search(r"http://[0-9.:]+", process.stdout.readline())) is None:
            sys.exit("the server does not start")
        yield address[0]


@contextmanager
def _training(store: str, *words: object) -> Iterator[None]:
    """A job that trains, from when others can follow it."""
    deadline = monotonic() + 60
    with _command("train", *words), closing(JobBoard(parse_redis_url(store))) as board:
        while board.job() is None:
            if monotonic() > deadline:
                sys.exit("the job does not start")
            sleep(0.05)
        yield


@contextmanager
def _beside(work: object, *arguments: object) -> Iterator[None]:
    context = get_context("spawn")
    stop = context.Event()
    process = context.Process(target=work, args=(stop, *arguments))  # type: ignore[arg-type]
    process.start()
    try:
        yield
    finally:
        stop.set()
        process.join()


def _fill(stop: Event, url: str, rows: list[bytes]) -> None:
    """Append rows at a steady pace, the same ones over and over."""
    with closing(ExampleStream(url)) as stream:
        number, began, done = stream.last()[0], perf_counter(), 0
        while not stop.is_set():
            at = done % (len(rows) - CHUNK)
            while not stream.append(number, rows[at : at + CHUNK], {}):
                sleep(0.01)
            number, done = number + 1, done + CHUNK
            sleep(max(began + done / EXAMPLES_PER_S - perf_counter(), 0))


def _push(stop: Event, url: str) -> None:
    """Change random slots at a steady pace."""
    with _store(url) as store:
        rng, number, began, done = np.random.default_rng(1), 0, perf_counter(), 0
        while not stop.is_set():
            slots = np.unique(rng.integers(0, 1 << store.bits, SLOTS_PER_S // 5, dtype=np.uint32))
            increments = rng.integers(-8, 8, slots.size) << 32 | 1
            store.push_packed(PackedPush(slots, increments, Token("bench", 0, number)))
            number, done = number + 1, done + slots.size
            sleep(max(began + done / SLOTS_PER_S - perf_counter(), 0))


@contextmanager
def _store(url: str) -> Iterator[RedisStore]:
    parsed = parse_redis_url(url)
    with closing(JobBoard(parsed)) as board:
        job = board.job()
    assert job is not None
    with closing(JobDescription.from_bytes(job.description).join_store(parsed)) as store:
        yield store


def _examples(url: str) -> float:
    """Examples trained so far, as the workers' last reports have them."""
    with closing(JobBoard(parse_redis_url(url))) as board:
        view = board.look()
    return float(sum(each.progress for each in view.unfinished.values()) * CHUNK)


def _metric(url: str, pattern: str) -> list[tuple[str, float]]:
    with urlopen(f"{url}/metrics") as answer:
        text = answer.read().decode()
    return [
        (found[1], float(found[2])) for found in re.finditer(pattern + r" ([0-9.e+-]+)$", text, re.MULTILINE)
    ]


def _changed(url: str) -> float:
    return _metric(url, r"^ctr_weights_changed_(total)")[0][1]


def _freshness(url: str) -> np.ndarray:
    """The cumulative counts of the histogram of push to served."""
    return np.array(
        [count for _, count in _metric(url, r'^ctr_push_to_served_seconds_bucket\{le="([^"]+)"\}')]
    )


def _quantile(counts: np.ndarray, share: float) -> float:
    """The upper end of the bucket that has this quantile."""
    from ctr.api.operations.metrics import _FRESHNESS_S

    at = int(np.searchsorted(counts, share * counts[-1]))
    return (*_FRESHNESS_S, float("inf"))[at]


async def _load(url: str, body: bytes, seconds: float) -> np.ndarray:
    """The latencies of requests at a steady pace, float64[requests] in seconds."""
    host, port = url.removeprefix("http://").split(":")
    head = "POST /v1/predict HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(body)}\r\n\r\n"
    message, latencies, connections = head.encode() + body, list[float](), 8
    began = perf_counter()

    async def ask(number: int) -> None:
        reader, writer = await asyncio.open_connection(host, int(port))
        due = began + number / REQUESTS_PER_S
        while due < began + seconds:
            await asyncio.sleep(max(due - perf_counter(), 0))
            sent = perf_counter()
            writer.write(message)
            answer = await reader.readuntil(b"\r\n\r\n")
            size = int(answer.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            await reader.readexactly(size)
            latencies.append(perf_counter() - sent)
            due += connections / REQUESTS_PER_S
        writer.close()

    await asyncio.gather(*(ask(number) for number in range(connections)))
    return np.array(latencies)
