"""`Settings`: those of a job, described once; `Setting`: how one is shown; `taking`: functions of them."""

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
    """What a field says of itself beyond its name, type, default and bounds."""

    help: str
    """`{name}` stands for another setting, as the user writes it."""
    group: str | None = None
    """The panel of help that it is in."""
    metavar: str | None = None
    """What stands for its value in help."""
    kind: Any = None
    """What a command line takes for it; None: its own type."""
    options: tuple[str, ...] = ()
    """Its options on a command line; empty: the one of its name."""
    argument: bool = False
    """Whether it stands on a command line without a name."""
    paths: bool = False
    """Whether it names inputs that have to be there."""
    default: str | None = None
    """The default as people write it; None: as it is."""
    show_default: bool = True

    @property
    def text(self) -> str:
        """The help, with other settings named as this user writes them."""
        return self.help.format_map(_Names())


class _Names(dict[str, str]):
    def __missing__(self, name: str) -> str:
        return named(name)


class Settings(BaseModel):
    """Settings of a job: fields with a `Setting` are its users' to choose, others are facts of the program.

    A command line, the keys of a file, and the arguments of a Python function are made from the fields.
    Raises SettingError, which names the setting as its user writes it, for an unknown one and a wrong value.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True)
    environment: ClassVar[str] = ""
    """With what the names of environment variables begin that stand for settings; empty: none do."""

    @classmethod
    def described(cls) -> dict[str, tuple[FieldInfo, Setting]]:
        """The settings by name, in the order of help."""
        fields = cls.model_fields.items()
        return {name: (field, shown) for name, field in fields if (shown := setting_of(field)) is not None}

    @classmethod
    def checked(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """The values, if all of them are settings; raises SettingError, which suggests a similar name."""
        known = cls.described()
        for name in values:
            if name not in known:
                similar = get_close_matches(name, known, 1)
                remedy = f"; is {named(similar[0])} meant?" if similar else "."
                raise SettingError(f"there is no setting {name}{remedy}")
        return dict(values)

    def with_values(self, **values: Any) -> Self:
        """The same settings but for these values, which are right already."""
        return self.model_copy(update=values)

    @classmethod
    def value(cls, name: str, value: object, place: str) -> Any:
        """A value for one setting, checked; `place` is where its user wrote it. Raises SettingError."""
        field = cls.model_fields[name]
        try:
            return TypeAdapter(field.rebuild_annotation(), config=cls.model_config).validate_python(value)
        except ValidationError as error:
            raise SettingError(cls._complaint(error, name, place)) from None

    @model_validator(mode="wrap")
    @classmethod
    def _in_our_words(cls, values: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            return handler(values)
        except ValidationError as error:
            name = str(error.errors()[0]["loc"][0])
            raise SettingError(cls._complaint(error, name, named(name))) from None

    @classmethod
    def _complaint(cls, error: ValidationError, name: str, place: str) -> str:
        """What pydantic complains of, as our messages say it."""
        first = error.errors(include_url=False)[0]
        if first["type"] == "missing":
            return f"{place} is missing."
        if name not in cls.model_fields or first["type"] == "value_error":
            return f"{place}: {problem_of(error)}"
        return f"{place} is {_shown(first['input'])}: give {_wanted(cls.model_fields[name])}."


def setting_of(field: FieldInfo) -> Setting | None:
    """What a field says of itself, if it is a setting."""
    return next((each for each in field.metadata if isinstance(each, Setting)), None)


def bounds(field: FieldInfo) -> tuple[Any, Any]:
    """The least and the greatest value of a number; None: it has no such bound."""
    low = next((each.ge for each in field.metadata if isinstance(each, Ge)), None)
    return low, next((each.le for each in field.metadata if isinstance(each, Le)), None)


def _wanted(field: FieldInfo) -> str:
    """What a value of this setting can be: `a whole number of at least 1`."""
    kind: Any = field.annotation
    if get_origin(kind) in (Union, UnionType):
        kind = get_args(kind)[0]  # the other is None
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
    """Give a function the signature and the docstring of the settings that it takes as `**settings`.

    `but`: those that it has arguments of its own for, or does not take.
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
