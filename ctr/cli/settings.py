"""`command_of`: a command whose options are the settings of a job."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer
from pydantic import AfterValidator, BeforeValidator

from ctr.cli.options import check_inputs
from ctr.errors import SettingError
from ctr.settings import Setting, Settings, bounds

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo


def command_of(function: Callable[..., None], settings: type[Settings]) -> Callable[..., None]:
    """The command that calls `function` with settings, and with the options that it has of its own.

    Typer reads all options off the signature that the command is given here.
    """
    hints = get_type_hints(function, localns={settings.__name__: settings}, include_extras=True)
    _, *own = inspect.signature(function).parameters.values()
    keyword, names = inspect.Parameter.KEYWORD_ONLY, [each.name for each in own]
    parameters = [
        inspect.Parameter("context", keyword, annotation=typer.Context),
        *(_parameter(settings, name, names) for name in settings.described()),
        *(each.replace(kind=keyword, annotation=hints[each.name]) for each in own),
    ]

    def command(context: typer.Context, **values: Any) -> None:
        from ctr.settings import with_file

        others = {name: values.pop(name) for name in names}
        sources = {name: context.get_parameter_source(name) for name in values}
        given = {
            name: value
            for name, value in values.items()
            if (source := sources[name]) is not None and source.name not in ("DEFAULT", "DEFAULT_MAP")
        }
        try:
            job = settings(**with_file(settings, given, names))
        except SettingError as error:
            raise typer.BadParameter(str(error)) from None
        function(job, **others)

    command.__doc__ = function.__doc__
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # typeshed has no such
    command.__annotations__ = {}
    return command


def _parameter(settings: type[Settings], name: str, also: Sequence[str]) -> inspect.Parameter:
    """The option of a setting, or the argument; `also`: options of the command that a file may have, too."""
    field, setting = settings.described()[name]
    kind = setting.kind or field.annotation
    if setting.argument:
        shown: Any = typer.Argument(
            metavar=setting.metavar, help=setting.text, callback=check_inputs, show_default=False
        )
    elif name == "settings":
        shown = typer.Option(
            metavar=setting.metavar,
            help=setting.text,
            exists=True,
            dir_okay=False,
            is_eager=True,
            callback=_taken_from_file(settings, also),
        )
    else:
        low, high = bounds(field)
        names = (f"--{name.replace('_', '-')}", *setting.also)
        shown = typer.Option(
            *(names if setting.also or kind is bool else ()),
            metavar=setting.metavar,
            help=setting.text,
            rich_help_panel=setting.group,
            show_default=setting.show_default,
            min=low,
            max=high,
            callback=_checked_by(field, setting),
        )
    default: Any = inspect.Parameter.empty
    if not field.is_required():
        default = setting.default or field.get_default(call_default_factory=True) or None
        if field.default in (0, False):
            default = field.default
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, shown]
    )


def _checked_by(field: FieldInfo, setting: Setting) -> Callable[[Any], Any]:
    """Checks what Typer does not; the settings themselves convert a value."""
    validators = [each.func for each in field.metadata if isinstance(each, AfterValidator | BeforeValidator)]

    def checked(value: Any) -> Any:
        if value is None:
            return None
        if setting.paths:
            return check_inputs(value)
        if isinstance(value, float) and not isfinite(value):
            raise typer.BadParameter(f"{value} is not a finite number.")
        try:
            for validate in validators:
                validate(value)  # type: ignore[call-arg]  # those of ours take the value alone
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None
        return value

    return checked


def _taken_from_file(settings: type[Settings], also: Sequence[str]) -> Callable[..., Path | None]:
    """Let the options in a file take the place of defaults; those on the command line take precedence."""

    def read(context: typer.Context, path: Path | None) -> Path | None:
        if path is not None:
            from ctr.settings import read_settings

            file = read_settings(path)
            file.values(settings, also)
            context.default_map = {name.replace("-", "_"): value for name, value in file.options.items()}
        return path

    return read
