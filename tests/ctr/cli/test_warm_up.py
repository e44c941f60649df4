"""What training and serving need, `ctr warm-up` has compiled."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

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


# Python runs it at the start of every process. Numba writes a kernel under another name first.
NOTE_KERNELS = """
import os, sys

def note(event, values):
    place = {"open": 0, "os.rename": 1}.get(event)
    if place is not None and str(values[place]).endswith(".nbc"):
        with open(os.environ["KERNELS"], "a") as file:
            print(values[place], file=file)

sys.addaudithook(note)
"""


def kernels_of(folder: Path, *words: str) -> set[str]:
    """The files of the kernels that this program and its child processes load or compile."""
    noted = folder / "kernels"
    noted.write_text("")
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "KERNELS": str(noted)}
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return set(noted.read_text().splitlines())


@pytest.mark.slow
def test_later_processes_need_no_other_kernels(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(NOTE_KERNELS)
    (tmp_path / "spec.yaml").write_text(SPEC)
    rows = "".join(f"{i % 2},{'abc'[i % 3]},{i % 5}\n" for i in range(300))
    (tmp_path / "rows.csv").write_text("click,site,price\n" + rows)
    warmed = kernels_of(tmp_path, "-m", "ctr", "warm-up", "--spec", "spec.yaml")
    words = ["--spec", "spec.yaml", "rows.csv", "--model", "model"]
    trained = kernels_of(tmp_path, "-m", "ctr", "train", *words)
    served = kernels_of(tmp_path, "-c", SERVE)
    assert len(trained) > 10
    assert len(served) > 5
    assert trained | served <= warmed
