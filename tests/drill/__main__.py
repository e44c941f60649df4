"""Strike training jobs with faults, round after round, and prove that nothing is lost in silence."""

from __future__ import annotations

import argparse
import secrets
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Event
from time import monotonic

from ctr.errors import StoreError
from tests.drill.freezes import freeze_servers
from tests.drill.jobs import Jobs
from tests.drill.rounds import Round, draw_round
from tests.drill.trial import EVENTS, Trial, Verdict
from tests.ps.stepped_clock import find_libfaketime

_MOST_SHOWN = 5  # problems of a round


def main(words: list[str] | None = None) -> int:
    """The exit code: 1 when a round was wrong."""
    asked = _parser().parse_args(words)
    folder = Path(asked.keep or tempfile.mkdtemp(prefix="ctr-drill-"))
    folder.mkdir(parents=True, exist_ok=True)
    print(f"seed {asked.seed}", flush=True)
    verdicts: list[Verdict] = []
    frozen = asked.round is not None or not asked.freezes or _freeze(asked.freezes, asked.seed, folder)
    number, end = asked.round or 1, monotonic() + 60 * asked.minutes
    with Jobs(folder) as jobs, suppress(KeyboardInterrupt):
        while monotonic() < end:
            round_ = draw_round(asked.seed, number)
            print(f"round {number}: {round_}", flush=True)
            if "step clock" in round_.faults and not _can_step_clocks():
                print("    skipped: libfaketime is not installed", flush=True)
            else:
                verdicts.append(_play(round_, jobs, folder / f"round-{number}"))
                if not verdicts[-1].problems and asked.keep is None:
                    shutil.rmtree(folder / f"round-{number}")
            number += 1
            if asked.round is not None:
                break
    wrong = [verdict.round.number for verdict in verdicts if verdict.problems]
    for line in _summary(verdicts):
        print(line)
    for n in wrong:
        print(f"again: make drill SEED={asked.seed} ROUND={n}   its logs: {folder / f'round-{n}'}")
    if frozen and not wrong and asked.keep is None:
        shutil.rmtree(folder, ignore_errors=True)
    return int(bool(wrong) or not frozen)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.drill", description=__doc__)
    parser.add_argument(
        "--minutes", type=_positive(float), default=30.0, help="begin rounds for so long (default: 30)"
    )
    parser.add_argument(
        "--freezes", type=int, default=100, help="of independent servers, before the rounds (default: 100)"
    )
    parser.add_argument("--seed", type=int, default=secrets.randbits(32), help="of all rounds")
    parser.add_argument("--round", type=_positive(int), help="play this round only")
    parser.add_argument("--keep", metavar="DIR", help="for data and logs, which are then kept in any case")
    return parser


def _positive(number: Callable[[str], float]) -> Callable[[str], float]:
    def parse(word: str) -> float:
        value = number(word)
        if not 0 < value < float("inf"):
            raise argparse.ArgumentTypeError(f"{word} is not a positive number")
        return value

    return parse


def _can_step_clocks() -> bool:
    try:
        find_libfaketime()
    except StoreError:
        return False
    return True


def _freeze(count: int, seed: int, folder: Path) -> bool:
    """Freeze servers of their own while clients push, and print the outcome; whether it was right."""
    print(f"{count} freezes of 7 s", flush=True)
    report = freeze_servers(count, str(seed), folder / "freezes", freeze_s=7.0, stop=Event())
    print(f"    {report}", flush=True)
    for problem in report.problems[:_MOST_SHOWN]:
        print(f"    {problem}", flush=True)
    return not report.problems


def _play(round_: Round, jobs: Jobs, folder: Path) -> Verdict:
    """Play a round and print what came of it."""
    shutil.rmtree(folder, ignore_errors=True)
    job = jobs.describe(round_)
    verdict = Trial(round_, job, jobs.compare(round_, job), folder).run()
    print(f"    {verdict}", flush=True)
    for recovery in verdict.recoveries:
        print(f"    {recovery}", flush=True)
    for problem in (*verdict.problems, *verdict.undecided)[:_MOST_SHOWN]:
        print(f"    {problem}", flush=True)
    if verdict.problems and (folder / EVENTS).exists():
        print((folder / EVENTS).read_text(), flush=True)
    return verdict


def _summary(verdicts: list[Verdict]) -> list[str]:
    """A line for each consistency, and one for all."""
    kinds = Counter(verdict.round.consistency for verdict in verdicts)
    wrong = Counter(verdict.round.consistency for verdict in verdicts if verdict.problems)
    refused = sum(verdict.refusal is not None for verdict in verdicts)
    undecided = sum(bool(verdict.undecided) for verdict in verdicts)
    missed = sum(len(verdict.missed) for verdict in verdicts)
    lines = [f"{kind}: {count} rounds, {wrong[kind]} wrong" for kind, count in sorted(kinds.items())]
    return [
        *lines,
        f"{len(verdicts)} rounds, {sum(wrong.values())} wrong, {undecided} undecided, {refused} refused as "
        f"documented; {missed} faults came too late; {sum(verdict.folds for verdict in verdicts)} folds, "
        f"{sum(verdict.checkpoints for verdict in verdicts)} checkpoints",
    ]


if __name__ == "__main__":
    sys.exit(main())
