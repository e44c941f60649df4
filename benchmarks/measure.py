"""Running commands and taking their time, memory and summaries."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

CTR = Path(sys.executable).with_name("ctr")


def ctr(*arguments: object, cores: int | None = None) -> dict[str, Any]:
    """Run a `ctr` command and return its JSON summary, with `wall` and `cpu` seconds added.

    The latter are of all its processes and servers, start-up included.

    `cores` confines the process to that many cores, whatever threads it starts.
    """
    with tempfile.NamedTemporaryFile(suffix=".json") as summary:
        command = [str(CTR), *map(str, arguments), "--json", summary.name]
        before = os.times()
        wall = run(command, cores=cores)
        after = os.times()
        cpu = after.children_user + after.children_system - before.children_user - before.children_system
        return {**json.loads(Path(summary.name).read_bytes()), "wall": wall, "cpu": cpu}


def run(command: Sequence[str], cores: int | None = None) -> float:
    """Run a command, quietly unless it fails, and return its seconds."""
    allowed = sorted(os.sched_getaffinity(0))
    confined = allowed if cores is None else allowed[:cores]
    started = perf_counter()
    finished = subprocess.run(
        command,
        check=False,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        preexec_fn=lambda: os.sched_setaffinity(0, confined),
    )
    if finished.returncode != 0:
        sys.exit(f"{' '.join(command)} failed:\n{finished.stdout.decode()}")
    return perf_counter() - started


def alternate(rounds: int, *sides: Callable[[], float]) -> list[float]:
    """The median seconds of each side, measured in turns so that a noisy moment hits all of them."""
    seconds: list[list[float]] = [[] for _ in sides]
    for _ in range(rounds):
        for taken, side in zip(seconds, sides, strict=True):
            taken.append(side())
    return [median(taken) for taken in seconds]
