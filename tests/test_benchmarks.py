"""The benchmarks run, small: so that they cannot rot. Their figures mean nothing at this size."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks import __main__ as benchmarks
from benchmarks import measure
from ctr.cli.app import main

ROOT = Path(__file__).parents[1]


def run_here(command: Sequence[str], cores: int | None = None) -> float:
    """Runs `ctr` in this process, which spares its start."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    sys.argv, code = list(command), None
    try:
        main()
    except SystemExit as stop:
        code = stop.code
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    assert not code, command
    return 1.0


@pytest.mark.timeout(900)  # some forty jobs, most with workers and servers of their own
def test_every_benchmark_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kinds = ["startup", "speed", "memory", "accuracy", "parameters"]
    options = ["--rows", "1000", "--memory-rows", "1000", "--rounds", "1", "--folder", str(tmp_path)]
    options += ["--data", str(tmp_path / "none")]
    monkeypatch.setattr(sys, "argv", ["benchmarks", *kinds, *options])
    monkeypatch.setattr(measure, "run", run_here)
    benchmarks.main()
    out = capsys.readouterr().out
    for figure in (
        "start-up",
        "prepared data",
        "raw text",
        "peak memory",
        "left out",
        "weights/s",
        "2 Redis",
    ):
        assert figure in out


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
