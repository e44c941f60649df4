"""`Settings` describes the settings of a job once; `Setting`: a field's help; `taking`: a decorator."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from textwrap import fill
from types import UnionType
from typing import Any, ClassVar, Literal, ParamSpec, Self, TypeVar, Union, get_args, get_origin

from annotated_types import Ge, Le
from pydantic import (
    BaseModel,
    ConfigDict,
    ModelWrapValidatorHandler,
    TypeAdapter,
    ValidationError,
    model_validator,
)
from pydantic.fields import FieldInfo

from ctr.errors import SettingError, named, problem_of

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Setting:
    """The help of a setting: its text, and how a command line shows it."""

    help: str
    """The text. `{name}` is replaced by the name of another setting, as the user writes it."""
    group: str | None = None
    """The panel of the help."""
    metavar: str | None = None
    """The placeholder of its value in the help."""
    kind: Any = None
    """The type of the command-line option; None: the field's type."""
    options: tuple[str, ...] = ()
    """The names of its option; empty: made from the field's name."""
    argument: bool = False
    """True if a command line takes it as a positional argument."""
    paths: bool = False
    """True if it names inputs, which must exist."""
    default: str | None = None
    """The default as the help shows it; None: the value itself."""
    show_default: bool = True

    @property
    def text(self) -> str:
        """The help, with the names of other settings as this user writes them."""
        return self.help.format_map(_Names())


class _Names(dict[str, str]):
    def __missing__(self, name: str) -> str:
        return named(name)


class Settings(BaseModel):
    """Settings of a job. Users choose the fields that have a `Setting`; programs set the others.

    Command-line options, the keys of settings files and the arguments of Python functions are made from the
    fields. Raises SettingError for an unknown setting and a wrong value; it names the setting as the user
    writes it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True)
    environment: ClassVar[str] = ""
    """The prefix of environment variables for settings, such as `CTR_SERVE_`; empty: there are none."""

    @classmethod
    def described(cls) -> dict[str, tuple[FieldInfo, Setting]]:
        """The settings by name, in the order of help."""
        fields = cls.model_fields.items()
        return {name: (field, shown) for name, field in fields if (shown := setting_of(field)) is not None}

    @classmethod
    def checked(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """A copy of the values. Raises SettingError for an unknown name, and suggests a similar one."""
        known = cls.described()
        for name in values:
            if name not in known:
                similar = get_close_matches(name, known, 1)
                remedy = f"; is {named(similar[0])} meant?" if similar else "."
                raise SettingError(f"there is no setting {name}{remedy}")
        return dict(values)

    def with_values(self, **values: Any) -> Self:
        """A copy with these values, which are not checked."""
        return self.model_copy(update=values)

    @classmethod
    def value(cls, name: str, value: object, place: str) -> Any:
        """Check and convert the value of one setting. Raises SettingError, which begins with `place`."""
        field = cls.model_fields[name]
        try:
            return TypeAdapter(field.rebuild_annotation(), config=cls.model_config).validate_python(value)
        except ValidationError as error:
            raise SettingError(cls._complaint(error, name, place)) from None

    @model_validator(mode="wrap")
    @classmethod
    def _with_our_errors(cls, values: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            return handler(values)
        except ValidationError as error:
            name = str(error.errors()[0]["loc"][0])
            raise SettingError(cls._complaint(error, name, named(name))) from None

    @classmethod
    def _complaint(cls, error: ValidationError, name: str, place: str) -> str:
        """The first error of pydantic, worded like our other messages."""
        first = error.errors(include_url=False)[0]
        if first["type"] == "missing":
            return f"{place} is missing."
        if name not in cls.model_fields or first["type"] == "value_error":
            return f"{place}: {problem_of(error)}"
        return f"{place} is {_shown(first['input'])}: give {_expected(cls.model_fields[name])}."


def setting_of(field: FieldInfo) -> Setting | None:
    """The `Setting` of a field, or None."""
    return next((each for each in field.metadata if isinstance(each, Setting)), None)


def bounds(field: FieldInfo) -> tuple[Any, Any]:
    """The smallest and the largest value of a number; None: no bound."""
    low = next((each.ge for each in field.metadata if isinstance(each, Ge)), None)
    return low, next((each.le for each in field.metadata if isinstance(each, Le)), None)


def _expected(field: FieldInfo) -> str:
    """A description of the values that the setting takes, such as `a whole number of at least 1`."""
    kind: Any = field.annotation
    if get_origin(kind) in (Union, UnionType):
        kind = get_args(kind)[0]  # another one is None
    if get_origin(kind) is Literal:
        return f"one of {', '.join(map(str, get_args(kind)))}"
    if get_origin(kind) is Sequence:
        return "a list"
    low, high = bounds(field)
    nouns = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", Path: "a path"}
    noun = nouns.get(kind, "another value")
    if high is not None:
        return f"{noun} from {low:,} to {high:,}" if low is not None else f"{noun} of at most {high:,}"
    return noun if low is None else f"{noun} of at least {low:,}"


def _shown(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else f"{value!r:.80}"


def taking(settings: type[Settings], *, but: Collection[str]) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """A decorator that adds settings to the signature and docstring of a function with `**settings`.

    `but`: settings to leave out, as the function has its own arguments for them or does not take them.
    """

    def described(function: Callable[P, T]) -> Callable[P, T]:
        chosen = {name: each for name, each in settings.described().items() if name not in but}
        signature = inspect.signature(function)
        own = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
        given = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=field.get_default(call_default_factory=True),
                annotation=field.annotation,
            )
            for name, (field, _) in chosen.items()
        ]
        function.__signature__ = signature.replace(parameters=[*own, *given])  # type: ignore[attr-defined]
        lines = [
            fill(
                f"{name}: {setting.text}".replace("\\[", "["),
                100,
                initial_indent="    ",
                subsequent_indent="        ",
            )
            for name, (_, setting) in chosen.items()
        ]
        function.__doc__ = "\n".join([inspect.cleandoc(function.__doc__ or ""), "", "Settings:", *lines])
        return function

    return described
