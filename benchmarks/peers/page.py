"""`write_page`: the comparison as a page of the documentation."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.peers.run import Compared, Result

_HEAD = """\
# Benchmarks

`make bench-peers` trains ctr and its peers on the same rows and the same splits, one after the other, in one
run, and writes this page. The peers come from the package index, in an environment of their own. Machines
differ, and are busy at times: read seconds as ratios within a table.

- **The same features.** ctr hashes the rows; peers get the hashed features as sparse matrices (VW as text).
- **Settings.** A peer's are those of its grid that are best *on the test rows*, which is more than any user
  can know. ctr runs at its defaults, and with `--auto`, which sees the training rows alone.
- **Seconds** are those of learning, without start-up, on one core; VW learns from its binary cache. `--auto`
  is the whole command, search included, on two cores.
- **Memory** is the most that the process held, its data included.
- **Calibration** is the mean prediction divided by the click rate: 1 is right.

"""

_LIMITS = """\
## Where the time goes

One pass over the synthetic rows, hashed, on one core; the fastest of {rounds} runs each, in nanoseconds per
example:

"""


def write_page(
    page: Path,
    compared: Sequence[Compared],
    versions: Mapping[str, str],
    limits: Sequence[tuple[str, float]],
    rounds: int,
) -> None:
    """Write the page: a table for each case, where peers were better, and the time per example."""
    told = {"ctr": version("ctr"), "Python": platform.python_version(), "Numba": version("numba"), **versions}
    today = datetime.now(UTC).date().isoformat()
    lines = [
        _HEAD,
        f"Measured on {today} with {', '.join(f'{name} {what}' for name, what in told.items())}.\n\n",
    ]
    for each in compared:
        lines += _case(each)
    if limits:
        lines += [_LIMITS.format(rounds=rounds), "| | ns |\n|---|---|\n"]
        lines += [
            f"| {'&nbsp;&nbsp;' if what.startswith(' ') else ''}{what.strip()} | {ns:,.0f} |\n"
            for what, ns in limits
        ]
    page.write_text("".join(lines).rstrip() + "\n")


def _case(compared: Compared) -> list[str]:
    lines = [
        f"## {compared.case.name}\n\n{compared.case.about} {compared.rows:,} rows to train on, "
        f"{compared.tested:,} to test on, {compared.columns:,} features.\n\n",
        "| | log loss | AUC | calibration | seconds | MiB | settings |\n|---|---|---|---|---|---|---|\n",
    ]
    best = min(each.logloss for each in compared.results)
    for each in sorted(compared.results, key=lambda each: each.logloss):
        loss = f"**{each.logloss:.5f}**" if each.logloss == best else f"{each.logloss:.5f}"
        lines.append(
            f"| {each.who} | {loss} | {each.auc:.5f} | {each.calibration:.3f} | {each.seconds:.2f} | "
            f"{each.memory_mb:,.0f} | {_settings(each)} |\n"
        )
    return [*lines, "\n", *_verdict(compared)]


def _settings(result: Result) -> str:
    told = ", ".join(f"{name} {_short(value)}" for name, value in result.settings.items()) or "defaults"
    if result.tried > 1:
        told += f" (best of {result.tried})"
    return told if result.rows is None else f"{told}, on {result.rows:,} rows"


def _short(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _verdict(compared: Compared) -> list[str]:
    """What peers do better: of the most accurate ctr, and of its fastest."""
    ours = [each for each in compared.results if each.who.startswith("ctr")]
    theirs = [each for each in compared.results if not each.who.startswith("ctr")]
    if not ours or not theirs:
        return []
    mine, fast = min(ours, key=lambda each: each.logloss), min(ours, key=lambda each: each.seconds)
    better = [
        f"{each.who} ({each.logloss / mine.logloss - 1:+.2%})"
        for each in theirs
        if each.logloss < mine.logloss
    ]
    faster = [
        f"{each.who} ({fast.seconds / each.seconds:.1f} times as fast)"
        for each in theirs
        if each.rows is None and each.seconds < fast.seconds
    ]
    return [
        f"Lower log loss than {mine.who}: {', '.join(better) or 'none'}. "
        f"Faster than {fast.who}: {', '.join(faster) or 'none'}.\n\n"
    ]
