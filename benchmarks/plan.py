"""What `ctr ps plan` predicts beside what was measured, on this machine."""

from __future__ import annotations

import os
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.measure import ctr
from benchmarks.parameters import train
from ctr.cost_model import Costs, Workload, estimate
from features import load_spec, open_source

BITS = (22, 28)
CASES = [(workers, nodes) for workers in (1, 2) for nodes in (1, 2)]
SEED = 11


def measure(folder: Path, rows: int, rounds: int) -> None:
    """Print predicted and measured examples/s of training, and their ratios; medians of `rounds`.

    The model's costs are those of one machine. In each round they are taken to be as much larger here as
    training in memory takes longer, which no request to Redis has part in.
    """
    log = folder / f"plan-{rows}.tsv"
    if not log.exists():
        ctr("synth", "--rows", rows, "--seed", SEED, "--out", log)
    data = {bits: hashed(folder, log, bits) for bits in BITS}
    found = np.unique(np.concatenate([chunk.slots for chunk in open_source([data[BITS[-1]]], None).chunks()]))
    slower: list[float] = []
    predicted: dict[tuple[int, int, int], list[float]] = {}
    measured: dict[tuple[int, int, int], list[float]] = {}
    ctr("train", data[BITS[0]], "--model", folder / "plan.model")  # compiles
    train(data[BITS[0]], folder, 1, max(workers for workers, _ in CASES))
    for _ in range(rounds):
        in_memory = ctr("train", data[BITS[0]], "--model", folder / "plan.model")
        slower.append(1e6 / in_memory["examples_per_second"] / Costs().train_us)
        for bits in BITS:
            for workers, nodes in CASES:
                ran = train(data[bits], folder, nodes, workers)
                job = Workload(
                    features=found.size,
                    examples=rows,
                    workers=workers,
                    nodes=nodes,
                    bits=bits,
                    chunk=ran["settings"]["chunk"],
                    cores=os.cpu_count(),
                )
                expected = estimate(job, Costs().slower(slower[-1]))
                predicted.setdefault((bits, workers, nodes), []).append(expected.examples_per_second)
                measured.setdefault((bits, workers, nodes), []).append(ran["examples_per_second"])
    print(f"\nctr ps plan, {rows:,} synthetic rows, medians of {rounds}")
    print(f"  costs x {median(slower):.2f}, as in memory")
    print(f"  {'':28} {'predicted':>12} {'measured':>12} examples/s   ratio (asked 0.8 to 1.2)")
    for (bits, workers, nodes), rates in measured.items():
        guesses = predicted[bits, workers, nodes]
        ratio = median(guess / rate for guess, rate in zip(guesses, rates, strict=True))
        what = f"2**{bits}, {workers} worker{'s' * (workers > 1)}, {nodes} Redis"
        print(f"  {what:28} {median(guesses):12,.0f} {median(rates):12,.0f} {ratio:18.2f}")


def hashed(folder: Path, log: Path, bits: int) -> Path:
    """The rows as a data set with so many slots."""
    hashed, spec = log.with_name(f"{log.stem}-{bits}.hashed"), folder / f"plan-{bits}.yaml"
    if not hashed.exists():
        spec.write_text(load_spec("criteo").to_yaml().replace("bits: 22", f"bits: {bits}"))
        ctr("features", "build", "--spec", spec, log, "--out", hashed)
    return hashed
