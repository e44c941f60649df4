"""`check_servers`: checks whether the servers behind a URL are safe for a model, and how fast they answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from statistics import median
from time import monotonic, time
from typing import Any, Literal

from redis.exceptions import RedisError

from ctr.ps.servers import OLDEST
from ctr.ps.status.observer import StoreObserver
from ctr.ps.status.status import NodeStatus
from ctr.ps.wire import PATIENCE_S, RedisUrl

Verdict = Literal["ok", "warning", "problem"]
VERDICTS: tuple[Verdict, ...] = ("ok", "warning", "problem")
"""From the best to the worst."""
_MIB = 1 << 20
_LEAST_BACKLOG = 64 * _MIB
"""What a replica may miss without copying everything: one or two seconds of pushes."""
_LEAST_OUTPUT = 256 * _MIB
"""Unread bytes of a client: replies of 16 MiB to several requests, or a burst of changes for a replica."""
_MOST_LAG = 64 * _MIB
_MOST_CLOCK_S = 2.0
_MOST_LATENCY_S = 0.005
_PINGS = 20
_TIMEOUT_S = 3.0


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of a check."""

    check: str
    """The name of the check; the same for all nodes."""
    verdict: Verdict
    value: str
    """The value that was read or measured."""
    remedy: str = ""
    """What to do, unless it is ok."""
    node: str | None = None
    """The address of the node; None for the whole store."""


@dataclass(frozen=True, slots=True)
class _Facts:
    """The facts that one node reports."""

    status: NodeStatus
    info: Mapping[str, Any]
    settings: Mapping[str, str]
    """Empty if CONFIG GET is not allowed."""
    clock_s: float
    """How far its clock is ahead of this machine's."""
    latency_s: float


def check_servers(url: RedisUrl) -> list[Finding]:
    """Check every primary, only by reading. Raises StoreError if no node of the URL answers."""
    store = StoreObserver(url).look()
    findings = []
    if store.cluster_state is not None:
        covered = sum(node.hash_slots or 0 for node in store.nodes)
        whole = store.cluster_state == "ok" and covered == 16_384
        findings.append(
            Finding(
                "cluster",
                "ok" if whole else "problem",
                f"{store.cluster_state}, {covered:,} of 16,384 hash slots are served",
                "" if whole else "bring the nodes back that served the others, or let replicas take over",
            )
        )
    versions = set()
    for node in store.nodes:
        try:
            facts = _ask(url, node)
        except (RedisError, OSError) as error:
            remedy = "start it, or let a replica take over; let this user run INFO, TIME and PING"
            findings.append(Finding("answers", "problem", str(error), remedy, node.address))
            continue
        versions.add(node.version)
        for check in _CHECKS:
            findings += [
                Finding(name, verdict, value, "" if verdict == "ok" else remedy, node.address)
                for name, verdict, value, remedy in check(facts)
            ]
    if len(versions) > 1:
        value = " and ".join(sorted(version or "unknown" for version in versions))
        findings.append(Finding("versions", "warning", value, "run one version on all nodes"))
    return findings


def _ask(url: RedisUrl, node: NodeStatus) -> _Facts:
    host, _, port = node.address.rpartition(":")
    with url.client((host.strip("[]"), int(port)), _TIMEOUT_S, decode_responses=True) as client:
        info = client.info()
        settings: Mapping[str, str] = {}
        with suppress(RedisError):  # managed servers may forbid it
            settings = client.config_get("*")
        times_s = []
        for _ in range(_PINGS):
            began = monotonic()
            client.ping()
            times_s.append(monotonic() - began)
        began = time()
        seconds, micros = client.time()
        clock_s = seconds + micros / 1e6 - (began + time()) / 2
    return _Facts(node, info, settings, clock_s, median(times_s))


_Line = tuple[str, Verdict, str, str]


def _server(facts: _Facts) -> Iterator[_Line]:
    version = facts.status.version or "unknown"
    number = str(facts.info.get("valkey_version", facts.info.get("redis_version", "0.0")))
    old = tuple(int(part) for part in number.split(".")[:2]) < OLDEST
    yield "version", "problem" if old else "ok", version, "use Redis 6.2 or newer, or Valkey"
    replica = facts.status.role == "replica"
    yield "role", "problem" if replica else "ok", facts.status.role, "give the address of its primary"
    if facts.settings:
        yield "settings", "ok", "readable", ""
    else:
        yield "settings", "warning", "CONFIG GET is not allowed", "let this user run CONFIG GET"


def _persistence(facts: _Facts) -> Iterator[_Line]:
    persistence, fsync = facts.status.persistence, facts.settings.get("appendfsync")
    replicated = bool(facts.status.replicas)
    remedy = "set appendonly yes and appendfsync always, or train with --checkpoint"
    if persistence is not None and persistence.startswith("aof"):
        safe = fsync == "always" or (fsync == "everysec" and replicated)
        value = f"append-only file, fsync {fsync or 'unknown'}"
        yield "on disk", "ok" if safe else "warning", value, remedy
    elif persistence == "snapshots":
        yield "on disk", "warning", "snapshots only: a restart goes back to the last one", remedy
    elif replicated:
        value = "nothing: a primary that restarts comes back empty, and empties its replicas"
        yield "on disk", "warning", value, remedy + "; do not restart primaries automatically"
    else:
        yield "on disk", "warning", "nothing: a restart loses the model", remedy
    failed = [name for name in _LAST_WRITES if facts.info.get(name, "ok") != "ok"]
    if failed:
        yield (
            "disk",
            "problem",
            f"{', '.join(failed)}: {facts.info[failed[0]]}",
            "free disk space, see its log",
        )


_LAST_WRITES = ("rdb_last_bgsave_status", "aof_last_bgrewrite_status", "aof_last_write_status")


def _memory(facts: _Facts) -> Iterator[_Line]:
    policy = str(facts.info.get("maxmemory_policy", "unknown"))
    deletes = policy.startswith("allkeys-")
    eviction = f"{policy}: deletes weights when memory is full" if deletes else policy
    yield "eviction", "problem" if deletes else "ok", eviction, "set maxmemory-policy noeviction"
    used, most = int(facts.info.get("used_memory", 0)), int(facts.info.get("maxmemory", 0))
    total = most or int(facts.info.get("total_system_memory", 0))
    free = max(1 - used / total, 0.0) if total else 1.0
    value = f"{used / _MIB:,.0f} MiB used, {free:.0%} of {total / _MIB:,.0f} MiB free"
    full: Verdict = "problem" if free < 0.1 else "warning" if free < 0.25 else "ok"
    yield "memory", full, value, "raise maxmemory, add nodes, or drop models (`ctr ps drop`)"
    limit = f"{most / _MIB:,.0f} MiB" if most else "none: the system may kill the server when memory is full"
    yield "memory limit", "ok" if most else "warning", limit, "set maxmemory below what the machine has"


def _replication(facts: _Facts) -> Iterator[_Line]:
    replicas = facts.status.replicas
    lags = [each.lag_bytes for each in replicas if each.lag_bytes is not None]
    if not replicas:
        yield (
            "replicas",
            "warning",
            "none: if the node is lost, so are its weights",
            "add a replica to each primary",
        )
    elif len(lags) < len(replicas):
        away = next(each for each in replicas if each.lag_bytes is None)
        yield "replicas", "problem", f"{away.address} is {away.state}", "start it, and check its link"
    else:
        value = f"{len(replicas)}, at most {max(lags) / _MIB:,.1f} MiB behind"
        behind = max(lags) > _MOST_LAG
        yield "replicas", "warning" if behind else "ok", value, "give replicas a faster link or disk"
    least = int(facts.settings.get("min-replicas-to-write", 0))
    if least:
        missing = len(lags) < least
        value = f"{least} needed, {len(lags)} there"
        yield "min-replicas-to-write", "problem" if missing else "ok", value, "add replicas, or lower it"
    if replicas and "repl-backlog-size" in facts.settings:
        size = int(facts.settings["repl-backlog-size"])
        small = size < _LEAST_BACKLOG
        remedy = "set repl-backlog-size 256mb: otherwise, replicas that were away copy everything"
        yield "repl-backlog-size", "warning" if small else "ok", f"{size / _MIB:,.0f} MiB", remedy


def _limits(facts: _Facts) -> Iterator[_Line]:
    words = facts.settings.get("client-output-buffer-limit", "").split()
    for kind, hard in zip(words[::4], words[1::4], strict=False):
        if kind == "pubsub" or (kind != "normal" and not facts.status.replicas):
            continue
        name = "normal" if kind == "normal" else "replica"
        small = 0 < int(hard) < _LEAST_OUTPUT
        value = f"{int(hard) / _MIB:,.0f} MiB" if int(hard) else "none"
        remedy = f"set client-output-buffer-limit {name} 0 0 0: longer replies are cut off"
        yield f"output limit, {name}", "problem" if small else "ok", value, remedy
    if not facts.info.get("cluster_enabled"):
        return
    if (timeout := facts.settings.get("cluster-node-timeout")) is not None:
        # A failover takes the timeout and some seconds; requests are repeated for PATIENCE_S only.
        most_s, timeout_s = PATIENCE_S - 10, int(timeout) / 1000
        slow = timeout_s > most_s
        remedy = f"set it to {most_s:g} s at most: requests are repeated for {PATIENCE_S:g} s"
        yield "cluster-node-timeout", "warning" if slow else "ok", f"{timeout_s:g} s", remedy
    if (needed := facts.settings.get("cluster-require-full-coverage")) is not None:
        all_refuse = "yes: all nodes refuse while one is down"
        value = all_refuse if needed == "yes" else "no: the others answer meanwhile"
        yield "cluster-require-full-coverage", "ok", value, ""


def _times(facts: _Facts) -> Iterator[_Line]:
    off = abs(facts.clock_s) > _MOST_CLOCK_S
    remedy = "run NTP on all machines; otherwise `ctr ps status` shows wrong times"
    yield "clock", "warning" if off else "ok", f"{facts.clock_s:+.3f} s from this machine's", remedy
    slow = facts.latency_s > _MOST_LATENCY_S
    remedy = "bring workers and servers into one network"
    yield "latency", "warning" if slow else "ok", f"{facts.latency_s * 1e3:.2f} ms a request", remedy


_CHECKS: tuple[Callable[[_Facts], Iterator[_Line]], ...] = (
    _server,
    _memory,
    _persistence,
    _replication,
    _limits,
    _times,
)
