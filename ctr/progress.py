"""What a running job shows: a bar on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from math import isnan
from time import monotonic
from typing import Any, Protocol

from ctr.jit import COMPILATION, in_bar

_BESIDE_FIGURES = 20
"""Letters of a bar beside what it is of and its figures: the least bar, share, time left, blanks."""
_DISPENSABLE = (" MB/s", " rows")
"""The ends of figures that a narrow terminal does without, the least telling first."""
_FIRST_PLAIN_S, _PLAIN_EVERY_S = 1.0, 5.0


class Report(Protocol):
    """Called by a job with what it has done so far.

    A job that does not know when it ends says NaN for the fraction.
    """

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
    """Progress that nobody sees."""
    return nullcontext(lambda *_, **__: None)


@contextmanager
def progress(what: str, size: int = 0, before: int = 0) -> Iterator[Report]:
    """Show the progress of a job on standard error until the `with` block ends.

    `size`, in bytes, is that of all input, if the job reads it from beginning to end; `before`: so many of
    the rows that it will tell of were done earlier, and say nothing of its speed.
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
        BarColumn(bar_width=None),  # which takes the width that the figures leave
        TextColumn("{task.fields[share]}"),
        TextColumn("{task.fields[facts]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=1.0, facts="", share="  0%")

        def report(rows: int, fraction: float, *others: Any, **named: Any) -> None:
            figures = _figures(rows, before, size * fraction, clock.seconds(rows), *others, **named)
            facts = _fitting(figures, bar.console.width - len(what) - _BESIDE_FIGURES)
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
        own = fraction * max(rows - before, 0) / rows  # as its rows are about equally long
        left = f", {seconds * (1 - fraction) / own:.0f} s left" if own > 0 else ""
        facts = ", ".join(_figures(rows, before, size * fraction, seconds, *others, **named))
        share = "" if isnan(fraction) else f"{fraction:.0%}, "
        sys.stderr.write(f"{what}: {share}{facts}{left}\n")
        sys.stderr.flush()

    yield report


def _fitting(figures: list[str], width: int) -> str:
    """The figures in a line of this width, without the least telling ones where it has no room for all."""
    for which in _DISPENSABLE:
        if len(", ".join(figures)) <= width:
            break
        figures = [each for each in figures if not each.endswith(which)]
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
    """The time of a job, without that of compiling before its first rows: the first rate is not of that.

    Kernels that are compiled later may be so while other threads work.
    """

    def __init__(self, before: int) -> None:
        self._before = before
        self._started, self._compiled = monotonic(), COMPILATION.seconds
        self._idle: float | None = None

    def seconds(self, rows: int) -> float:
        """Since the beginning, when so many rows are done."""
        idle = COMPILATION.seconds - self._compiled if self._idle is None else self._idle
        if rows > self._before:
            self._idle = idle
        return monotonic() - self._started - idle
