"""The `ctr` command: its groups of commands, and what an error looks like to a user."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from ctr.cli import drilling, features, ps, scoring, serving, synthesis, training, working
from ctr.cli.jobs import stopping
from ctr.errors import CtrError, SpecError
from ctr.interrupts import interrupt_on_signals


class _Commands(TyperGroup):
    """The commands; whichever is interrupted before its work begins ends as one that has begun."""

    def invoke(self, ctx: Any) -> Any:
        with stopping("Nothing was begun."):
            interrupt_on_signals()
            return super().invoke(ctx)


app = typer.Typer(
    name="ctr",
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    add_completion=False,
    help=(
        "From raw click logs to a served click-through-rate model.\n\n"
        "Sparse logistic regression over hashed features, trained with FTRL-Proximal.\n\n"
        "A first run, without any data of your own:\n\n"
        "- `ctr synth --rows 500000 --out clicks.tsv`\n"
        "- `ctr train --spec criteo clicks.tsv --model model --holdout-fraction 0.1`\n"
        "- `ctr serve --model model`"
    ),
)
app.add_typer(features.app, name="features")
app.add_typer(ps.app, name="ps")
app.command("synth")(synthesis.synth)
app.command("train")(training.train)
app.command("drill")(drilling.drill)
app.command("worker")(working.worker)
app.command("evaluate")(scoring.evaluate)
app.command("predict")(scoring.predict)
app.command("serve")(serving.serve)


def _print_version(wanted: bool) -> None:
    if wanted:
        from ctr import __version__

        typer.echo(f"ctr {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options that stand before the command."""


def run() -> None:
    """Run the command line; exit 0 when all went well, 2 on wrong use, 1 when a job failed."""
    try:
        app()
    except CtrError as error:
        typer.secho(f"error: {error}", err=True, fg=typer.colors.RED)
        sys.exit(2 if isinstance(error, SpecError) else 1)
    except MemoryError as error:
        typer.secho(
            f"error: not enough memory ({error}); fewer --bits or a smaller --chunk need less.",
            err=True,
            fg=typer.colors.RED,
        )
        sys.exit(1)
    except OSError as error:  # such as a full disk where no part of ours knew what was being written
        typer.secho(f"error: {error}", err=True, fg=typer.colors.RED)
        sys.exit(1)
