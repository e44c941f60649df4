"""The `ctr` command: its groups of commands, and what an error looks like to a user."""

from __future__ import annotations

import sys
from functools import cache
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup
from typer.main import get_command

from ctr.cli import (
    drilling,
    evaluating,
    features,
    model,
    ps,
    runs,
    scoring,
    serving,
    synthesis,
    tuning,
    working,
)
from ctr.cli.reporting import stopping
from ctr.cli.train import train
from ctr.errors import CtrError, SpecError
from ctr.interrupts import interrupt_on_signals

# Of whatever click Typer is built on; Typer has no public name for it.
_WrongUse: type[Exception] = typer.BadParameter.__mro__[2]


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
        "Sparse logistic regression over hashed features, trained online.\n\n"
        "A first run, without any data of your own:\n\n"
        "- `ctr synth --rows 500000 --out clicks.tsv`\n"
        "- `ctr train --spec criteo clicks.tsv --model model --holdout-fraction 0.1`\n"
        "- `ctr serve --model model`"
    ),
)
app.add_typer(features.app, name="features")
app.add_typer(model.app, name="model")
app.add_typer(ps.app, name="ps")
app.command("synth")(synthesis.synth)
app.command("train")(train)
app.command("tune")(tuning.tune)
app.command("drill")(drilling.drill)
app.command("worker")(working.worker)
app.command("evaluate")(evaluating.evaluate)
app.command("predict")(scoring.predict)
app.command("explain")(scoring.explain)
app.command("serve")(serving.serve)
app.command("runs")(runs.runs)


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


@cache
def command_line() -> Any:
    """All commands with their options, which Typer takes 20 ms to put together."""
    return get_command(app)


def run() -> NoReturn:
    """Run the command line; exit 0 when all went well, 2 on wrong use, 1 when a job failed."""
    try:
        sys.exit(command_line()(prog_name="ctr", standalone_mode=False))
    except _WrongUse as error:
        _fail(_wrong_use(error), 2)
    except typer.Abort:  # an answer of no
        _fail("aborted.", 1)
    except CtrError as error:
        _fail(str(error), 2 if isinstance(error, SpecError) else 1)
    except MemoryError as error:
        _fail(f"not enough memory ({error}); fewer --bits or a smaller --chunk need less.", 1)
    except OSError as error:  # such as a full disk where no part of ours knew what was being written
        _fail(str(error), 1)


def _fail(message: str, code: int) -> NoReturn:
    if message:
        typer.secho(f"error: {message}", err=True, fg=typer.colors.RED)
    sys.exit(code)


def _wrong_use(error: Any) -> str:
    """What was wrong, and where to read on; nothing where help has been shown instead."""
    said = error.format_message().removeprefix("Invalid value: ").strip()
    context = getattr(error, "ctx", None)
    if not said or context is None:
        return str(said)
    return f"{said}{'' if said.endswith(('.', '?')) else '.'} See `{context.command_path} --help`."
