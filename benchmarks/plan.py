"""What `ctr ps plan` predicts beside what was measured, on this machine."""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.measure import ctr
from benchmarks.parameters import train
from benchmarks.yardsticks import YARDSTICK_BITS, Yardsticks, measure_yardsticks
from ctr.cost_model import Workload, estimate
from features import load_spec, open_source

BITS = (22, 28)
CASES = [(workers, nodes) for workers in (1, 2) for nodes in (1, 2)]
SEED = 11


def measure(folder: Path, rows: int, rounds: int) -> None:
    """Print predicted and measured examples/s of training, and their ratios; medians of `rounds`.

    The model's costs are those of one machine. Here they are taken to be as much larger as training, workers'
    requests and servers' work take longer, which is measured just before and just after each case: a shared
    machine's speed changes within minutes.
    """
    log = folder / f"plan-{rows}.tsv"
    if not log.exists():
        ctr("synth", "--rows", rows, "--seed", SEED, "--out", log)
    data = {bits: hashed(folder, log, bits) for bits in {*BITS, *YARDSTICK_BITS.values()}}
    found = np.unique(np.concatenate([chunk.slots for chunk in open_source([data[BITS[-1]]], None).chunks()]))
    train(data[BITS[0]], folder, 1, max(workers for workers, _ in CASES))  # compiles
    cores = os.cpu_count() or 1
    cases = [(bits, *case) for bits in BITS for case in CASES]
    seen: list[Yardsticks] = []
    predicted: dict[tuple[int, int, int], list[float]] = {case: [] for case in cases}
    measured: dict[tuple[int, int, int], list[float]] = {case: [] for case in cases}
    with ProcessPoolExecutor(cores, mp_context=get_context("spawn")) as pool:
        measure_yardsticks(pool, cores, data)  # compiles, and fills caches
        seen.append(measure_yardsticks(pool, cores, data))
        for case in cases * rounds:
            bits, workers, nodes = case
            ran = train(data[bits], folder, nodes, workers)
            seen.append(measure_yardsticks(pool, cores, data))
            job = Workload(
                features=found.size,
                examples=rows,
                workers=workers,
                nodes=nodes,
                bits=bits,
                chunk=ran["settings"]["chunk"],
                cores=cores,
            )
            costs = Yardsticks.between(*seen[-2:]).costs(ranged=estimate(job).ranged)
            expected = estimate(job, costs)
            predicted[case].append(expected.examples_per_second)
            measured[case].append(ran["examples_per_second"])
    print(f"\nctr ps plan, {rows:,} synthetic rows, medians of {rounds}")
    for ranged, how in ((True, "as ranges"), (False, "one by one")):
        for what, name in (("training", "training's"), ("requests", "requests'"), ("servers", "servers'")):
            some = [getattr(each.longer[ranged], what) for each in seen]
            _print_range(f"{name} costs, slots {how}, x", some)
    _print_range("making strings, ns per byte:", [each.strings_ns for each in seen])
    print(f"  {'':28} {'predicted':>12} {'measured':>12} examples/s   ratio (asked 0.8 to 1.2)")
    for (bits, workers, nodes), rates in measured.items():
        guesses = predicted[bits, workers, nodes]
        ratio = median(guess / rate for guess, rate in zip(guesses, rates, strict=True))
        what = f"2**{bits}, {workers} worker{'s' * (workers > 1)}, {nodes} Redis"
        print(f"  {what:28} {median(guesses):12,.0f} {median(rates):12,.0f} {ratio:18.2f}")


def _print_range(what: str, some: list[float]) -> None:
    print(f"  {what} {median(some):.2f} ({min(some):.2f} to {max(some):.2f})")


def hashed(folder: Path, log: Path, bits: int) -> Path:
    """The rows as a data set with so many slots."""
    hashed, spec = log.with_name(f"{log.stem}-{bits}.hashed"), folder / f"plan-{bits}.yaml"
    if not hashed.exists():
        spec.write_text(load_spec("criteo").to_yaml().replace("bits: 22", f"bits: {bits}"))
        ctr("features", "build", "--spec", spec, log, "--out", hashed)
    return hashed
