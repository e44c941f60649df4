"""`ctr join`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from ctr.cli.reporting import Report, stopping
from ctr.errors import SettingError


def join(
    report: Report,
    log: Annotated[Path, typer.Argument(metavar="LOG", help="The folder of `ctr serve --feedback-log`.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the rows, as JSON lines.")],
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
            help="How far clocks of servers may differ, and how long a line may take to the disk.",
        ),
    ] = "10s",
) -> None:
    """Make training data of rows that were served and clicks that came back.

    A row has the columns of its request, and the label 1 if it was clicked within the window, else 0. A run
    adds those whose window has ended since the last one, in the order of time, as one more file: each row is
    there once, whatever is interrupted. Clicks that tell nothing are counted: repeated, too late, before
    their row, for rows that were not kept. Files of the log that were joined completely may be removed.

    Examples:

    - `ctr serve --model model --feedback-log log --log-impressions 100%`
    - `ctr join log --out joined --window 30m`
    - `ctr train joined --spec model --warm-start model --model model`
    """
    from ctr.settings import seconds
    from ctr.stream import join as run

    try:
        window_s, grace_s = seconds(window), seconds(grace)
    except ValueError as error:
        raise SettingError(f"--window and --grace: {error}") from None
    with stopping("The next run finishes what this one began."):
        joined = run(log, out, window_s=window_s, label=label, grace_s=grace_s)
    lines = [f"joined {joined.rows:,} rows, {joined.clicked:,} of them clicked"]
    if joined.file is not None:
        lines[0] += f", in {joined.file}"
    if joined.late_rows:
        lines.append(f"{joined.late_rows:,} of them are older than rows that were joined before")
    lines += [f"{count:,} clicks left out: {why}" for why, count in joined.dropped.items() if count]
    report(lines, {**asdict(joined), "file": None if joined.file is None else str(joined.file)})
