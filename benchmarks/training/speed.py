"""Training speed beside Vowpal Wabbit's on the same rows, and of two workers beside one, each in one run."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from statistics import median

from benchmarks import vowpal
from benchmarks.measure import alternate, ctr


def measure(folder: Path, rows: int, rounds: int) -> None:
    """Print examples/s from hashed data and from raw text, and their ratios to VW's and to two workers'."""
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
    start_up = min(vowpal.learn(nothing) for _ in range(rounds))
    ctr("train", hashed, "--model", model)  # compiles the kernels, if this is their first run
    ctr("train", "--spec", "criteo", log, "--model", model)

    wall: dict[str, list[float]] = {"hashed": [], "raw": []}

    def ours(kind: str, *words: object, cores: int) -> float:
        done = ctr("train", *words, "--model", model, cores=cores)
        wall[kind].append(done["wall"])
        return float(done["seconds"])

    peer_cache, ours_hashed, peer_text, ours_raw = alternate(
        rounds,
        lambda: vowpal.learn(text, cache),
        lambda: ours("hashed", hashed, cores=1),
        lambda: vowpal.learn(text),
        lambda: ours("raw", "--spec", "criteo", log, cores=2),
    )
    print(f"\nspeed: {rows:,} synthetic rows, medians of {rounds} runs in turns")
    print("learning: ctr's own clock; VW's command less its start-up. command: start-up and saving included")
    print(f"  {'examples/s':36}{'VW --ftrl':>12}{'ctr':>12}{'ratio':>8}  asked")
    for what, peer, mine, asked in (
        ("prepared data, one core, learning", peer_cache - start_up, ours_hashed, "6"),
        ("prepared data, one core, command", peer_cache, median(wall["hashed"]), ""),
        ("raw text, two cores, learning", peer_text - start_up, ours_raw, "4"),
        ("raw text, two cores, command", peer_text, median(wall["raw"]), ""),
    ):
        print(f"  {what:36}{rows / peer:12,.0f}{rows / mine:12,.0f}{peer / mine:8.2f}  {asked}")
    measure_workers(log, hashed, model, rows, rounds)


def measure_workers(log: Path, hashed: Path, model: Path, rows: int, rounds: int) -> None:
    """Print examples/s of one worker and of two in memory, both free to use two cores."""
    inputs: dict[str, list[object]] = {"prepared data": [hashed], "raw text": ["--spec", "criteo", log]}
    cases = [(what, workers) for what in inputs for workers in (1, 2)]
    losses: dict[tuple[str, int], float] = {}

    def learn(what: str, workers: int) -> float:
        words = [*inputs[what], "--model", model, "--workers", workers, "--holdout-fraction", 0.1]
        done = ctr("train", *words, cores=2)
        losses[what, workers] = done["holdout"]["logloss"]
        return float(done["seconds"])

    seconds = alternate(rounds, *(partial(learn, *case) for case in cases))
    found = dict(zip(cases, seconds, strict=True))
    learnt = rows - rows // 10
    print(f"\nworkers: two cores, learning, medians of {rounds} runs in turns")
    print(f"  {'examples/s':36}{'one':>12}{'two':>12}{'ratio':>8}  asked  hold-out log loss of two")
    for what, asked in (("prepared data", "1.6"), ("raw text", "1.3")):
        one, two = found[what, 1], found[what, 2]
        loss = losses[what, 2] / losses[what, 1] - 1
        print(
            f"  {what:36}{learnt / one:12,.0f}{learnt / two:12,.0f}{one / two:8.2f}  {asked:5}  {loss:+.3%}"
        )
