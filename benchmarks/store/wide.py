"""Billions of features: 2**28 slots, of which every example brings a new one, beside Vowpal Wabbit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks import vowpal
from benchmarks.measure import ctr
from ctr.features import load_spec
from ctr.ps.servers import EmbeddedRedis

BITS = 28
SEED = 11


def measure(folder: Path, rows: int) -> None:
    """Print examples/s through Redis, what travels, and what it costs the servers: one run of each."""
    log, spec = folder / f"wide-{rows}-{BITS}.tsv", folder / f"wide-{BITS}.yaml"
    hashed, text = (log.with_suffix(suffix) for suffix in (".hashed", ".vw"))
    cache = log.with_suffix(".cache")
    if not log.exists():
        ctr("synth", "--rows", rows, "--seed", SEED, "--out", log)
    spec.write_text(load_spec("criteo").to_yaml().replace("bits: 22", f"bits: {BITS}"))
    if not hashed.exists():
        ctr("features", "build", "--spec", spec, log, "--out", hashed)
    vowpal.write_text(log, text)
    if not cache.exists():
        vowpal.learn(text, cache, bits=BITS)  # writes the cache
    peer = rows / vowpal.learn(text, cache, bits=BITS)
    print(f"\n2**{BITS} slots, {rows:,} synthetic rows, one pass, the last 5% held out")
    print(f"  {'VW --ftrl from its cache, all rows':36} {peer / 1e6:6.3f}M examples/s")
    print(
        f"  {'':36} {'M ex/s':>7} {'x VW':>6} {'moved':>6} {'logged':>7} {'bytes':>6} {'Redis us':>9} "
        f"{'B/slot':>7}  hold-out"
    )
    memory = _train(hashed, folder, [], None)
    _tell("in memory, 1 worker", memory, peer)
    for nodes, workers in ((1, 1), (1, 2), (2, 2)):
        with EmbeddedRedis(nodes=nodes) as servers:
            found = _train(hashed, folder, ["--store", servers.url, "--workers", workers], servers)
        _tell(f"{workers} worker{'s' * (workers > 1)}, {nodes} Redis", found, peer)


def _train(hashed: Path, folder: Path, flags: list[object], servers: EmbeddedRedis | None) -> dict[str, Any]:
    """The summary of a job, with seconds of processors and peak bytes of the servers."""
    found = ctr("train", hashed, "--model", folder / "wide.model", "--holdout-fraction", 0.05, *flags)
    found["servers_s"], found["servers_bytes"] = 0.0, 0
    for server in servers.servers if servers else ():
        with server.connect() as client:
            facts = client.info()
        found["servers_s"] += facts["used_cpu_user"] + facts["used_cpu_sys"]
        found["servers_bytes"] += facts["used_memory_peak"]
    return found


def _tell(what: str, found: dict[str, Any], peer: float) -> None:
    rate, examples, slots = found["examples_per_second"], found["examples"], 1 << BITS
    line = f"  {what:36} {rate / 1e6:7.3f} {rate / peer:6.2f}"
    if found["servers_s"]:
        moved = found["moved"]
        counts = moved["filters"]
        logged = (counts["deferred_small"] + counts["deferred_zero"] + counts["logged_new"]) / examples
        line += (
            f" {moved['keys_per_example']:6.2f} {logged:7.2f} {moved['bytes_per_example']:6.0f} "
            f"{1e6 * found['servers_s'] / examples:9.2f} {found['servers_bytes'] / slots:7.2f}"
        )
    else:
        line += " " * 40
    print(f"{line}  {found['holdout']['logloss']:.5f}")
