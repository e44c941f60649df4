"""What `ctr ps plan` predicts beside what was measured, on this machine."""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.measure import ctr
from benchmarks.store.parameters import train
from benchmarks.store.yardsticks import Yardsticks, measure_yardsticks
from ctr.features import load_spec, open_source
from ctr.jobs.cost_model import Workload, estimate
from ctr.learn import default_chunk

BITS = (22, 28)
CASES = [(workers, nodes) for workers in (1, 2) for nodes in (1, 2)]
SEED = 11
QUIET = 0.1
"""Of the cores: while others have more of them, a case is measured again."""
ATTEMPTS = 3
"""At a case in a round, of which the one counts in which others had least."""


@dataclass(frozen=True, slots=True)
class _Measured:
    """A case, measured once."""

    examples_per_second: float
    yardsticks: Yardsticks
    others: float
    """The share of all cores that somebody else had during the job: it is predicted for what they left."""


def measure(folder: Path, rows: int, rounds: int) -> None:
    """Print predicted and measured examples/s of training, and their ratios; medians of `rounds`.

    The model's costs are those of one machine. Here they are taken to be as much larger as training, workers'
    requests and servers' work take longer on chunks of the same size, which is measured just before and just
    after each case: a shared machine's speed changes within minutes. Cores that others use meanwhile are not
    there for the job, nor for its prediction.
    """
    log = folder / f"plan-{rows}.tsv"
    if not log.exists():
        ctr("synth", "--rows", rows, "--seed", SEED, "--out", log)
    data = {bits: hashed(folder, log, bits) for bits in BITS}
    found = np.unique(np.concatenate([chunk.slots for chunk in open_source([data[BITS[-1]]], None).chunks()]))
    train(data[BITS[0]], folder, 1, max(workers for workers, _ in CASES))  # compiles
    cores = os.cpu_count() or 1
    jobs = {
        (bits, workers, nodes): Workload(
            features=found.size,
            examples=rows,
            workers=workers,
            nodes=nodes,
            bits=bits,
            chunk=default_chunk(workers, lambda: rows, in_memory=False),
            cores=cores,
        )
        for bits in BITS
        for workers, nodes in CASES
    }
    cases: dict[tuple[int, int, int], list[_Measured]] = {case: [] for case in jobs}
    for case in list(jobs) * rounds:
        cases[case].append(_quietest(jobs[case], data[case[0]], folder))
    _print(jobs, cases, rows)


def _quietest(job: Workload, data: Path, folder: Path) -> _Measured:
    """The case as measured while others had hardly any of the cores, or least of some attempts."""
    attempts: list[_Measured] = []
    while not attempts or (attempts[-1].others > QUIET and len(attempts) < ATTEMPTS):
        attempts.append(_measure(job, data, folder))
    return min(attempts, key=lambda attempt: attempt.others)


def _measure(job: Workload, data: Path, folder: Path) -> _Measured:
    with ProcessPoolExecutor(job.workers, mp_context=get_context("spawn")) as pool:
        before = measure_yardsticks(pool, job.workers, job.nodes, data, job.chunk)
        busy_s = _busy_s()
        ran = train(data, folder, job.nodes, job.workers)
        others_s = max(_busy_s() - busy_s - ran["cpu"], 0.0)
        after = measure_yardsticks(pool, job.workers, job.nodes, data, job.chunk)
    assert ran["settings"]["chunk"] == job.chunk
    others = min(others_s / (ran["wall"] * (job.cores or 1)), 0.95)
    return _Measured(ran["examples_per_second"], Yardsticks.between(before, after), others)


def _busy_s() -> float:
    """Seconds of all cores, since the machine was started, in which they worked, or were not there."""
    user, nice, system, _idle, _waiting, *more = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    stolen = more[:3]  # by interrupts, and by other machines; what comes then is of users
    return sum(map(int, (user, nice, system, *stolen))) / os.sysconf("SC_CLK_TCK")


def _print(
    jobs: dict[tuple[int, int, int], Workload], cases: dict[tuple[int, int, int], list[_Measured]], rows: int
) -> None:
    rounds = max(map(len, cases.values()))
    print(f"\nctr ps plan, {rows:,} synthetic rows, medians of {rounds}")
    print(f"  {'':24} {'training':>9} {'requests':>9} {'servers':>9}  waiting  others had")
    for case, some in cases.items():
        all_ = Yardsticks.between(*(each.yardsticks for each in some))
        longer = (all_.longer.training, all_.longer.requests, all_.longer.servers)
        factors = " ".join(f"{each:7.2f} x" for each in longer)
        print(f"  {_name(*case):24} {factors} {all_.queued:8.0%} {max(each.others for each in some):11.0%}")
    print(f"  {'':24} {'predicted':>12} {'measured':>12} examples/s   ratio (asked 0.8 to 1.2)")
    for case, some in cases.items():
        job = jobs[case]
        costs = [each.yardsticks.costs(each.others) for each in some]
        guesses = [estimate(job, each).examples_per_second for each in costs]
        rates = [each.examples_per_second for each in some]
        ratio = median(guess / rate for guess, rate in zip(guesses, rates, strict=True))
        noisy = "   others were at work" * any(each.others > QUIET for each in some)
        print(f"  {_name(*case):24} {median(guesses):12,.0f} {median(rates):12,.0f} {ratio:18.2f}{noisy}")


def _name(bits: int, workers: int, nodes: int) -> str:
    return f"2**{bits}, {workers} worker{'s' * (workers > 1)}, {nodes} Redis"


def hashed(folder: Path, log: Path, bits: int) -> Path:
    """The rows as a data set with so many slots."""
    hashed, spec = log.with_name(f"{log.stem}-{bits}.hashed"), folder / f"plan-{bits}.yaml"
    if not hashed.exists():
        spec.write_text(load_spec("criteo").to_yaml().replace("bits: 22", f"bits: {bits}"))
        ctr("features", "build", "--spec", spec, log, "--out", hashed)
    return hashed
