"""`ctr join`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ctr.cli.reporting import Report, stopping

if TYPE_CHECKING:
    from ctr.settings import JoinJob
    from ctr.stream import Gap, JoinResult, StreamJoinResult

_BAD = {
    "no event": "{} lines left out: not events of a log",
    "repeated": "{} rows left out: repeated",
    "label's column": "{} rows left out: they have the label's column; give another name with --label",
    "clicked early": "{} rows left out: clicked before they were served: clocks are over --grace apart",
    "clicked ahead": "{} rows left out: clicked at a time that is still to come: a server's clock is ahead",
    "clock": "{} rows arrived late, or from servers with another clock than Redis: more than --grace apart",
}


def join(job: JoinJob, report: Report) -> None:
    """Make training data from served rows and the clicks on them.

    A row has the columns of its request, and the label 1 if it was clicked within the window, else 0. Each
    run adds a file with the rows whose window has ended since the last run, in time order. Each row is there
    once, even after interruptions. Dropped clicks are counted: repeated, too late, or for rows that were not
    stored. Files of the log that were joined completely may be removed.

    From a stream of events in Redis to a stream of examples, `--follow` joins events as they arrive, and
    prints its progress every 10 s. It continues where the last run ended, however that ended.

    Examples:

    - `ctr serve --model model --feedback-log log --log-impressions 100%`
    - `ctr join log --out joined --window 30m`
    - `ctr train joined --spec model --warm-start model --model model`
    - `ctr join redis://host:6379/0?stream=served --out redis://host:6379/0?stream=joined --follow`
    """
    from ctr.stream import join as run

    if job.is_stream:
        _join_stream(job, report)
        return
    with stopping("The next run finishes this one."):
        joined = run(Path(job.log), Path(job.out), job.join_settings)
    lines = [f"joined {joined.rows:,} rows, {joined.clicked:,} of them clicked"]
    if joined.file is not None:
        lines[0] += f", in {joined.file}"
    if joined.open_rows:
        lines.append(f"{joined.open_rows:,} rows wait until their window has ended")
    if joined.late_rows:
        lines.append(f"{joined.late_rows:,} of them are older than rows that were joined before")
    lines += [*_dropped(joined.dropped), *_bad(joined.bad)]
    report(lines, {**_summary(joined), "file": None if joined.file is None else str(joined.file)})


def _join_stream(job: JoinJob, report: Report) -> None:
    from ctr.interrupts import stop_requests
    from ctr.ps import parse_redis_url
    from ctr.stream import join_stream

    def on_gap(gap: Gap) -> None:
        start, end = (
            datetime.fromtimestamp(time_ms / 1e3, UTC).isoformat(" ", "seconds")
            for time_ms in (gap.start_ms, gap.end_ms)
        )
        typer.echo(f"warning: {gap.kind} from {start} to {end} may have been trimmed unread", err=True)

    def on_empty() -> None:
        typer.echo(f"waiting for the first events of {parse_redis_url(job.log).public}", err=True)

    printed = set[str]()

    def on_progress(joined: StreamJoinResult) -> None:
        typer.echo("\n".join(progress_lines(joined, printed)), err=report.to_stdout)

    with stopping("The next run continues after the last chunk."), stop_requests() as stop:
        joined = join_stream(
            job.log,
            job.out,
            job.join_settings,
            follow=job.follow,
            stop=stop,
            on_progress=on_progress,
            on_gap=on_gap,
            on_empty=on_empty,
        )
    report([_progress(joined), *_dropped(joined.dropped), *_bad(joined.bad)], _summary(joined))


def progress_lines(joined: StreamJoinResult, printed: set[str]) -> list[str]:
    """The totals, and why events are left out if that is not in `printed` yet, to which it is added."""
    reasons = [line for line in (*_dropped(joined.dropped), *_bad(joined.bad)) if line not in printed]
    printed.update(reasons)
    return [_progress(joined), *reasons]


def _progress(joined: StreamJoinResult) -> str:
    line = f"joined {joined.rows:,} rows, {joined.clicked:,} of them clicked, in {joined.chunks:,} chunks"
    line += f"; {joined.behind_s:.1f} s behind, {joined.open_rows:,} rows may still be clicked"
    left_out = joined.dropped.total() + joined.bad.total() - joined.bad["clock"]
    if left_out:
        line += f"; {left_out:,} events left out"
    return line + ("; waits for training" if joined.is_waiting else "")


def _summary(joined: JoinResult | StreamJoinResult) -> dict[str, Any]:
    # Not `asdict`, which counts the items of a Counter.
    return {field.name: getattr(joined, field.name) for field in fields(joined)}


def _dropped(dropped: Mapping[str, int]) -> list[str]:
    return [f"{count:,} clicks left out: {why}" for why, count in dropped.items() if count]


def _bad(bad: Mapping[str, int]) -> list[str]:
    return [_BAD[why].format(f"{count:,}") for why, count in bad.items() if count]
