"""Write a small click log, 100,000 rows of CSV, to standard output: the one that README.md trains on."""

from __future__ import annotations

import csv
import random
import sys
from math import exp, log

ROWS = 100_000
SITES = [f"site{number}.example" for number in range(500)]
DEVICES = {"phone": 0.0, "tablet": -0.4, "desktop": -0.9}


def main() -> None:
    """The same rows every time, on every machine."""
    rng = random.Random(0)
    appeal = {site: rng.gauss(0, 0.8) for site in SITES}
    taste = {(site, device): rng.gauss(0, 0.5) for site in SITES for device in DEVICES}
    popularity = [1 / (rank + 10) for rank in range(len(SITES))]
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(["click", "site", "device", "price"])
    for site in rng.choices(SITES, popularity, k=ROWS):
        device = rng.choice(list(DEVICES))
        price = round(exp(rng.gauss(1, 1.2)), 2) if rng.random() < 0.9 else None
        margin = appeal[site] + DEVICES[device] + taste[site, device] - 1.2
        margin -= 0.3 if price is None else 0.4 * log(price)
        out.writerow([int(rng.random() < 1 / (1 + exp(-margin))), site, device, price])


if __name__ == "__main__":
    main()
