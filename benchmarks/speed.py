"""Training speed beside Vowpal Wabbit's on the same rows, in the same run."""

from __future__ import annotations

from pathlib import Path

from benchmarks import vowpal
from benchmarks.measure import alternate, ctr


def measure(folder: Path, rows: int, rounds: int) -> None:
    """Print examples/s from hashed data and from raw text, and their ratios to VW's."""
    log, text, hashed = (
        folder / f"speed-{rows}.tsv",
        folder / f"speed-{rows}.vw",
        folder / f"speed-{rows}.hashed",
    )
    cache, model = folder / f"speed-{rows}.cache", folder / "speed.model"
    if not log.exists():
        ctr("synth", "--rows", rows, "--out", log)
    vowpal.write_text(log, text)
    ctr("features", "build", "--spec", "criteo", log, "--out", hashed)
    cache.unlink(missing_ok=True)
    vowpal.learn(text, cache)  # writes the cache
    nothing = folder / "nothing.vw"
    nothing.write_text("1 | a\n")
    start_up = min(vowpal.learn(nothing) for _ in range(3))
    ctr("train", hashed, "--model", model)  # compiles the kernels, if this is their first run
    ctr("train", "--spec", "criteo", log, "--model", model)

    peer_cache, ours_hashed, peer_text, ours_raw = alternate(
        rounds,
        lambda: vowpal.learn(text, cache) - start_up,
        lambda: float(ctr("train", hashed, "--model", model, cores=1)["seconds"]),
        lambda: vowpal.learn(text) - start_up,
        lambda: float(ctr("train", "--spec", "criteo", log, "--model", model, cores=2)["seconds"]),
    )
    print(
        f"\nspeed: {rows:,} synthetic rows, median of {rounds} runs in turns, start-up left out on both sides"
    )
    print(f"  {'':34}{'VW --ftrl':>14}{'ctr':>14}{'ratio':>8}  asked")
    for what, peer, ours, asked in (
        ("from hashed data, one core (ex/s)", peer_cache, ours_hashed, 6),
        ("from raw text, two cores (ex/s)", peer_text, ours_raw, 4),
    ):
        print(f"  {what:34}{rows / peer:14,.0f}{rows / ours:14,.0f}{peer / ours:8.2f}  {asked}")
