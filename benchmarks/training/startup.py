"""How long the command line takes to answer, and a small job from its first line to its model."""

from __future__ import annotations

from pathlib import Path

from benchmarks.measure import CTR, alternate, ctr, run

ROWS = 60_000
RUNS = 15


def measure(folder: Path, rounds: int) -> None:
    """Print the seconds of `ctr --help`, of `ctr train --help` and of training on a small log."""
    top, train = alternate(
        rounds, lambda: run([str(CTR), "--help"]), lambda: run([str(CTR), "train", "--help"])
    )
    print(f"\nstart-up: ctr --help {top:.2f} s, ctr train --help {train:.2f} s (asked: under 0.5 s)")
    log, hashed, model = (folder / f"startup.{kind}" for kind in ("tsv", "hashed", "model"))
    ctr("synth", "--rows", ROWS, "--out", log)
    ctr("features", "build", "--spec", "criteo", log, "--out", hashed)
    for what, words in (("hashed", [hashed]), ("raw text", ["--spec", "criteo", log])):
        ctr("train", *words, "--model", model)  # compiles the kernels, if this is their first run
        runs = [ctr("train", *words, "--model", model) for _ in range(RUNS)]
        wall, cpu = (min(done[kind] for done in runs) for kind in ("wall", "cpu"))
        print(
            f"start-up: ctr train on {ROWS:,} rows, {what}: {wall:.2f} s, {cpu:.2f} s of CPU, "
            f"least of {RUNS} runs (asked: 0.6 s)"
        )
