"""`ctr ps`: parameters that live in Redis."""

from __future__ import annotations

import typer

from ctr.cli.ps.check import check
from ctr.cli.ps.drop import drop
from ctr.cli.ps.export import export
from ctr.cli.ps.plan import plan
from ctr.cli.ps.status import status

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Manage models in Redis: plan, check, status, export, drop.",
)
app.command("plan")(plan)
app.command("check")(check)
app.command("status")(status)
app.command("export")(export)
app.command("drop")(drop)
