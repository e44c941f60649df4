"""The `ctr` command: its groups of commands, and error messages."""

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
from ctr.errors import CtrError, SettingError, SpecError, naming_options, problem_of
from ctr.interrupts import interrupt_on_signals
from ctr.jit import show_compilation

# The base class of usage errors, for which Typer has no public name.
_WrongUse: type[Exception] = typer.BadParameter.__mro__[2]


class _Commands(TyperGroup):
    """The commands; an interrupt before a command starts its work ends it in the usual way."""

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
"""The module of each command's function, in `ctr.cli` or in the folder of its group."""

_GROUPS = {
    "features": "Hash raw logs into data sets, and describe them.",
    "model": "Look into trained models: info, top, diff, export.",
    "models": "Keep versions of models, and label what is served.",
    "ps": "Manage models in Redis: plan, check, status, export, drop.",
}


def _print_version(is_set: bool) -> None:
    if is_set:
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
    """The commands with their options: all, or only the command or group of that name.

    `listed`: without options, for `ctr --help`, as options need pydantic.
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
    """Run the command line. Exit codes: 0 success, 2 wrong usage, 1 failure."""
    if "--with-parent" not in sys.argv:  # workers of a job leave messages to the job
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
    except OSError as error:  # such as a full disk, where nothing has added the context
        _fail(str(error), 1)


def _fail(message: str, code: int) -> NoReturn:
    if message:
        typer.secho(f"error: {message}", err=True, fg=typer.colors.RED)
    sys.exit(code)


def _wrong_use(error: Any) -> str:
    """The problem and where to find help; empty if help was shown instead."""
    from pydantic import ValidationError

    if isinstance(error.__cause__, ValidationError):  # Typer would print its text
        error.message = problem_of(error.__cause__)
    message = " ".join(error.format_message().removeprefix("Invalid value: ").split())
    context = getattr(error, "ctx", None)
    if not message or context is None:
        return str(message)
    source = context.get_parameter_source(error.param.name) if getattr(error, "param", None) else None
    if source is not None and source.name == "DEFAULT_MAP":  # from `--settings`
        message = f"{context.params['settings']}: {message}"
    return f"{message}{'' if message.endswith(('.', '?')) else '.'} See `{context.command_path} --help`."
