"""What training does unless it is told otherwise, for commands and jobs alike; what filters do is in `ps`."""

MOST_WORKERS = 1_000
"""Of one job: far more than pay, so that a slip of the finger does not fill the memory."""
SAFE_ADDING = 0.75
"""How far several workers allow for each other's updates."""
MOST_BAD = 0.01
"""The share of bad rows above which a job fails that skips them."""
MOST_POS_WEIGHT = 1e6
"""How many clicks one may count as: beyond, and below its inverse, all predictions are certainties."""
STALENESS = 2
"""Chunks that a worker may be ahead of the slowest, with `ssp`."""
STORE = "memory://"
"""Where the parameters are."""
CHECKPOINT_EVERY_S = 60.0
MOST_SECONDS = 86_400.0
"""A day: more than anything here has to wait for, and less than what clocks overflow at."""
STALL_S = 600.0
"""How long a worker may be without any progress."""
