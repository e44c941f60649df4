"""`install_rows`: clicks on advertisements of apps, in the columns of TalkingData's challenge."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import datetime, timedelta

INSTALL_COLUMNS = ("ip", "app", "device", "os", "channel", "click_time", "attributed_time", "is_attributed")
FIRST_DAY = datetime(2017, 11, 6)
_PEOPLE, _FARMS = 20_000, 30
_TEXT = "%Y-%m-%d %H:%M:%S"


def install_rows(rows: int, day: datetime = FIRST_DAY) -> Iterator[tuple[int | str, ...]]:
    """So many rows of `INSTALL_COLUMNS`, spread over a day: the same ones every time.

    Most clicks come from a few addresses that click all day long, and lead to no installation.
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
