"""What one process has compiled, no other compiles again: after `ctr warm-up`, and after a first training."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.xdist_group("warm-up")

SPEC = """
version: 1
source: {format: delimited, delimiter: ",", header: true, quote: true}
label: click
bits: 18
fields:
  - {name: site, type: category}
  - {name: price, type: number, transform: log, missing: feature}
"""
SERVE = """
from fastapi.testclient import TestClient
from ctr.api.app import create_app
from ctr.model import load_model

with TestClient(create_app(load_model("model"))) as client:
    while client.get("/readyz").status_code == 503:
        pass
    client.post("/v1/predict", json={"rows": [{"site": "a", "price": 1}]}).raise_for_status()
"""


def python(folder: Path, *words: str) -> None:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(folder / "cache")}
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def compiled(folder: Path) -> dict[str, int]:
    """The files of compiled kernels, and when each was written."""
    files = [*(folder / "cache").rglob("*.nbi"), *(folder / "cache").rglob("*.nbc")]
    return {file.name: file.stat().st_mtime_ns for file in files}


@pytest.mark.parametrize(
    "first",
    [["warm-up", "--spec", "spec.yaml"], ["train", "--spec", "spec.yaml", "rows.csv", "--model", "model"]],
    ids=lambda words: words[0],
)
def test_later_processes_compile_nothing(tmp_path: Path, first: list[str]) -> None:
    (tmp_path / "spec.yaml").write_text(SPEC)
    rows = "".join(f"{i % 2},{'abc'[i % 3]},{i % 5}\n" for i in range(300))
    (tmp_path / "rows.csv").write_text("click,site,price\n" + rows)
    python(tmp_path, "-m", "ctr", *first)
    if first[0] == "train":
        python(tmp_path, "-c", SERVE)
    before = compiled(tmp_path)
    assert len(before) > 20
    python(tmp_path, "-m", "ctr", "train", "--spec", "spec.yaml", "rows.csv", "--model", "model")
    python(tmp_path, "-c", SERVE)
    assert compiled(tmp_path) == before
