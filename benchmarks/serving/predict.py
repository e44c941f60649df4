"""Scoring a hashed data set on one core, beside Vowpal Wabbit's scoring from its binary cache."""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks import vowpal
from benchmarks.measure import ctr, run


def measure(folder: Path, rows: int, rounds: int) -> None:
    """Print examples per second of `ctr predict`, of all kinds of files, and of VW."""
    log, hashed, model = (folder / f"predict-{rows}.{kind}" for kind in ("tsv", "hashed", "trained"))
    if not log.exists():
        ctr("synth", "--rows", rows, "--out", log)
    ctr("features", "build", "--spec", "criteo", log, "--out", hashed)
    ctr("train", hashed, "--model", model)

    def scored(suffix: str) -> float:
        out = folder / f"predictions.{suffix}"
        return float(ctr("predict", "--model", model, hashed, "--out", out, cores=1)["seconds"])

    parquet, text = ([scored(kind) for _ in range(rounds + 1)][1:] for kind in ("parquet", "csv"))
    text_of_peer, cache = log.with_suffix(".vw"), log.with_suffix(".cache")
    vowpal.write_text(log, text_of_peer)
    vowpal.learn(text_of_peer, cache)
    nothing = folder / "nothing.vw"
    nothing.write_text("1 | a\n")

    def peer(data: Path, *more: str) -> float:
        command = [sys.executable, "-m", "vowpalwabbit", "--quiet", "--testonly", "--data", str(data), *more]
        command += ["--initial_regressor", str(text_of_peer.with_suffix(".model")), "--link", "logistic"]
        return run(command, cores=1)  # without writing them: VW does that number by number

    start_up = min(peer(nothing) for _ in range(rounds))
    others = min(peer(text_of_peer, "--cache_file", str(cache)) for _ in range(rounds)) - start_up
    print(f"\nscoring hashed data on one core: {rows:,} synthetic rows, 2**22 slots, least of {rounds} runs")
    print(f"  {'':48}{'examples/s':>12}{'ratio':>8}  asked")
    print(f"  {'VW from its cache, net of start-up and output':48}{rows / max(others, 1e-9):12,.0f}")
    for what, seconds in (("ctr predict to Parquet", min(parquet)), ("ctr predict to CSV", min(text))):
        asked = "  5,000,000" if "Parquet" in what else ""
        print(f"  {what:48}{rows / seconds:12,.0f}{others / seconds:8.1f}{asked}")
