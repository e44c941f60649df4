"""`ctr ps`: parameters that live in Redis."""

from __future__ import annotations

import typer

from ctr.cli import dropping, exporting, planning, status

app = typer.Typer(no_args_is_help=True, rich_markup_mode="markdown", help="Look after parameters in Redis.")
app.command("plan")(planning.plan)
app.command("status")(status.status)
app.command("export")(exporting.export)
app.command("drop")(dropping.drop)
