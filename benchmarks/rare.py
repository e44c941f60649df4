"""Rare clicks: a log shaped like TalkingData's, 0.2% of it clicks, beside peers at the best of small grids.

Peers are chosen by their log loss on the test rows themselves, which flatters them; ours never sees these.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.measure import ctr, run
from features import Batch, RawSource, load_spec

Peer = tuple[str, Sequence[object], Callable[[object], NDArray[np.floating]]]
"""A name, settings, and what predicts the test rows with one of them."""
RATE = 0.002
_START = datetime(2017, 11, 6)
_DAYS = 4
SPEC = """
version: 1
source: {format: delimited}
label: is_attributed
bits: 22
fields:
  - {name: ip, type: category}
  - {name: app, type: category}
  - {name: device, type: category}
  - {name: os, type: category}
  - {name: channel, type: category}
  - {name: hour, column: click_time, type: time, transform: hour}
"""


def write_log(train: Path, test: Path, rows: int, seed: int = 0) -> None:
    """Write so many rows to learn from, and as many after them to test on.

    Most clicks come from few addresses, which click all day long; what is installed depends on app, channel
    and address, whose weights are heavy-tailed, and a little on device, system and hour.
    """
    rng = np.random.default_rng(seed)
    n = 2 * rows
    ip = _heavy(rng, n, 40_000, 0.9)
    app, channel = _heavy(rng, n, 300, 1.1), rng.integers(0, 4, n)
    channel = (app * 7 + channel**2) % 180  # an app is sold in a few channels
    device, system = _heavy(rng, n, 50, 2.5), _heavy(rng, n, 100, 1.2)
    hour = np.arange(n) * 24 * _DAYS // n % 24
    margins = (
        rng.normal(0, 2.5, 300)[app]
        + rng.normal(0, 0.6, 180)[channel]
        + np.where(np.arange(40_000) < 200, -2.5, rng.normal(0, 0.7, 40_000))[ip]
        + rng.normal(0, 0.5, 50)[device]
        + rng.normal(0, 0.3, 100)[system]
        + rng.normal(0, 0.2, 24)[hour]
    )
    clicks = rng.random(n) < 1 / (1 + np.exp(-margins - _intercept(margins)))
    head = "ip,app,device,os,channel,click_time,is_attributed\n"
    for path, first in ((train, 0), (test, rows)):
        with path.open("w") as out:
            out.write(head)
            for i in range(first, first + rows):
                time = _START + timedelta(days=_DAYS * i / n)
                cells = (
                    ip[i],
                    app[i],
                    device[i],
                    system[i],
                    100 + channel[i],
                    f"{time:%F %T}",
                    int(clicks[i]),
                )
                out.write(",".join(map(str, cells)) + "\n")


def _heavy(rng: np.random.Generator, n: int, values: int, power: float) -> NDArray[Any]:
    share = 1 / np.arange(1, values + 1) ** power
    return rng.choice(values, n, p=share / share.sum())


def _intercept(margins: NDArray[Any]) -> float:
    """Where the mean of the probabilities is `RATE`."""
    low, high = -30.0, 10.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if np.mean(1 / (1 + np.exp(-margins - middle))) < RATE else (low, middle)
    return low


def measure(folder: Path, rows: int = 100_000) -> None:
    """Print log loss and calibration of all sides."""
    spec, train, test = folder / "rare.yaml", folder / "rare-train.csv", folder / "rare-test.csv"
    spec.write_text(SPEC)
    write_log(train, test, rows)
    learnt, tested = (next(RawSource(load_spec(spec), [path]).batches(10 * rows)) for path in (train, test))
    labels = tested.labels
    print(f"\nrare clicks: {rows:,} rows, {learnt.labels.mean():.3%} clicks; test {labels.mean():.3%}")
    print(f"{'log loss / calibration':34}{'best setting':>30}")
    found = []
    for name, settings, predict in peers(folder, learnt, tested):
        each = [(_loss(labels, p), p.mean() / labels.mean(), s) for s in settings for p in [predict(s)]]
        loss, calibration, setting = min(each)
        found.append(loss)
        print(f"  {name:22}{loss:.6f} {calibration:7.4f}  {setting}")
    for name, options in (("ctr, defaults", ()), ("ctr --auto", ("--auto",))):
        model = folder / "rare.model"
        ctr("train", "--spec", spec, train, "--model", model, *options)
        evaluated = ctr("evaluate", "--model", model, test)
        loss, calibration = evaluated["logloss"], evaluated["calibration"]
        print(f"  {name:22}{loss:.6f} {calibration:7.4f}  {loss / min(found):.4f} of the best peer")


def peers(folder: Path, learnt: Batch, tested: Batch) -> Iterator[Peer]:
    """VW and scikit-learn."""
    from sklearn.linear_model import LogisticRegression, SGDClassifier

    bits = 22
    used = np.unique(learnt.slots)
    x, other = (batch.to_scipy(bits)[:, used] for batch in (learnt, tested))

    def logistic(c: object) -> NDArray[Any]:
        return LogisticRegression(C=c, max_iter=2_000).fit(x, learnt.labels).predict_proba(other)[:, 1]

    def sgd(alpha: object) -> NDArray[Any]:
        model = SGDClassifier(loss="log_loss", alpha=alpha, random_state=0, max_iter=100)
        return model.fit(x, learnt.labels).predict_proba(other)[:, 1]

    texts = [folder / f"rare-{name}.vw" for name in ("train", "test")]
    for text, batch in zip(texts, (learnt, tested), strict=True):
        _write_vw(text, batch)

    def vw(settings: object) -> NDArray[Any]:
        return _vw(texts[0], texts[1], str(settings).split())

    rates = (0.02, 0.05, 0.1, 0.2, 0.5)
    yield "VW, default learner", [f"--learning_rate {r} --passes {p}" for r in rates for p in (1, 3)], vw
    ftrl = [
        f"--ftrl --ftrl_alpha {a} --ftrl_beta {b}" for a in (0.005, 0.01, 0.02, 0.05, 0.1) for b in (0.1, 1)
    ]
    yield "VW --ftrl", ftrl, vw
    yield "LogisticRegression", [0.03, 0.1, 0.3, 1.0, 3.0], logistic
    yield "SGDClassifier", [1e-6, 3e-6, 1e-5, 3e-5, 1e-4, 1e-3], sgd


def _write_vw(text: Path, batch: Batch) -> None:
    with text.open("w") as out:
        for i, label in enumerate(batch.labels):
            slots = batch.slots[batch.indptr[i] : batch.indptr[i + 1]]
            out.write(f"{1 if label else -1} | {' '.join(str(s) for s in slots if s)}\n")


def _vw(train: Path, test: Path, settings: list[str]) -> NDArray[Any]:
    command = [sys.executable, "-m", "vowpalwabbit", "--quiet", "--data"]
    model, out, cache = (
        train.with_suffix(".model"),
        test.with_suffix(".predicted"),
        train.with_suffix(".cache"),
    )
    cache.unlink(missing_ok=True)
    words = [*settings, "--loss_function", "logistic", "--bit_precision", "22", "--holdout_off"]
    run([*command, str(train), *words, "--cache_file", str(cache), "--final_regressor", str(model)])
    run([*command, str(test), "-t", "-i", str(model), "--link", "logistic", "-p", str(out)])
    return np.loadtxt(out)


def _loss(labels: NDArray[Any], predicted: NDArray[Any]) -> float:
    p = np.clip(predicted.astype(np.float64), 1e-12, 1 - 1e-12)
    return float(-np.mean(np.where(labels == 1, np.log(p), np.log1p(-p))))
