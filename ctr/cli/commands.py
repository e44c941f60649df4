"""The `ctr` command: its groups of commands, and what an error looks like to a user."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup
from typer.main import get_command

from ctr.cli.reporting import stopping
from ctr.errors import CtrError, SettingError, SpecError, first_problem, naming_options
from ctr.interrupts import interrupt_on_signals
from ctr.jit import show_compilation

# Of whatever click Typer is built on; Typer has no public name for it.
_WrongUse: type[Exception] = typer.BadParameter.__mro__[2]


class _Commands(TyperGroup):
    """The commands; whichever is interrupted before its work begins ends as one that has begun."""

    def invoke(self, ctx: Any) -> Any:
        with stopping("Nothing was begun."):
            interrupt_on_signals()
            return super().invoke(ctx)


_COMMANDS: dict[str, str | dict[str, str]] = {
    "features": {
        "init": "inspection",
        "check": "inspection",
        "show": "inspection",
        "fit": "inspection",
        "build": "datasets",
        "describe": "datasets",
        "suggest": "suggesting",
    },
    "model": {"info": "info", "top": "weights", "diff": "diff", "export": "weights"},
    "models": {
        "init": "changing",
        "list": "listing",
        "publish": "changing",
        "label": "changing",
        "rollback": "changing",
        "remove": "changing",
    },
    "ps": {"plan": "plan", "check": "check", "status": "status", "export": "export", "drop": "drop"},
    "synth": "synthesis",
    "train": "train",
    "tune": "tuning",
    "worker": "working",
    "evaluate": "scoring.evaluating",
    "calibrate": "scoring.calibrating",
    "predict": "scoring.predicting",
    "explain": "scoring.predicting",
    "serve": "serving",
    "join": "joining",
    "runs": "runs",
    "warm-up": "warming",
}
"""In which module of `ctr.cli`, or of the group's folder there, the function of each command is."""

_GROUPS = {
    "features": "Hash raw logs into data sets, and describe them.",
    "model": "Look into trained models: info, top, diff, export.",
    "models": "Keep versions of models, and label what is served.",
    "ps": "Manage models in Redis: plan, check, status, export, drop.",
}


def _print_version(wanted: bool) -> None:
    if wanted:
        from ctr import __version__

        typer.echo(f"ctr {__version__}")
        raise typer.Exit


def _options(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options that stand before the command."""


@cache
def command_line(name: str | None = None, *, listed: bool = False) -> Any:
    """The commands with their options: all, or only the one or the group of that name.

    `listed`: as `ctr --help` lists them, without the options, which come with pydantic.
    """
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
    app.callback()(_options)
    for each in _COMMANDS if name is None else (name,):
        modules = _COMMANDS[each]
        if isinstance(modules, str):
            app.command(each)(_command(modules, each, listed))
            continue
        group = typer.Typer(no_args_is_help=True, rich_markup_mode="markdown", help=_GROUPS[each])
        for inner, module in () if listed else modules.items():
            group.command(inner)(_command(f"{each}.{module}", inner, listed))
        app.add_typer(group, name=each)
    return get_command(app)


def _command(module: str, name: str, listed: bool) -> Callable[..., None]:
    function = getattr(import_module(f"ctr.cli.{module}"), name.replace("-", "_"))
    if listed:

        def command() -> None: ...

        command.__doc__ = function.__doc__
        return command
    from ctr.cli.command import command_of

    return command_of(function)


def run() -> NoReturn:
    """Run the command line; exit 0 when all went well, 2 on wrong use, 1 when a job failed."""
    if "--with-parent" not in sys.argv:  # as workers of a job are, for which the job speaks
        show_compilation()
    try:
        name = sys.argv[1] if len(sys.argv) > 1 and sys.argv[1] in _COMMANDS else None
        with naming_options():
            sys.exit(command_line(name, listed=name is None)(prog_name="ctr", standalone_mode=False))
    except _WrongUse as error:
        _fail(_wrong_use(error), 2)
    except typer.Abort:  # an answer of no
        _fail("aborted.", 1)
    except CtrError as error:
        _fail(str(error), 2 if isinstance(error, SpecError | SettingError) else 1)
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
    from pydantic import ValidationError

    if isinstance(error.__cause__, ValidationError):  # whose words Typer passes on
        error.message = first_problem(error.__cause__)[1]
    said = error.format_message().removeprefix("Invalid value: ").strip()
    context = getattr(error, "ctx", None)
    if not said or context is None:
        return str(said)
    source = context.get_parameter_source(error.param.name) if getattr(error, "param", None) else None
    if source is not None and source.name == "DEFAULT_MAP":  # which `--settings` fills
        said = f"{context.params['settings']}: {said}"
    return f"{said}{'' if said.endswith(('.', '?')) else '.'} See `{context.command_path} --help`."
