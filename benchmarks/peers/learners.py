"""The peers, each on the same sparse rows: `python learners.py PEER FOLDER GRID`, in their environment.

FOLDER has `train.npz` and `test.npz`, scipy's CSR matrices, and labels beside them (`.npy`); GRID is `best`,
several settings, or `fast`, one. Prints JSON: what each setting took and came to on the test rows.
Imports nothing of ctr, which is not installed there.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from scipy import sparse

Settings = Mapping[str, Any]
Fit = Callable[[Path, Settings], tuple[float, np.ndarray]]
"""Seconds of training, start-up and reading left out, and float64 probabilities of the test rows."""


def load(folder: Path, part: str) -> tuple[sparse.csr_matrix, np.ndarray]:
    """The rows, and their labels 0 and 1."""
    return sparse.load_npz(folder / f"{part}.npz"), np.load(folder / f"{part}.npy")


def scikit_learn(make: Callable[[Settings], Any]) -> Fit:
    """An estimator with `fit` and `predict_proba`."""

    def fit(folder: Path, settings: Settings) -> tuple[float, np.ndarray]:
        x, y = load(folder, "train")
        model = make(settings)
        begun = perf_counter()
        model.fit(x, y)
        seconds = perf_counter() - begun
        return seconds, np.asarray(model.predict_proba(load(folder, "test")[0])[:, 1], np.float64)

    return fit


def logistic_regression(settings: Settings) -> Any:
    """L-BFGS."""
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(max_iter=1_000, **settings)


def sgd_classifier(settings: Settings) -> Any:
    """Stochastic gradient descent; its probabilities are of the logistic loss."""
    from sklearn.linear_model import SGDClassifier

    return SGDClassifier(loss="log_loss", tol=None, random_state=0, **settings)


def modern_fm(settings: Settings) -> Any:
    """A factorization machine without factors is linear."""
    from modern_fm import FMClassifier

    return FMClassifier(n_factors=0, random_state=0, **settings)


def river(folder: Path, settings: Settings) -> tuple[float, np.ndarray]:
    """One pass, row by row, as dictionaries."""
    from river import linear_model, optim

    def rows(x: sparse.csr_matrix) -> list[dict[int, float]]:
        indices, values = x.indices.tolist(), x.data.tolist()
        return [dict(zip(indices[a:b], values[a:b], strict=True)) for a, b in pairwise(x.indptr.tolist())]

    x, y = load(folder, "train")
    model = linear_model.LogisticRegression(
        optimizer=getattr(optim, settings["optimizer"])(settings["lr"]), l2=0.0
    )
    examples, labels = rows(x), (y > 0).tolist()
    begun = perf_counter()
    for example, label in zip(examples, labels, strict=True):
        model.learn_one(example, label)
    seconds = perf_counter() - begun
    predictions = [model.predict_proba_one(each)[True] for each in rows(load(folder, "test")[0])]
    return seconds, np.array(predictions)


def vowpal_wabbit(folder: Path, settings: Settings) -> tuple[float, np.ndarray]:
    """From its text, which is written once; the time is that of learning from its binary cache."""
    paths = {part: folder / f"{part}.vw" for part in ("train", "test", "none")}
    for part in ("train", "test"):
        if not paths[part].exists():
            write_vw(*load(folder, part), paths[part])
    paths["none"].write_text("1 | 1\n")
    common = [
        "--loss_function",
        "logistic",
        "--bit_precision",
        "24",
        "--hash",
        "all",
        "--quiet",
        "--holdout_off",
    ]
    words = [word for name, value in settings.items() for word in (f"--{name}", str(value)) if word != "True"]
    model, out, cache = folder / "vw.model", folder / "vw.out", folder / "train.cache"
    if not cache.exists():
        vw("--data", paths["train"], "--cache_file", cache, *common)
    start = min(vw("--data", paths["none"], *common) for _ in range(3))
    seconds = vw("--data", paths["train"], "--cache_file", cache, "--final_regressor", model, *common, *words)
    vw(
        "--data",
        paths["test"],
        "--initial_regressor",
        model,
        "--testonly",
        "--link",
        "logistic",
        "-p",
        out,
        "--quiet",
    )
    return max(seconds - start, 1e-3), np.loadtxt(out, usecols=0)


VW = """
import re, runpy, sys
try:
    runpy.run_module("vowpalwabbit", run_name="__main__")
finally:
    with open("/proc/self/status") as status:
        print("VmHWM", re.search(r"VmHWM:\\s*(\\d+)", status.read())[1], file=sys.stderr)
"""
vw_memory_mb = [0.0]


def vw(*words: object) -> float:
    """Seconds of a run; its memory is noted."""
    begun = perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", VW, *map(str, words)], check=True, capture_output=True, text=True
    )
    seconds = perf_counter() - begun
    vw_memory_mb.append(int(done.stderr.split()[-1]) / 1024)
    return seconds


def memory_mb() -> float:
    """The most that this process has held; getrusage would count the one that started it, too."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def write_vw(x: sparse.csr_matrix, y: np.ndarray, out: Path) -> None:
    """Labels -1 and 1, and columns by number; 1 is the constant's."""
    with out.open("w") as file:
        for row, label in enumerate(y):
            found = slice(x.indptr[row], x.indptr[row + 1])
            cells = " ".join(
                f"c{index}" if value == 1 else f"c{index}:{value:.8g}"
                for index, value in zip(x.indices[found].tolist(), x.data[found].tolist(), strict=True)
            )
            file.write(f"{1 if label > 0 else -1} | {cells}\n")


def grid(**values: list[Any]) -> list[dict[str, Any]]:
    """Every combination."""
    found: list[dict[str, Any]] = [{}]
    for name, some in values.items():
        found = [{**each, name: value} for each in found for value in some]
    return found


RATES = [0.003, 0.01, 0.03, 0.1, 0.3]
PEERS: dict[str, tuple[str, Fit, list[dict[str, Any]], dict[str, Any]]] = {
    # name: package, fit, settings to try, settings of the default and one pass
    "VW --ftrl": (
        "vowpalwabbit",
        vowpal_wabbit,
        grid(ftrl=[True], ftrl_alpha=[0.01, 0.02, 0.05, 0.1, 0.2, 0.5], passes=[1, 3, 10]),
        {"ftrl": True, "ftrl_alpha": 0.1, "ftrl_beta": 1},
    ),
    "VW default learner": (
        "vowpalwabbit",
        vowpal_wabbit,
        grid(learning_rate=[0.02, 0.05, 0.1, 0.2, 0.5, 1.0], passes=[1, 3, 10]),
        {},
    ),
    "scikit-learn LogisticRegression": (
        "scikit-learn",
        scikit_learn(logistic_regression),
        grid(C=[0.03, 0.1, 0.3, 1.0, 3.0]),
        {"C": 0.1},
    ),
    "scikit-learn SGDClassifier": (
        "scikit-learn",
        scikit_learn(sgd_classifier),
        grid(alpha=[3e-6, 1e-5, 3e-5, 1e-4, 3e-4], max_iter=[1, 5, 20], average=[False, True]),
        {"max_iter": 1},
    ),
    "modern-fm, no factors": (
        "modern-fm",
        scikit_learn(modern_fm),
        grid(optimizer=["ftrl", "adagrad"], learning_rate=RATES, max_iter=[1, 3]),
        {"optimizer": "ftrl", "learning_rate": 0.1, "max_iter": 1},
    ),
    "river LogisticRegression": (
        "river",
        river,
        grid(optimizer=["SGD", "AdaGrad"], lr=[0.01, 0.03, 0.1]),
        {"optimizer": "SGD", "lr": 0.01},
    ),
}


def judged(predictions: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Log loss, AUC and calibration, as ctr has them."""
    from sklearn.metrics import roc_auc_score

    p = np.clip(predictions, 1e-15, 1 - 1e-15)
    loss = -np.mean(np.where(labels > 0, np.log(p), np.log1p(-p)))
    auc = roc_auc_score(labels > 0, predictions)
    return {"logloss": float(loss), "auc": float(auc), "calibration": float(p.mean() / np.mean(labels > 0))}


def main(peer: str, folder: Path, which: str) -> None:
    """Print what every setting came to, and the most memory that this process or VW's took."""
    package, fit, best, fast = PEERS[peer]
    labels, trials = load(folder, "test")[1], []
    for settings in best if which == "best" else [fast]:
        seconds, predictions = fit(folder, settings)
        trials.append({"settings": settings, "seconds": seconds, **judged(predictions, labels)})
    held = max(vw_memory_mb) if peer.startswith("VW") else memory_mb()
    print(json.dumps({"version": version(package), "memory_mb": held, "trials": trials}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
