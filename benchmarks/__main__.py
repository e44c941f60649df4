"""`python -m benchmarks [startup] [speed] [memory] [accuracy]`: all of them when none is named."""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks import accuracy, memory, speed, startup

KINDS = ("startup", "speed", "memory", "accuracy")


def main() -> None:
    """Measure what was asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("kinds", nargs="*", choices=[*KINDS, []], help="what to measure; default: everything")
    parser.add_argument("--rows", type=int, default=2_000_000, help="rows for speed")
    parser.add_argument("--memory-rows", type=int, default=5_000_000, help="rows for memory")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each side")
    parser.add_argument("--folder", type=Path, default=Path("bench-data"), help="for the data (3 GB)")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="real data for accuracy")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    kinds = options.kinds or KINDS
    if "startup" in kinds:
        startup.measure(options.rounds)
    if "speed" in kinds:
        speed.measure(options.folder, options.rows, options.rounds)
    if "memory" in kinds:
        memory.measure(options.folder, options.memory_rows)
    if "accuracy" in kinds:
        accuracy.measure(options.data, options.folder)


if __name__ == "__main__":
    main()
