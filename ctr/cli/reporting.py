"""What every command does that runs something: report, and stop cleanly."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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


def _check_json(path: Path | None) -> Path | None:
    if path is not None and str(path) != "-" and not os.access(path.parent, os.W_OK):
        raise typer.BadParameter(f"{path.parent} is not a folder that can be written to.")
    return path


JsonOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Write a summary as JSON here; - is standard output.",
        allow_dash=True,
        dir_okay=False,
        callback=_check_json,
    ),
]


@dataclass(frozen=True, slots=True)
class Report:
    """Tells what a command has done: lines for a person, and a summary for a program, if `--json` asks."""

    json: Path | None

    @property
    def to_stdout(self) -> bool:
        """Whether standard output belongs to the program, so that lines go to standard error."""
        return str(self.json) == "-"

    def __call__(self, lines: list[str], summary: dict[str, Any], *, to_stderr: bool = False) -> None:
        """Print and write; `to_stderr`: lines go there in any case."""
        for line in lines:
            typer.echo(line, err=self.to_stdout or to_stderr)
        if self.json is None:
            return
        import orjson

        text = orjson.dumps(summary, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
        if self.to_stdout:
            sys.stdout.buffer.write(text)
            return
        try:
            if self.json.exists() and not self.json.is_file():  # such as a named pipe
                self.json.write_bytes(text)
                return
            with replace_file(self.json.resolve()) as draft:
                draft.write_bytes(text)
        except OSError as error:
            raise DataError(f"{self.json}: the summary could not be written ({error}).") from error


def peak_memory_mb() -> float:
    """The largest resident set of this process so far, in MiB."""
    # Not getrusage's: that begins with what the process had that started this one.
    match = re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())
    assert match is not None
    return round(int(match[1]) / 1024, 1)


def bad_rows_lines(bad_rows: BadRows, quarantine: Path | None) -> list[str]:
    """What to tell about rows that were skipped; nothing when there were none."""
    if not bad_rows.count:
        return []
    where = f"; they are in {quarantine}" if quarantine else ""
    return [f"skipped {some(bad_rows.count, 'bad row')}{where}", *(f"  {text}" for text in bad_rows.examples)]
