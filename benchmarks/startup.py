"""How long the command line takes to answer."""

from __future__ import annotations

from benchmarks.measure import CTR, alternate, run


def measure(rounds: int) -> None:
    """Print the median seconds of `ctr --help` and of `ctr train --help`."""
    top, train = alternate(
        rounds, lambda: run([str(CTR), "--help"]), lambda: run([str(CTR), "train", "--help"])
    )
    print(f"\nstart-up: ctr --help {top:.2f} s, ctr train --help {train:.2f} s (asked: under 0.5 s)")
