"""The benchmarks run, small: so that they cannot rot. Their figures mean nothing at this size."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_every_benchmark_runs(tmp_path: Path) -> None:
    kinds = ["startup", "speed", "memory", "accuracy", "parameters"]
    options = ["--rows", "3000", "--memory-rows", "20000", "--rounds", "1", "--folder", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", *kinds, *options, "--data", str(tmp_path / "none")],
        check=True,
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    for figure in (
        "start-up",
        "prepared data",
        "raw text",
        "peak memory",
        "left out",
        "weights/s",
        "2 Redis",
    ):
        assert figure in done.stdout


def test_the_demo_runs(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "demo.py"],
        check=True,
        cwd=tmp_path,
        env={"DEMO_ROWS": "20000", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
    )
    for shown in ("best reachable", "base rate", '"predictions"', "exit code 0", "On your own data"):
        assert shown in done.stdout
