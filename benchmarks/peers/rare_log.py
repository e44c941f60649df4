"""A log of rare clicks, shaped like TalkingData's: 0.2% of the rows are positive."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

RATE = 0.002
TEST_SHARE = 4
"""Of 100,000 rows, as many as are learnt from, 200 are positive, give or take 7%: too few to tell how well a
mean prediction fits."""
_START = datetime(2017, 11, 6)
_DAYS = 10
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
    """Write so many rows to learn from, and `TEST_SHARE` times as many after them to test on.

    Most clicks come from few addresses, which click all day long; what is installed depends on app, channel
    and address, whose weights are heavy-tailed, and a little on device, system and hour.
    """
    rng = np.random.default_rng(seed)
    n = (1 + TEST_SHARE) * rows
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
    for path, first, stop in ((train, 0, rows), (test, rows, n)):
        with path.open("w") as out:
            out.write(head)
            for i in range(first, stop):
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
