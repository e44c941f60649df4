"""Small synthetic data as rows: `ad_rows`, `install_rows` and `sparse_rows`."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import datetime, timedelta
from math import exp, log
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from scipy import sparse


AD_COLUMNS = ("click", "site", "device", "price")
_SITES = [f"site{number}.example" for number in range(500)]
_DEVICES = {"phone": 0.0, "tablet": -0.4, "desktop": -0.9}


def ad_rows(rows: int, day: int = 0) -> Iterator[tuple[int, str, str, float | None]]:
    """Rows of `AD_COLUMNS`: the same every time, on every machine; each `day` has other rows."""
    rng = random.Random(0)
    appeal = {site: rng.gauss(0, 0.8) for site in _SITES}
    taste = {(site, device): rng.gauss(0, 0.5) for site in _SITES for device in _DEVICES}
    popularity = [1 / (rank + 10) for rank in range(len(_SITES))]
    if day:
        rng.seed(day)
    for site in rng.choices(_SITES, popularity, k=rows):
        device = rng.choice(list(_DEVICES))
        price = round(exp(rng.gauss(1, 1.2)), 2) if rng.random() < 0.9 else None
        margin = appeal[site] + _DEVICES[device] + taste[site, device] - 1.2
        margin -= 0.3 if price is None else 0.4 * log(price)
        yield int(rng.random() < 1 / (1 + exp(-margin))), site, device, price


INSTALL_COLUMNS = ("ip", "app", "device", "os", "channel", "click_time", "attributed_time", "is_attributed")
FIRST_DAY = datetime(2017, 11, 6)
_PEOPLE, _FARMS = 20_000, 30
_TEXT = "%Y-%m-%d %H:%M:%S"


def install_rows(rows: int, day: datetime = FIRST_DAY) -> Iterator[tuple[int | str, ...]]:
    """Rows of `INSTALL_COLUMNS`, spread over a day: the same every time.

    Most clicks come from a few addresses that click all day long without any installation.
    """
    rng = random.Random(f"{rows} {day}")
    for number in range(rows):
        time = day + timedelta(days=number / rows)
        farm = rng.random() < 0.6
        ip = rng.randrange(_FARMS) if farm else _FARMS + rng.randrange(_PEOPLE)
        app, channel = min(int(rng.expovariate(0.05)), 200), 100 + rng.randrange(150)
        installs = rng.random() < (0.002 if farm else 0.15 if app % 7 == 0 else 0.03)
        installed = (time + timedelta(seconds=rng.expovariate(1 / 600))).strftime(_TEXT) if installs else ""
        device, system, when = rng.choice([0, 1, 1, 1]), rng.randrange(40), time.strftime(_TEXT)
        yield ip, app, device, system, channel, when, installed, int(installs)


_COLUMNS, _ONES = 1 << 14, 20
_LOG_ODDS = -1.4
"""The mean log-odds of the rows."""


def sparse_rows(rows: int) -> tuple[sparse.csr_matrix[Any], NDArray[np.int8]]:
    """float32 CSR of shape `(rows, 16384)` with about 18 ones in each row, and labels of 0 and 1.

    A few columns are in most rows, most columns in few. The result is the same every time.
    """
    from scipy import sparse

    rng = np.random.default_rng(0)
    ranks = (_COLUMNS ** rng.random((rows, _ONES))).astype(np.int64) - 1
    weights = rng.normal(0, 0.5, _COLUMNS)
    matrix = sparse.csr_matrix(
        (np.ones(ranks.size, np.float32), ranks.ravel(), np.arange(rows + 1) * _ONES), (rows, _COLUMNS)
    )
    matrix.sum_duplicates()
    matrix.data[:] = 1
    margins = np.asarray(matrix.dot(weights), np.float64)
    margins += _LOG_ODDS - margins.mean()
    return matrix, (rng.random(rows) < 1 / (1 + np.exp(-margins))).astype(np.int8)
