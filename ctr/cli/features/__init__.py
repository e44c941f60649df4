"""`ctr features`: from raw rows to a spec, and by it to hashed data sets."""

from __future__ import annotations

import typer

from ctr.cli.features.building import build
from ctr.cli.features.describing import describe
from ctr.cli.features.inspection import check, fit, init, show
from ctr.cli.features.suggesting import suggest

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode="markdown", help="Hash raw logs into data sets, and describe them."
)
for command in (init, check, show, fit, build, describe, suggest):
    app.command()(command)
