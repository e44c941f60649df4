"""`ctr model`: what a trained model is, what it has learnt, and its weights for other programs."""

from __future__ import annotations

import typer

from ctr.cli.model.diff import diff
from ctr.cli.model.export import export
from ctr.cli.model.info import info
from ctr.cli.model.top import top

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Look into trained models: info, top, diff, export.",
)
app.command("info")(info)
app.command("top")(top)
app.command("diff")(diff)
app.command("export")(export)
