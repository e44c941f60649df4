"""`measure_store`: measures how fast a store answers pulls and pushes, with a model of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from secrets import token_hex
from statistics import median
from threading import Event
from time import monotonic

import numpy as np

from ctr.errors import StoreError
from ctr.ps.redis import RedisStore
from ctr.ps.status.check import Finding, Verdict
from ctr.ps.store import Token
from ctr.ps.wire import RedisUrl

SCRATCH = "ctr-check-"
"""The prefix of the names of these models."""
_BITS = 22  # 32 MiB, in 16 partitions
_MANY = 1 << 15  # slots; few enough to be moved one by one
_LONGEST_S = 0.3  # per measurement
_LEAST_PER_S = 100_000
_MOST_S = 0.1
_REPLICAS_S = 2.0


def measure_store(url: RedisUrl, stop: Event) -> list[Finding]:
    """Create a model, pull, push, wait for replicas, and remove the model; takes one or two seconds.

    Setting `stop` ends it early. If the store refuses, the finding says so.
    """
    try:
        store = RedisStore(
            replace(url, model=f"{SCRATCH}{token_hex(4)}"), bits=_BITS, width=2, timeout_s=3.0, patience_s=5.0
        )
        try:
            return _measure(store, stop)
        finally:
            store.drop()
    except StoreError as error:
        return [Finding("pulls and pushes", "problem", str(error), "see above, and docs/redis.md for rights")]


def _measure(store: RedisStore, stop: Event) -> list[Finding]:
    rng = np.random.default_rng(0)
    few = np.arange(0, 1 << _BITS, (1 << _BITS) // store.partitions.count, dtype=np.uint32)
    many = np.sort(rng.choice(1 << _BITS, _MANY, replace=False)).astype(np.uint32)
    numbers = iter(range(1 << 30))

    def push() -> None:
        delta = np.abs(rng.normal(0, 1, (many.size, 2))).astype(np.float32)
        store.push(many, delta, Token("check", 0, next(numbers)))

    push()  # makes the strings
    for slots in (few, many):  # compiles kernels before measuring
        store.pull(slots)
    latency_s = _median_s(lambda: store.pull(few), stop)
    findings = [
        _finding("pull of one slot per partition", f"{latency_s * 1e3:.1f} ms", latency_s > _MOST_S),
        *(
            _finding(f"{name} one by one", f"{rate:,.0f} weights/s", rate < _LEAST_PER_S)
            for name, rate in (
                ("pulls", _MANY / _median_s(lambda: store.pull(many), stop)),
                ("pushes", _MANY / _median_s(push, stop)),
            )
        ),
    ]
    if store.replicas.exist():
        began = monotonic()
        replicated = store.replicas.have_everything(_REPLICAS_S)
        delay = f"have all pushes after {monotonic() - began:.3f} s"
        verdict: Verdict = "ok" if replicated else "problem"
        value = delay if replicated else f"lack pushes after {_REPLICAS_S:g} s"
        findings.append(Finding("replication", verdict, value, "" if replicated else "check their links"))
    return findings


def _finding(name: str, value: str, slow: bool) -> Finding:
    remedy = "is the network or a server busy? see `latency`, and `ctr ps plan` for what is needed"
    return Finding(name, "warning" if slow else "ok", value, remedy if slow else "")


def _median_s(request: Callable[[], object], stop: Event) -> float:
    times_s: list[float] = []
    end = monotonic() + _LONGEST_S
    while not times_s or (monotonic() < end and not stop.is_set()):
        began = monotonic()
        request()
        times_s.append(monotonic() - began)
    return median(times_s)
