"""Reporting and clean interruption, for all commands."""

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
"""Exit code of a job that was stopped by Ctrl-C or SIGTERM, as in shells."""


@contextmanager
def stopping(kept: str) -> Iterator[None]:
    """Turn Ctrl-C into exit code 130 and a message: the text of the interrupt, or `kept`."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        typer.echo(f"\nStopped. {str(interrupt) or kept}", err=True)
        raise typer.Exit(STOPPED) from None


def warn_of_layout(source: ExampleSource) -> None:
    """Warn if the first rows of raw files do not fit the layout in the spec."""
    from ctr.features import RawSource

    if isinstance(source, RawSource):
        for text in source.layout_warnings():
            typer.echo(f"warning: {text}", err=True)


def _check_json(path: Path | None) -> Path | None:
    if path is not None and str(path) != "-" and not os.access(path.parent, os.W_OK):
        raise typer.BadParameter(f"{path.parent} is not a writable folder.")
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
    """Reports the outcome of a command: lines for a person, and with `--json` a summary for a program."""

    json: Path | None

    @property
    def to_stdout(self) -> bool:
        """Whether the summary goes to standard output, so that lines go to standard error."""
        return str(self.json) == "-"

    def __call__(self, lines: list[str], summary: dict[str, Any], *, to_stderr: bool = False) -> None:
        """Print the lines and write the summary; `to_stderr`: print to standard error in any case."""
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
    # Not that of getrusage, which includes the memory of the parent process.
    match = re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())
    assert match is not None
    return round(int(match[1]) / 1024, 1)


def bad_rows_lines(bad_rows: BadRows, quarantine: Path | None) -> list[str]:
    """Lines about skipped rows, if there were any."""
    if not bad_rows.count:
        return []
    where = f"; they are in {quarantine}" if quarantine else ""
    return [f"skipped {some(bad_rows.count, 'bad row')}{where}", *(f"  {text}" for text in bad_rows.examples)]
