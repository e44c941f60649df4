"""`command_of`: makes a command of Typer from a function that takes settings."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from pydantic import AfterValidator, BeforeValidator
from pydantic.fields import FieldInfo

import ctr.settings
from ctr.cli.reporting import JsonOption, Report
from ctr.errors import SettingError
from ctr.outputs import require_apart, require_no_part
from ctr.settings import Setting, Settings, bounds, setting_of

_KEYWORD = inspect.Parameter.KEYWORD_ONLY


class _Names(dict[str, Any]):
    """Resolves names of `ctr.settings`, which command modules import for mypy only."""

    def __missing__(self, name: str) -> Any:
        try:
            return getattr(ctr.settings, name)
        except AttributeError:
            raise KeyError(name) from None


def command_of(function: Callable[..., None]) -> Callable[..., None]:
    """The command that calls `function` with the values of the command line.

    A parameter may be the settings of a job; each becomes an option. A `Report` becomes `--json`. Other
    parameters are values with a `Setting`, or options of Typer. Typer reads the options from the signature of
    the command.
    """
    hints = get_type_hints(function, localns=_Names(), include_extras=True)
    own = dict(inspect.signature(function).parameters)
    job = next((name for name in own if _is_settings(hints[name])), None)
    report = next((name for name in own if hints[name] is Report), None)
    settings: type[Settings] | None = None if job is None else hints[own.pop(job).name]
    if report is not None:
        del own[report]
    names = [*own, *([] if report is None else ["json"])]
    parameters = [inspect.Parameter("context", _KEYWORD, annotation=typer.Context)]
    if settings is not None:
        parameters += [
            _parameter(
                name,
                *described,
                _from_file(settings, names) if name == "settings" else None,
                settings.environment,
            )
            for name, described in settings.described().items()
        ]
    parameters += [_own_parameter(each, hints[name]) for name, each in own.items()]
    if report is not None:
        parameters.append(inspect.Parameter("json", _KEYWORD, default=None, annotation=JsonOption))

    def command(context: typer.Context, **values: Any) -> None:
        arguments = {name: values[name] for name in own}
        named_values = list(arguments.values())
        if settings is not None:
            chosen = _job(settings, context, names)
            named_values += [
                getattr(chosen, name) for name in settings.described()
            ]  # including those of the file
            arguments[f"{job}"] = chosen
        if report is not None:
            _require_place(values["json"], named_values)
            arguments[report] = Report(values["json"])
        function(**arguments)

    command.__doc__ = function.__doc__
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # typeshed has no such
    command.__annotations__ = {}
    return command


def _is_settings(hint: Any) -> bool:
    return inspect.isclass(hint) and issubclass(hint, Settings)


def _job(settings: type[Settings], context: typer.Context, others: Sequence[str]) -> Settings:
    """The settings from the command line and the file; `others`: further options of the command."""
    from ctr.settings import with_file  # imports NumPy and more

    sources = {name: context.get_parameter_source(name) for name in settings.described()}
    given = {
        name: context.params[name]
        for name, source in sources.items()
        if source is not None and source.name not in ("DEFAULT", "DEFAULT_MAP")
    }
    try:
        return settings(**with_file(settings, given, others))
    except SettingError as error:
        raise typer.BadParameter(str(error)) from None


def _require_place(json: Path | None, values: Sequence[Any]) -> None:
    """Raise DataError if the summary would replace an input, or lie in a folder among the values."""
    places: list[str | Path] = []
    for value in values:
        items = value if isinstance(value, list | tuple) else [value]
        places += [item for item in items if isinstance(item, str | Path)]
    require_apart(json, places)
    require_no_part(json, *(place for place in places if isinstance(place, Path)))


def _own_parameter(own: inspect.Parameter, hint: Any) -> inspect.Parameter:
    """A parameter of the function itself: a value with a `Setting`, or an option of Typer."""
    required = own.default is own.empty
    field = (
        FieldInfo.from_annotation(hint) if required else FieldInfo.from_annotated_attribute(hint, own.default)
    )
    setting = setting_of(field)
    if setting is None:
        return own.replace(kind=_KEYWORD, annotation=hint)
    return _parameter(own.name, field, setting)


def _parameter(
    name: str,
    field: FieldInfo,
    setting: Setting,
    from_file: Callable[..., Any] | None = None,
    environment: str = "",
) -> inspect.Parameter:
    """The option or argument of a setting; `from_file` reads the settings file that it names.

    `environment`: the prefix of its environment variable; empty: it has none.
    """
    kind = setting.kind or field.annotation
    if setting.argument:
        shown: Any = typer.Argument(
            metavar=setting.metavar,
            help=setting.text,
            callback=_check_inputs if setting.paths else None,
            show_default=False,
        )
    else:
        low, high = bounds(field)
        names = setting.options or ((f"--{name.replace('_', '-')}",) if kind is bool else ())
        shown = typer.Option(
            *names,
            metavar="" if kind in (bool, bool | None) else setting.metavar,
            help=setting.text,
            rich_help_panel=setting.group,
            show_default=setting.show_default,
            envvar=f"{environment}{name.upper()}" if environment else None,
            show_envvar=False,
            min=low,
            max=high,
            callback=from_file or _checked_by(field, setting),
            is_eager=from_file is not None,
            exists=from_file is not None,
            dir_okay=from_file is None,
        )
    default: Any = inspect.Parameter.empty
    if not field.is_required():
        default = None if field.default_factory is not None or field.default == () else field.default
        default = setting.default or default
    return inspect.Parameter(name, _KEYWORD, default=default, annotation=Annotated[kind, shown])


def _check_inputs(inputs: list[str] | None) -> list[str] | None:
    """Refuse missing paths; patterns and URIs are checked when they are opened."""
    from ctr.features import is_glob, is_uri

    for text in inputs or ():
        if text != "-" and not is_uri(text) and not is_glob(text) and not os.path.exists(text):
            raise typer.BadParameter(f"Path {text!r} does not exist.")
    return inputs


def _checked_by(field: FieldInfo, setting: Setting) -> Callable[[Any], Any]:
    """A check of what Typer does not check; the settings convert values themselves."""
    validators = [each.func for each in field.metadata if isinstance(each, AfterValidator | BeforeValidator)]

    def checked(value: Any) -> Any:
        if value is None:
            return None
        if setting.paths:
            return _check_inputs(value)
        if isinstance(value, float) and not isfinite(value):
            raise typer.BadParameter(f"{value} is not a finite number.")
        try:
            for validate in validators:
                validate(value)  # type: ignore[call-arg]  # our validators take only the value
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None
        return value

    return checked


def _from_file(settings: type[Settings], also: Sequence[str]) -> Callable[..., Path | None]:
    """Use the options in a file as defaults; options on the command line take precedence."""

    def read(context: typer.Context, path: Path | None) -> Path | None:
        if path is not None:
            from ctr.settings import read_settings

            file = read_settings(path)
            file.values(settings, also)
            context.default_map = {name.replace("-", "_"): value for name, value in file.options.items()}
        return path

    return read
