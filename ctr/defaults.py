"""What training does unless it is told otherwise, for commands and jobs alike; what filters do is in `ps`."""

SAFE_ADDING = 0.75
"""How far several workers allow for each other's updates."""
STALENESS = 2
"""Chunks that a worker may be ahead of the slowest, with `ssp`."""
STORE = "memory://"
"""Where the parameters are."""
CHECKPOINT_EVERY_S = 60.0
