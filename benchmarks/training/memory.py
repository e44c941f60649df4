"""Peak memory of training from raw text must not grow with the file."""

from __future__ import annotations

from pathlib import Path

from benchmarks.measure import ctr


def measure(folder: Path, rows: int) -> None:
    """Print the peak memory for `rows` and for a tenth of them, raw and hashed, and the ratios."""
    peaks: dict[str, list[float]] = {"raw text": [], "hashed data": [], "hashing": []}
    for n in (rows // 10, rows):
        log, hashed, model = (
            folder / f"memory-{n}.tsv",
            folder / f"memory-{n}.hashed",
            folder / "memory.model",
        )
        if not log.exists():
            ctr("synth", "--rows", n, "--out", log)
        peaks["hashing"].append(
            ctr("features", "build", "--spec", "criteo", log, "--out", hashed)["peak_memory_mb"]
        )
        peaks["raw text"].append(ctr("train", "--spec", "criteo", log, "--model", model)["peak_memory_mb"])
        peaks["hashed data"].append(ctr("train", hashed, "--model", model)["peak_memory_mb"])
    print(f"\npeak memory (MiB)            {rows // 10:>12,}{rows:>12,} rows   ratio  asked at most")
    for what, (small, large) in peaks.items():
        print(f"  {what:26} {small:12,.0f}{large:12,.0f}        {large / small:6.2f}  1.2")
