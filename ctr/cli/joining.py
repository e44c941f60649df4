"""`ctr join`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ctr.cli.reporting import Report, stopping
from ctr.errors import SettingError

if TYPE_CHECKING:
    from ctr.stream import Gap, JoinSettings, StreamJoined

_BAD = {
    "no event": "{} lines left out: no events of a log",
    "repeated": "{} rows left out: repeated",
    "label's column": "{} rows left out: they have the label's column; give another name with --label",
    "clock": "{} rows came from servers whose clock is not that of Redis, or late: more than --grace apart",
}


def join(
    report: Report,
    log: Annotated[
        str,
        typer.Argument(
            metavar="LOG",
            help="The folder of `ctr serve --feedback-log`, or its URL: `redis://…?stream=NAME`.",
        ),
    ],
    out: Annotated[
        str,
        typer.Option(
            metavar="DIR|URL",
            help="Folder for the rows, as JSON lines; or a stream: `redis://…?stream=NAME`.",
        ),
    ],
    window: Annotated[
        str,
        typer.Option(metavar="TIME", help="A click counts for so long after its row was served: 30m, 1h."),
    ] = "30m",
    label: Annotated[
        str, typer.Option(metavar="NAME", help="The column that says whether it was clicked.")
    ] = "click",
    grace: Annotated[
        str,
        typer.Option(
            metavar="TIME",
            help="How far clocks of servers may differ, and how long an event may take to the log.",
        ),
    ] = "10s",
    follow: Annotated[
        bool, typer.Option("--follow", help="Streams: go on until Ctrl-C or SIGTERM.", show_default=False)
    ] = False,
    late: Annotated[
        Literal["wait", "importance"] | None,
        typer.Option(
            help="Streams: write a row when its window has ended; or at once as not clicked, and again as "
            "clicked when a click comes, for training to weight them.",
            show_default="importance with --follow, else wait",
        ),
    ] = None,
    chunk: Annotated[
        int | None,
        typer.Option(min=1, metavar="ROWS", help="Streams: rows in a chunk.", show_default="4096"),
    ] = None,
    chunk_time: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Streams: a chunk waits no longer for rows.", show_default="0.5s"),
    ] = None,
) -> None:
    """Make training data of rows that were served and clicks that came back.

    A row has the columns of its request, and the label 1 if it was clicked within the window, else 0. A run
    adds those whose window has ended since the last one, in the order of time, as one more file: each row is
    there once, whatever is interrupted. Clicks that tell nothing are counted: repeated, too late, before
    their row, for rows that were not kept. Files of the log that were joined completely may be removed.

    From a stream of events in Redis to a stream of examples, `--follow` joins events as they come, and prints
    how far it is every 10 s. It goes on where the last run ended, however that ended.

    Examples:

    - `ctr serve --model model --feedback-log log --log-impressions 100%`
    - `ctr join log --out joined --window 30m`
    - `ctr train joined --spec model --warm-start model --model model`
    - `ctr join redis://host:6379/0?stream=served --out redis://host:6379/0?stream=joined --follow`
    """
    from ctr.settings import seconds
    from ctr.stream import JoinSettings, is_stream
    from ctr.stream import join as run

    try:
        window_s, grace_s, chunk_s = seconds(window), seconds(grace), seconds(chunk_time or 0.5)
    except ValueError as error:
        raise SettingError(f"--window, --grace and --chunk-time: {error}") from None
    if is_stream(log) != is_stream(out):
        raise SettingError("a folder is joined to a folder, and a stream to a stream: change LOG or --out.")
    if is_stream(log):
        settings = JoinSettings(
            window_s=window_s,
            late=late or ("importance" if follow else "wait"),
            label=label,
            grace_s=grace_s,
            chunk_rows=chunk or 4_096,
            chunk_s=chunk_s,
        )
        _join_stream(report, log, out, settings, follow=follow)
        return
    if follow or late or chunk or chunk_time:
        raise SettingError("--follow, --late, --chunk and --chunk-time are for streams in Redis.")
    with stopping("The next run finishes what this one began."):
        joined = run(Path(log), Path(out), window_s=window_s, label=label, grace_s=grace_s)
    lines = [f"joined {joined.rows:,} rows, {joined.clicked:,} of them clicked"]
    if joined.file is not None:
        lines[0] += f", in {joined.file}"
    if joined.late_rows:
        lines.append(f"{joined.late_rows:,} of them are older than rows that were joined before")
    lines += _dropped(joined.dropped)
    report(lines, {**asdict(joined), "file": None if joined.file is None else str(joined.file)})


def _join_stream(report: Report, log: str, out: str, settings: JoinSettings, *, follow: bool) -> None:
    from ctr.interrupts import stop_requests
    from ctr.stream import join_stream

    def say(line: str) -> None:
        typer.echo(line, err=report.to_stdout)

    def on_gap(gap: Gap) -> None:
        start, end = (
            datetime.fromtimestamp(each / 1e3, UTC).isoformat(" ", "seconds")
            for each in (gap.start_ms, gap.end_ms)
        )
        typer.echo(f"warning: {gap.kind} from {start} to {end} may have been trimmed unread", err=True)

    def on_progress(joined: StreamJoined) -> None:
        say(_progress(joined))

    with stopping("The next run goes on from the last chunk."), stop_requests() as stop:
        joined = join_stream(
            log, out, settings, follow=follow, stop=stop, on_progress=on_progress, on_gap=on_gap
        )
    lines = [_progress(joined), *_dropped(joined.dropped)]
    lines += [_BAD[why].format(f"{count:,}") for why, count in joined.bad.items() if count]
    report(lines, asdict(joined))


def _progress(joined: StreamJoined) -> str:
    line = f"joined {joined.rows:,} rows, {joined.clicked:,} of them clicked, in {joined.chunks:,} chunks"
    line += f"; {joined.behind_s:.1f} s behind, {joined.open_rows:,} rows may still be clicked"
    left_out = joined.dropped.total() + joined.bad.total()
    if left_out:
        line += f"; {left_out:,} events left out"
    return line + ("; waits for training" if joined.is_waiting else "")


def _dropped(dropped: Mapping[str, int]) -> list[str]:
    return [f"{count:,} clicks left out: {why}" for why, count in dropped.items() if count]
