"""Defaults and limits of settings, for commands and jobs alike; those of filters are in `ps`."""

MOST_WORKERS = 1_000
"""The most workers of a job: far more than useful, but a typing error must not exhaust the memory."""
SAFE_ADDING = 0.75
"""How far several workers allow for each other's updates."""
MOST_BAD = 0.01
"""The share of bad rows above which a job that skips them fails."""
MOST_POS_WEIGHT = 1e6
"""The largest weight of clicks; beyond it, and below its inverse, all predictions would be certain."""
STALENESS = 2
"""Chunks that a worker may be ahead of the slowest one, with `ssp`."""
STORE = "memory://"
"""The URL of the store that holds the parameters."""
CHECKPOINT_EVERY_S = 60.0
MOST_SECONDS = 86_400.0
"""A day: more than any wait here, and less than what overflows clocks."""
STALL_S = 600.0
"""How long a worker may make no progress."""
