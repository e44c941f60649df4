"""Write clicks in the columns of TalkingData's challenge as CSV: so many rows, of the day that is given."""

from __future__ import annotations

import csv
import random
import sys
from datetime import datetime, timedelta

ROWS = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
DAY = datetime.fromisoformat(sys.argv[2]) if len(sys.argv) > 2 else datetime(2017, 11, 6)
PEOPLE, FARMS = 20_000, 30
TEXT = "%Y-%m-%d %H:%M:%S"


def main() -> None:
    """Most clicks come from a few addresses that click all day long, and lead to nothing."""
    rng = random.Random(f"{ROWS} {DAY}")
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(["ip", "app", "device", "os", "channel", "click_time", "attributed_time", "is_attributed"])
    for number in range(ROWS):
        time = DAY + timedelta(days=number / ROWS)
        farm = rng.random() < 0.6
        ip = rng.randrange(FARMS) if farm else FARMS + rng.randrange(PEOPLE)
        app, channel = min(int(rng.expovariate(0.05)), 200), 100 + rng.randrange(150)
        installs = rng.random() < (0.002 if farm else 0.15 if app % 7 == 0 else 0.03)
        installed = (time + timedelta(seconds=rng.expovariate(1 / 600))).strftime(TEXT) if installs else ""
        device, system, when = rng.choice([0, 1, 1, 1]), rng.randrange(40), time.strftime(TEXT)
        out.writerow([ip, app, device, system, channel, when, installed, int(installs)])


if __name__ == "__main__":
    main()
