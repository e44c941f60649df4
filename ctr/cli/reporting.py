"""What every command does that runs something: report, and stop cleanly."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ctr.cli.tables import some
from ctr.errors import DataError
from ctr.outputs import replace_file

if TYPE_CHECKING:
    from ctr.features import BadRows, ExampleSource

STOPPED = 130
"""Exit code of a job that Ctrl-C or SIGTERM stopped, as shells have it."""


@contextmanager
def stopping(kept: str) -> Iterator[None]:
    """Turn Ctrl-C into a message that says what was kept, and exit code 130.

    An interrupt with a text says that itself.
    """
    try:
        yield
    except KeyboardInterrupt as interrupt:
        typer.echo(f"\nStopped. {str(interrupt) or kept}", err=True)
        raise typer.Exit(STOPPED) from None


def warn_of_layout(source: ExampleSource) -> None:
    """Print what the first rows of raw files show that does not fit the layout in the spec."""
    from ctr.features import RawSource

    if isinstance(source, RawSource):
        for text in source.layout_warnings():
            typer.echo(f"warning: {text}", err=True)


def report(lines: list[str], summary: dict[str, Any], json: Path | None, *, to_stderr: bool = False) -> None:
    """Print `lines` for a person and write `summary` for a program.

    With `--json -` standard output belongs to the program, so the lines go to standard error; `to_stderr`: in
    any case.
    """
    to_stdout = json is not None and str(json) == "-"
    for line in lines:
        typer.echo(line, err=to_stdout or to_stderr)
    if json is None:
        return
    import orjson

    text = orjson.dumps(summary, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    if to_stdout:
        sys.stdout.buffer.write(text)
        return
    try:
        if json.exists() and not json.is_file():  # such as a named pipe
            json.write_bytes(text)
            return
        with replace_file(json.resolve()) as draft:
            draft.write_bytes(text)
    except OSError as error:
        raise DataError(f"{json}: the summary could not be written ({error}).") from error


def peak_memory_mb() -> float:
    """The largest resident set of this process so far, in MiB."""
    # Not getrusage's: that begins with what the process had that started this one.
    found = re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return round(int(found[1]) / 1024, 1)


def bad_rows_lines(bad_rows: BadRows, quarantine: Path | None) -> list[str]:
    """What to tell about rows that were skipped; nothing when there were none."""
    if not bad_rows.count:
        return []
    where = f"; they are in {quarantine}" if quarantine else ""
    return [f"skipped {some(bad_rows.count, 'bad row')}{where}", *(f"  {text}" for text in bad_rows.examples)]
