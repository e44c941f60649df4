"""Parameters in Redis: pulls and pushes per second, memory, and training beside Vowpal Wabbit."""

from __future__ import annotations

import os
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import redis

from benchmarks import vowpal
from benchmarks.measure import alternate, ctr
from ctr.features import load_spec
from ctr.ps import RedisStore, Token, parse_redis_url
from ctr.ps.servers import EmbeddedRedis

BITS = 24
SLOTS = 100_000
WIDE_BITS = 26
OFF = ["--no-cache", "--no-presence", "--defer", 0]
L1 = ["--l1", 1]
WORKERS = 4
TRAINING: dict[str, list[object]] = {"chunk 65,536": ["--chunk", 65_536], "all defaults": []}
FILTERS: tuple[tuple[str, list[object]], ...] = (
    ("none", [*OFF]),
    ("cache", ["--cache", "--no-presence", "--defer", 0]),
    ("presence", ["--no-cache", "--presence", "--defer", 0]),
    ("defer 0.01", ["--no-cache", "--no-presence", "--defer", 0.01]),
    ("defaults (cache, presence, defer 0.01)", []),
    ("none, l1 1", [*OFF, *L1]),
    ("kkt, l1 1", [*OFF, *L1, "--kkt"]),
    ("all four, l1 1", [*L1, "--defer", 0.01, "--kkt"]),
)


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
    cache = folder / f"speed-{rows}.cache"
    if not log.exists():
        ctr("synth", "--rows", rows, "--out", log)
    vowpal.write_text(log, text)
    ctr("features", "build", "--spec", "criteo", log, "--out", hashed)
    cache.unlink(missing_ok=True)
    vowpal.learn(text, cache)  # writes the cache

    def through(nodes: int, *flags: object) -> float:
        return float(train(hashed, folder, nodes, nodes, *flags)["seconds"])

    cases: list[tuple[str, int, list[object]]] = [
        ("1 worker, 1 Redis, filters off, chunk 65,536", 1, [*OFF, "--chunk", 65_536]),
        *((f"1 worker, 1 Redis, {what}", 1, flags) for what, flags in TRAINING.items()),
        *((f"2 workers, 2 Redis, {what}", 2, flags) for what, flags in TRAINING.items()),
    ]
    through(1)  # compiles
    peer, *ours = alternate(
        rounds,
        lambda: vowpal.learn(text, cache),
        *(lambda case=case: through(case[1], *case[2]) for case in cases),
    )
    print(f"\ntraining through Redis, {rows:,} synthetic rows, medians of {rounds} runs in turns")
    print(f"  {'VW --ftrl from its cache':45} {rows / peer:10,.0f} examples/s")
    for (what, *_), mine in zip(cases, ours, strict=True):
        print(f"  {what:45} {rows / mine:10,.0f} examples/s   {peer / mine:5.2f} x VW")
    of_one, of_two = ours[1 : 1 + len(TRAINING)], ours[1 + len(TRAINING) :]
    ratios = (
        f"{one / two:.2f} x 1 and 1 with {what}"
        for what, one, two in zip(TRAINING, of_one, of_two, strict=True)
    )
    print(f"  2 workers and 2 Redis are {', '.join(ratios)} (asked 1.3); {os.cpu_count()} cores")


def measure_filters(folder: Path, rows: int) -> None:
    """Print what each filter moves less, where slots travel one by one."""
    log, hashed, spec = folder / f"speed-{rows}.tsv", folder / f"wide-{rows}.hashed", folder / "wide.yaml"
    if not log.exists():
        ctr("synth", "--rows", rows, "--out", log)
    spec.write_text(load_spec("criteo").to_yaml().replace("bits: 22", f"bits: {WIDE_BITS}"))
    ctr("features", "build", "--spec", spec, log, "--out", hashed)
    print(f"\nfilters: 1 worker, 1 Redis, {rows:,} rows, 2**{WIDE_BITS} slots, chunk 32,768")
    print(f"  {'':28} examples/s  bytes/example  slots pulled  pushed  per example  log loss, last 10%")
    for what, flags in FILTERS:
        found = train(hashed, folder, 1, 1, "--chunk", 32_768, "--holdout-fraction", 0.1, *flags)
        moved, examples = found["moved"], found["examples"]
        counts = moved["filters"]
        print(
            f"  {what:28} {found['examples_per_second']:10,.0f}  {moved['bytes_per_example']:13,.0f}  "
            f"{counts['pulled'] / examples:12.2f}  {counts['pushed'] / examples:6.2f}  {'':11}  "
            f"{found['holdout']['logloss']:.5f}"
        )


def measure_workers(folder: Path, rows: int) -> None:
    """Print the log loss of several workers beside that of one."""
    log, hashed = folder / f"speed-{rows}.tsv", folder / f"speed-{rows}.hashed"
    if not log.exists():
        ctr("synth", "--rows", rows, "--out", log)
    ctr("features", "build", "--spec", "criteo", log, "--out", hashed)
    print(f"\nlog loss on the last 10% of {rows:,} rows, one pass")
    losses = []
    for workers, flags in ((1, []), (WORKERS, ["--consistency", "ssp", "--staleness", 2])):
        found = train(hashed, folder, 1, workers, "--holdout-fraction", 0.1, *flags)
        losses.append(found["holdout"]["logloss"])
        print(f"  {workers} worker{'s' * (workers > 1):1}  {losses[-1]:.5f}")
    print(f"  {losses[1] / losses[0] - 1:+.2%} (asked: within 0.3%)")


def train(hashed: Path, folder: Path, nodes: int, workers: int, *flags: object) -> dict[str, Any]:
    """The summary of a job over embedded servers."""
    store = ["--store", f"embedded://?shards={nodes}", "--workers", workers]
    return ctr("train", hashed, "--model", folder / "speed.model", *store, *flags)
