"""The progress of a running job: a bar on a terminal, otherwise occasional plain lines."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from math import isnan
from time import monotonic
from typing import Any, Protocol

from ctr.jit import COMPILATION, in_bar

_OTHER_WIDTH = 20
"""Characters beside a bar's title and figures: the shortest bar, share, remaining time and blanks."""
_DISPENSABLE = (" MB/s", " rows")
"""The units of figures that are omitted on a narrow terminal, the least important first."""
_FIRST_PLAIN_S, _PLAIN_EVERY_S = 1.0, 5.0


class Report(Protocol):
    """Called by a job with its progress; the fraction is NaN if the job does not know when it ends."""

    def __call__(
        self,
        rows: int,
        fraction: float,
        logloss: float | None = None,
        later_pass: bool = False,
        iteration: int | None = None,
        objective: float | None = None,
    ) -> None: ...


def silent(_what: str) -> AbstractContextManager[Report]:
    """Show no progress."""
    return nullcontext(lambda *_, **__: None)


@contextmanager
def progress(what: str, size: int = 0, before: int = 0) -> Iterator[Report]:
    """Show the progress of a job on standard error until the `with` block ends.

    `size`: the size of all input in bytes, if the job reads it from beginning to end; `before`: the number of
    reported rows that were done earlier, and do not count for the speed.
    """
    with (_bar if sys.stderr.isatty() else _lines)(what, size, before) as report:
        yield report


@contextmanager
def _bar(what: str, size: int, before: int) -> Iterator[Report]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    clock = _Clock(before)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),  # takes the remaining width
        TextColumn("{task.fields[share]}"),
        TextColumn("{task.fields[facts]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=1.0, facts="", share="  0%")

        def report(rows: int, fraction: float, *others: Any, **named: Any) -> None:
            figures = _figures(rows, before, size * fraction, clock.seconds(rows), *others, **named)
            facts = _fitting(figures, bar.console.width - len(what) - _OTHER_WIDTH)
            if isnan(fraction):
                bar.update(task, total=None, facts=facts, share="")
            else:
                bar.update(task, completed=fraction, facts=facts, share=f"{fraction:4.0%}")

        with in_bar(lambda text: bar.update(task, facts=text)):
            yield report


@contextmanager
def _lines(what: str, size: int, before: int) -> Iterator[Report]:
    clock, due = _Clock(before), _FIRST_PLAIN_S

    def report(rows: int, fraction: float, *others: Any, **named: Any) -> None:
        nonlocal due
        seconds = clock.seconds(rows)
        if seconds < due or not rows:
            return
        due = seconds + _PLAIN_EVERY_S
        done = fraction * max(rows - before, 0) / rows  # by this job, if rows are about equally long
        remaining = f", {seconds * (1 - fraction) / done:.0f} s left" if done > 0 else ""
        facts = ", ".join(_figures(rows, before, size * fraction, seconds, *others, **named))
        share = "" if isnan(fraction) else f"{fraction:.0%}, "
        sys.stderr.write(f"{what}: {share}{facts}{remaining}\n")
        sys.stderr.flush()

    yield report


def _fitting(figures: list[str], width: int) -> str:
    """The figures in a line of this width, which omits the least important ones if it is too narrow."""
    for unit in _DISPENSABLE:
        if len(", ".join(figures)) <= width:
            break
        figures = [figure for figure in figures if not figure.endswith(unit)]
    return ", ".join(figures)


def _figures(
    rows: int,
    before: int,
    read: float,
    seconds: float,
    logloss: float | None = None,
    later_pass: bool = False,
    iteration: int | None = None,
    objective: float | None = None,
) -> list[str]:
    seconds = max(seconds, 1e-9)
    figures = [f"{rows:,} rows"]
    if iteration is not None:
        figures = [f"iteration {iteration:,}", f"objective {objective:,.2f}"]
    figures.append(f"{max(rows - before, 0) / seconds:,.0f} rows/s")
    if read > 0:
        figures.append(f"{read / seconds / 1e6:,.0f} MB/s")
    if logloss is not None and not isnan(logloss):
        figures.append(f"{'training loss' if later_pass else 'log loss'} {logloss:.5f}")
    return figures


class _Clock:
    """The time of a job without compilation before its first rows, which would distort the first rates.

    Later compilation counts, as other threads may work meanwhile. If the first report is of no rows, such as
    when workers have just started, the time counts from then.
    """

    def __init__(self, before: int) -> None:
        self._before = before
        self._started, self._compiled = monotonic(), COMPILATION.seconds
        self._idle: float | None = None
        self._is_first = True

    def seconds(self, rows: int) -> float:
        """The seconds so far, when `rows` rows are done."""
        if self._is_first and rows <= self._before:
            self._started, self._compiled = monotonic(), COMPILATION.seconds
        self._is_first = False
        idle = COMPILATION.seconds - self._compiled if self._idle is None else self._idle
        if rows > self._before:
            self._idle = idle
        return monotonic() - self._started - idle
