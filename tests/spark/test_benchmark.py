"""The benchmark runs, small: its figures mean nothing at this size."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.spark.clusters import environment, needs_spark

pytestmark = needs_spark


def test_the_benchmark_runs(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks", "spark", "--rows", "2000", "--rounds", "1"]
    done = subprocess.run(
        [*command, "--folder", str(tmp_path)], env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    for what in (
        "features build --engine spark",
        "ctr.spark.transform",
        "ctr.spark.train",
        "ctr.spark.predict",
    ):
        assert what in done.stdout
