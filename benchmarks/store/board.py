"""What many workers ask of two Redis nodes, replayed without training: how many would each node bear?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from threading import Lock
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.measure import ctr
from benchmarks.store.plan import hashed
from ctr.defaults import SAFE_ADDING, STALENESS
from ctr.features import open_source
from ctr.features.batches import localize
from ctr.learn import Learner
from ctr.optimizers import choose_optimizer
from ctr.ps import (
    DEFAULT_FILTERS,
    JobBoard,
    Logged,
    PackedPush,
    RedisSessions,
    RedisStore,
    RedisUrl,
    Token,
    parse_redis_url,
)
from ctr.ps.client.log_reader import LogReader
from ctr.ps.partitions import Bools, Slots
from ctr.ps.redis.fold import fold
from ctr.ps.servers import EmbeddedRedis

BITS = 28
WORKERS = 100
CHUNK = 524_288
EXAMPLES_PER_S = 900_000
"""That a worker trains."""
THREADS = 2
BOARD_CHUNKS, STORE_WORKERS = 20, 30
"""Chunks of each worker of which the board hears, and workers of which the store does, of one chunk each."""
SHARD_CHUNKS = 13
"""Chunks of a data shard, as with 4.2e9 examples."""
LEASE_S, BEATS = 10.0, 5
WAITING_ASKS, LEAST_S, MOST_S = 25, 0.002, 0.05
"""Requests of a worker that may not go on in the time of a chunk, and its pauses: see `Polling`."""
LIFE = b"x" * 150  # a progress report
CPU = 3  # column of what was measured


Recorded = tuple[Slots, Slots, NDArray[np.int64], Logged]
"""What a worker asked of the store for a chunk: slots pulled, pushed, their increments, what went to logs."""
Player = Callable[[str, int, int], object]
"""Does what a worker of this id and number asks for its chunk of this number."""


@dataclass
class Load:
    """Measured while workers were played."""

    chunks: int
    seconds: float
    nodes: NDArray[np.float64]
    """float64[nodes, 4]: commands, bytes received, bytes sent, seconds of a processor."""


def measure(folder: Path, rows: int) -> None:
    """Print what two nodes bear of the workers of a job, and how many of them each would bear."""
    chunk = min(CHUNK, rows // 3)
    chunk_s = chunk / EXAMPLES_PER_S
    log = folder / f"speed-{rows}.tsv"
    if not log.exists():
        ctr("synth", "--rows", rows, "--out", log)
    data = hashed(folder, log, BITS)
    with EmbeddedRedis(nodes=2) as servers:
        url = parse_redis_url(servers.url)
        recorded = record(url, data, chunk)
        asked, pushed, _, logged = recorded
        print(
            f"\nload of {WORKERS} workers, chunks of {chunk:,} examples, 2**{BITS} slots, two Redis; "
            f"per example {asked.size / chunk:.2f} pulled, {pushed.size / chunk:.2f} pushed, "
            f"{logged.slots.size / chunk:.2f} to logs"
        )
        with closing(JobBoard(url, lease_s=LEASE_S)) as board:
            board.create("load", b"", shards=1 << 20)
            workers = [board.leases.register(f"host:{number}") for number in range(WORKERS)]
            shards = [claim.shard for claim in map(board.queue.claim, workers) if claim is not None]
            on_board = play(servers, workers, BOARD_CHUNKS, lambda: board_player(url, shards, chunk_s))
        with closing(RedisStore(url, bits=BITS, width=2)):
            parameters = play(servers, workers[:STORE_WORKERS], 1, lambda: store_player(url, recorded))
    print(f"  {'as fast as they go':22} {'commands/s':>11} {'MB/s in':>8} {'MB/s out':>9} {'CPU':>5}", end="")
    print(f" {'CPU ms per chunk':>17}   workers borne")
    for what, load in (("board", on_board), ("parameters", parameters)):
        for number, (commands, received, sent, cpu_s) in enumerate(load.nodes):
            print(
                f"  {what:15} node {number + 1} {commands / load.seconds:11,.0f} "
                f"{received / load.seconds / 1e6:8.1f} {sent / load.seconds / 1e6:9.1f} "
                f"{cpu_s / load.seconds:5.0%} {1e3 * cpu_s / load.chunks:17.3f} "
                f"{chunk_s * load.chunks / max(cpu_s, 1e-9):15,.1f}"
            )
    waiting = WORKERS / min(max(chunk_s / WAITING_ASKS, LEAST_S), MOST_S)
    busy = waiting * on_board.nodes[:, CPU].max() / on_board.chunks
    print(
        f"  a chunk takes {chunk_s:.2f} s, at {EXAMPLES_PER_S:,} examples/s; {WORKERS} workers that wait for "
        f"one ask at most {waiting:,.0f} times/s, {busy:.0%} of the board's processor"
    )


def record(url: RedisUrl, data: Path, chunk: int) -> Recorded:
    """Train three chunks, each as another worker, and note what the last asks for; the model is dropped."""
    pushes: list[Recorded] = []
    store, optimizer = RedisStore(url, bits=BITS, width=2), choose_optimizer({})

    def send(push: PackedPush, only: Bools | None) -> list[int]:
        pushes.append((asked, push.slots, push.increments, push.logged))
        return store.push_packed(push, only)

    filters = {"filters": DEFAULT_FILTERS, "staleness": STALENESS, "filter_updates": optimizer.filter_updates}
    learner = Learner(SAFE_ADDING)
    for number, examples in enumerate(islice(open_source([data], None).batches(chunk), 3)):
        session, local = (
            RedisSessions(store, "recorded", **filters, push=send).begin(number),
            localize(examples),
        )
        pulled = session.pull(local.slots, number, number)
        asked = pulled.slots if pulled.receipt.asked is None else pulled.slots[pulled.receipt.asked]
        state = session.wait(pulled)
        delta = learner.learn(local, state, optimizer, number=number, first_pass=True, peers=WORKERS)
        session.send(session.push(pulled, delta, 0))
        # As others have done by the time that a worker asks again.
        fold(store.pushes.model, range(store.layout.strings.count))
    store.drop()
    return pushes[-1]


@contextmanager
def board_player(url: RedisUrl, shards: list[int], chunk_s: float) -> Iterator[Player]:
    """All that a worker asks of the board, but for a new data shard every 13 chunks."""
    beats = chunk_s * BEATS / LEASE_S  # per chunk
    with closing(JobBoard(url, lease_s=LEASE_S)) as board:

        def ask(worker: str, number: int, chunk: int) -> object:
            if int((chunk + 1) * beats) > int(chunk * beats):
                board.leases.heartbeat(worker, (f"life:{worker}", LIFE))
            if (chunk + 1) % SHARD_CHUNKS == 0:
                board.queue.done(worker, shards[number])
                claim = board.queue.claim(worker)
                assert claim is not None
                shards[number] = claim.shard
            return board.queue.advance(worker, shards[number], chunk + 1, chunk + 1)

        yield ask


@contextmanager
def store_player(url: RedisUrl, recorded: Recorded) -> Iterator[Player]:
    """A worker's pull and push, and all that logs tell: with many workers, they are folded in every chunk."""
    asked, pushed, increments, logged = recorded
    with closing(RedisStore(url, bits=BITS, width=2, join=True)) as store:

        def ask(worker: str, number: int, chunk: int) -> None:
            feed = LogReader(store.pulls.model)
            while not feed.current.all():
                feed.read()
            store.pull_packed(asked, "load", [number])
            token = Token("load", number, chunk)
            folds = np.full(store.layout.pieces.count, -1, np.int64)
            store.push_packed(PackedPush(pushed, increments, token, logged, folds=folds))

        yield ask


def play(servers: EmbeddedRedis, workers: list[str], chunks: int, player: Callable[[], Any]) -> Load:
    """Play so many chunks of each worker, in turns, on a few threads with connections of their own."""
    steps = iter([(worker, w, chunk) for chunk in range(chunks) for w, worker in enumerate(workers)])
    lock = Lock()

    def run(ask: Player) -> None:
        while True:
            with lock:
                step = next(steps, None)
            if step is None:
                return
            ask(*step)

    with ExitStack() as opened, ThreadPoolExecutor(THREADS) as pool:
        players = [opened.enter_context(player()) for _ in range(THREADS)]
        before, began = look(servers), perf_counter()
        list(pool.map(run, players))
        seconds = perf_counter() - began
        return Load(chunks * len(workers), seconds, look(servers) - before)


def look(servers: EmbeddedRedis) -> NDArray[np.float64]:
    """What the servers have done so far, as `Load.nodes`."""
    found = []
    for server in servers.servers:
        with server.connect() as client:
            facts = client.info()
        names = ("total_commands_processed", "total_net_input_bytes", "total_net_output_bytes")
        found.append([*(facts[name] for name in names), facts["used_cpu_user"] + facts["used_cpu_sys"]])
    return np.array(found, np.float64)
