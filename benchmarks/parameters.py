"""Parameters in Redis: pulls and pushes per second, memory, and training beside Vowpal Wabbit."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np
import redis

from benchmarks import vowpal
from benchmarks.measure import alternate, ctr
from ps import Token
from ps.embedded import EmbeddedRedis
from ps.redis_nodes import parse_redis_url
from ps.redis_store import RedisStore

BITS = 24
SLOTS = 100_000


def measure_requests(rounds: int) -> None:
    """Print pulls and pushes of random slots per second of one server, and bytes per slot."""
    rng = np.random.default_rng(0)
    with EmbeddedRedis() as server:
        store = RedisStore(parse_redis_url(server.url), bits=BITS, width=2)
        seconds: dict[str, list[float]] = {"pull": [], "push": []}
        for chunk in range(rounds + 1):
            slots = np.sort(rng.choice(1 << BITS, SLOTS, replace=False)).astype(np.uint32)
            delta = np.abs(rng.normal(0, 1, (SLOTS, 2))).astype(np.float32)
            started = perf_counter()
            state = store.pull(slots)
            pulled = perf_counter()
            store.push(slots, delta, Token("bench", 0, chunk), state)
            if chunk:  # the first compiles, and lets the server grow its strings
                seconds["pull"].append(pulled - started)
                seconds["push"].append(perf_counter() - pulled)
        everything = np.arange(1 << BITS, dtype=np.uint32)
        store.push(everything, np.ones((1 << BITS, 2), np.float32), Token("bench", 1, 0))
        with redis.Redis.from_url(server.url) as client:
            used = sum(client.memory_usage(key) for key in client.scan_iter("ctr:*"))
    print(f"\none Redis, {SLOTS:,} random slots of 2**{BITS} at a time, client included, median of {rounds}")
    for what, asked in (("pull", 2.0), ("push", 1.2)):
        print(f"  {what}  {SLOTS / median(seconds[what]) / 1e6:5.2f}M weights/s   asked {asked}")
    print(f"  {used / (1 << BITS):.2f} bytes per slot, all touched   asked at most 8.5")


def measure_training(folder: Path, rows: int, rounds: int) -> None:
    """Print examples/s of training through Redis beside VW from its cache, in the same run."""
    log, text, hashed = (folder / f"speed-{rows}{suffix}" for suffix in (".tsv", ".vw", ".hashed"))
    cache, model = folder / f"speed-{rows}.cache", folder / "speed.model"
    if not log.exists():
        ctr("synth", "--rows", rows, "--out", log)
    vowpal.write_text(log, text)
    ctr("features", "build", "--spec", "criteo", log, "--out", hashed)
    cache.unlink(missing_ok=True)
    vowpal.learn(text, cache)  # writes the cache

    def through(shards: int, workers: int, chunk: int) -> float:
        flags = ["--store", f"embedded://?shards={shards}", "--workers", workers, "--chunk", chunk]
        return float(ctr("train", hashed, "--model", model, *flags)["seconds"])

    cases = [(1, 1, 65_536), (1, 1, 262_144), (2, 2, 131_072)]
    through(*cases[0])  # compiles
    peer, *ours = alternate(
        rounds, lambda: vowpal.learn(text, cache), *(lambda case=case: through(*case) for case in cases)
    )
    print(f"\ntraining through Redis, {rows:,} synthetic rows, medians of {rounds} runs in turns")
    print(f"  VW --ftrl from its cache           {rows / peer:12,.0f} examples/s")
    for (shards, workers, chunk), mine in zip(cases, ours, strict=True):
        what = f"{workers} worker, {shards} Redis, chunk {chunk:,}"
        print(f"  {what:34} {rows / mine:12,.0f} examples/s   ratio {peer / mine:.2f}")
