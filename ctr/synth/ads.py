"""`ad_rows`: impressions of advertisements on sites, whose clicks depend on site, device and price."""

from __future__ import annotations

import random
from collections.abc import Iterator
from math import exp, log

AD_COLUMNS = ("click", "site", "device", "price")
_SITES = [f"site{number}.example" for number in range(500)]
_DEVICES = {"phone": 0.0, "tablet": -0.4, "desktop": -0.9}


def ad_rows(rows: int, day: int = 0) -> Iterator[tuple[int, str, str, float | None]]:
    """So many rows of `AD_COLUMNS`: the same ones every time, on every machine; on another day, others."""
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
