"""`measure`: every case, ctr beside all peers, one process each; the result as a page."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.measure import ctr
from benchmarks.peers import learners
from benchmarks.peers.cases import Case, cases, write_matrices
from benchmarks.peers.limits import ROUNDS, time_per_example
from benchmarks.peers.page import write_page

PACKAGES = ("vowpalwabbit==9.11.*", "scikit-learn", "modern-fm", "river")
ONE_CORE = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1"}


@dataclass
class Result:
    """Of one learner on one case."""

    who: str
    settings: dict[str, Any]
    seconds: float
    """Of learning; for ctr with `--auto`, the search included."""
    logloss: float
    auc: float
    calibration: float
    memory_mb: float
    tried: int = 1
    """Settings, of which this is the best on the test rows."""
    rows: int | None = None
    """If fewer than all were trained on."""


@dataclass
class Compared:
    """A case and its results."""

    case: Case
    rows: int
    tested: int
    columns: int
    results: list[Result] = field(default_factory=list)


def measure(folder: Path, data: Path, rows: int, page: Path, python: Path | None = None) -> None:
    """Run all, print what comes, and write the page.

    `python`: of an environment with the peers; None: one is made of the package index. Those that are not
    installed in it are left out.
    """
    place = folder / "peers"
    place.mkdir(parents=True, exist_ok=True)
    python = python or _environment(place / "venv")
    versions: dict[str, str] = {}
    compared = []
    for case in cases(rows):
        found = _compare(case, data, place / case.name.replace(" ", "-").replace("%", ""), python, versions)
        if found is None:
            print(f"{case.name}: its file is not in {data}; left out")
        else:
            compared.append(found)
    limits = time_per_example(place / "synthetic" / "train.tsv", place)
    for what, ns in limits:
        print(f"  {ns:8.1f} ns  {what}")
    write_page(page, compared, versions, limits, ROUNDS)
    print(f"wrote {page}")


def _environment(venv: Path) -> Path:
    python = venv / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", venv], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
    return python


def _compare(case: Case, data: Path, folder: Path, python: Path, versions: dict[str, str]) -> Compared | None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    made = case.make(data, folder)
    if made is None:
        return None
    spec, train, test = made
    columns = write_matrices(spec, train, test, folder, case.river_rows, shuffle=case.shuffle)
    compared = Compared(case, _rows(folder, "train"), _rows(folder, "test"), columns)
    print(
        f"\n{case.name}: {compared.rows:,} rows, {compared.tested:,} test rows, {columns:,} columns",
        flush=True,
    )
    for result in (*_ours(case, spec, train, test, folder), *_theirs(case, folder, python, versions)):
        compared.results.append(result)
        print(
            f"  {result.who:34}{result.logloss:9.5f} {result.auc:8.5f} {result.calibration:7.3f}"
            f" {result.seconds:9.3f} s {result.memory_mb:7.0f} MiB  {result.settings}",
            flush=True,
        )
    return compared


def _rows(folder: Path, part: str) -> int:
    return len(learners.load(folder, part)[1])


def _ours(case: Case, spec: str, train: Path, test: Path, folder: Path) -> list[Result]:
    hashed, model = folder / "train.hashed", folder / "model"
    shuffled = ["--shuffle", 0] if case.shuffle else []
    ctr("features", "build", "--spec", spec, train, "--out", hashed, *shuffled)
    found = []
    for who, words in (("ctr, defaults", []), ("ctr --auto", ["--auto"])):
        if case.grid == "fast" and words:
            continue
        ctr("train", hashed, "--model", model, cores=1)  # its kernels are compiled then
        # Scales of fields are found in raw rows alone.
        data = ("--spec", spec, train) if words and not case.shuffle else (hashed,)
        done = ctr("train", *data, "--model", model, *words, cores=2 if words else 1)
        evaluated = ctr("evaluate", "--model", model, test)
        settings = json.loads((model / "manifest.json").read_bytes())["optimizer"]
        found.append(
            Result(
                who,
                {key: value for key, value in settings.items() if words and key != "name"},
                done["wall"] if words else done["seconds"],
                *(evaluated[key] for key in ("logloss", "auc", "calibration")),
                memory_mb=done["peak_memory_mb"],
            )
        )
    return found


def _theirs(case: Case, folder: Path, python: Path, versions: dict[str, str]) -> Sequence[Result]:
    found = []
    for peer, (package, *_) in learners.PEERS.items():
        few = peer.startswith("river")
        command = [
            str(python),
            str(Path(learners.__file__)),
            peer,
            str(folder / "few" if few else folder),
            case.grid,
        ]
        core = min(os.sched_getaffinity(0))
        ran = subprocess.run(
            command,
            check=False,
            capture_output=True,
            text=True,
            env={**os.environ, **ONE_CORE},
            preexec_fn=lambda core=core: os.sched_setaffinity(0, [core]),
        )
        if ran.returncode != 0:
            said = ran.stderr.strip().splitlines()
            print(f"  {peer}: left out ({said[-1] if said else 'no message'})")
            continue
        told = json.loads(ran.stdout)
        versions[package] = told["version"]
        best = min(told["trials"], key=lambda trial: trial["logloss"])
        trained = _rows(folder / "few", "train") if few else None
        found.append(
            Result(
                peer,
                best["settings"],
                *(best[key] for key in ("seconds", "logloss", "auc", "calibration")),
                memory_mb=told["memory_mb"],
                tried=len(told["trials"]),
                rows=trained,
            )
        )
    return found
