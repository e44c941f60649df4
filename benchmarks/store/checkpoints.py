"""What checkpoints cost a job whose workers push all the time, so that logs are long when they are folded."""

from __future__ import annotations

from pathlib import Path

from benchmarks.measure import alternate, ctr
from benchmarks.store.plan import hashed

BITS = 27
WORKERS = 4
CHUNK = 1_000
EPOCHS = 4
EVERY = "5s"


def measure(folder: Path, rows: int, rounds: int) -> None:
    """Print examples/s of many small chunks, with and without checkpoints."""
    log = folder / f"checkpoints-{rows}.tsv"
    if not log.exists():
        ctr("synth", "--rows", rows, "--out", log)
    data, taken = hashed(folder, log, BITS), list[int]()

    def train(consistency: str, *flags: object) -> float:
        found = ctr(
            *("train", data, "--model", folder / "checkpoints.model", "--store", "embedded://?shards=1"),
            *("--workers", WORKERS, "--consistency", consistency, "--chunk", CHUNK, "--epochs", EPOCHS),
            *flags,
        )
        taken.append(found["moved"]["checkpoints"])
        return float(found["seconds"])

    every = ["--checkpoint", folder / "checkpoints.checkpoint", "--checkpoint-every", EVERY]
    what = f"{WORKERS} workers, 1 Redis, 2**{BITS} slots, {EPOCHS} passes over {rows:,} rows"
    print(f"\n{what}, chunks of {CHUNK:,}, medians of {rounds}")
    for consistency in ("asp", "ssp"):
        taken.clear()
        without, with_them = (
            rows * EPOCHS / seconds
            for seconds in alternate(
                rounds,
                lambda consistency=consistency: train(consistency),
                lambda consistency=consistency: train(consistency, *every),
            )
        )
        print(
            f"  {consistency}  {without:9,.0f} examples/s, {with_them:9,.0f} with a checkpoint every {EVERY} "
            f"({max(taken)} taken): {with_them / without:.2f} (asked 0.8)"
        )
