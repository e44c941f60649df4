"""Simulated clusters: the real board and session code on virtual time, beside what `ctr ps plan` predicts."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Size:
    """A job."""

    workers: int
    nodes: int
    bits: int
    chunks: int
    """Of each worker."""
    strings_each: int = 1
    """How many strings of a partition a simulated one stands for."""


SIZES: Sequence[Size] = (
    Size(10, 2, 28, 8),
    Size(50, 10, 30, 8),
    Size(100, 20, 31, 6),
)
"""With as many workers to a node, and strings to a node, as 1,000 workers on 200 nodes with 2**34 slots."""


def measure(sizes: Sequence[Size] = SIZES) -> None:
    """Print planned and simulated examples/s, and counters that may grow with the size."""
    print("\nsimulated clusters beside ctr ps plan")
    print(f"  {'workers x nodes, slots':28} {'planned':>8} {'simulated':>10} {'ratio':>6}", end="")
    print("   conflicts/chunk, tries/claim, connections/worker and node, busy: board's node, others at most")
    for size in sizes:
        ran = run(size)
        assert ran["chunks"] == ran["expected_chunks"]
        assert ran["counted"] == ran["expected"]
        name = f"{size.workers} x {size.nodes}, 2**{size.bits}"
        print(
            f"  {name:28} {ran['planned'] / 1e6:7.1f}M {ran['steady'] / 1e6:9.1f}M "
            f"{ran['steady'] / ran['planned']:6.2f} {ran['conflicts_per_chunk']:12.2f} "
            f"{1 + ran['claims_again']:16.1f} {ran['connections_each']:13.1f} {ran['board_busy']:20.0%} "
            f"{ran['busiest_other']:.0%}   ({ran['real_seconds']:.0f} s)"
        )


def run(size: Size) -> dict[str, Any]:
    """Simulate a job, in a process of its own, whose clocks are virtual."""
    words = [size.workers, size.nodes, size.bits, size.chunks, size.strings_each]
    command = [sys.executable, "-m", "benchmarks.simulation.job", *map(str, words)]
    outcome: dict[str, Any] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return outcome
