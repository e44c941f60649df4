"""The fields of a spec: `InputField` and its kinds; transform steps can add kinds."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SerializeAsAny,
    WrapValidator,
    model_validator,
)
from pydantic_core import PydanticCustomError, PydanticKnownError

from ctr.features.spec.yaml_text import Place

# Strict: YAML reads `no` as a bool and `1.0` as a float; a silent cast would hide the slip.
FROZEN = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)


def misfit(place: Place, problem: str) -> PydanticCustomError:
    """An error about keys that do not fit together; `place` is relative to the part of the spec."""
    return PydanticCustomError("misfit", "{problem}", {"place": place, "problem": problem})


def distinct(names: tuple[str, ...], *key: str) -> tuple[str, ...]:
    """Returns `names`; raises `misfit` if one occurs twice."""
    seen: set[str] = set()
    for i, name in enumerate(names):
        if name in seen:
            raise misfit((i, *key), f"{name!r} is there twice; names must be distinct")
        seen.add(name)
    return names


def _increasing(what: str, numbers: tuple[float, ...]) -> tuple[float, ...]:
    for k in range(1, len(numbers)):
        if not numbers[k - 1] < numbers[k]:
            raise misfit((k,), f"{what} must increase, got {numbers[k]:g} after {numbers[k - 1]:g}")
    return numbers


Name = Annotated[str, Field(min_length=1)]
# Strict tuples would refuse the lists that YAML yields.
Names = Annotated[tuple[Name, ...], Field(strict=False), AfterValidator(distinct)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Edges = Annotated[tuple[Finite, ...], Field(strict=False), AfterValidator(partial(_increasing, "edges"))]
Sizes = Annotated[
    tuple[Annotated[int, Field(ge=1, le=100)], ...],
    Field(strict=False),
    AfterValidator(partial(_increasing, "sizes")),
]


class Constant(BaseModel):
    """A text that replaces missing values."""

    model_config = FROZEN

    value: Name
    """A missing value is treated as a cell with this text."""


def _missing_of(data: Any, _: Any) -> Any:
    if isinstance(data, dict):
        return Constant.model_validate(data)
    if isinstance(data, Constant) or data in ("skip", "feature"):
        return data
    raise PydanticKnownError("literal_error", {"expected": "'skip', 'feature' or {value: TEXT}"})


Missing = Annotated[Literal["skip", "feature"] | Constant, WrapValidator(_missing_of)]


class InputField(BaseModel):
    """One column of the input and its transform: the keys that all kinds of fields have."""

    model_config = FROZEN

    name: Name
    type: str
    column: Name | None = None
    """The column it reads; None: the column with the field's name."""
    missing: Missing = "skip"
    """`skip`: a missing value adds no feature; `feature`: it is a value like any other; or a text that
    replaces it."""

    several: ClassVar[bool] = False
    """Whether an example may have several features of it, each with a value."""
    not_crossed: ClassVar[str | None] = None
    """Why it cannot be crossed, for a message that begins with its name; None if it can."""

    @property
    def numeric(self) -> bool:
        """Whether its values are numbers, so that JSON rows may have fractions instead of text."""
        return False

    @property
    def beside(self) -> tuple[str, ...]:
        """Further columns that it reads."""
        return ()

    @property
    def learns(self) -> tuple[str, ...]:
        """The names of the arrays that a first pass over the data learns for it."""
        return ()

    @property
    def step(self) -> str:
        """The name of its transform step."""
        return self.type

    @property
    def constant(self) -> str | None:
        """The text that replaces missing values."""
        return self.missing.value if isinstance(self.missing, Constant) else None

    @property
    def at_most(self) -> int | None:
        """The most features of it that an example can have; None: no limit."""
        return None if self.several else 1

    @model_validator(mode="after")
    def _checked(self) -> Self:
        self.check()
        return self

    def check(self) -> None:
        """Raises `misfit` if its keys do not fit together."""


class IndexField(InputField):
    """A column of `index:value` features: the rows of libsvm. No spec can name it."""

    type: Literal["indices"] = "indices"

    several: ClassVar[bool] = True


class NamedField(InputField):
    """A column of `|namespace name:value` features: the rows of Vowpal Wabbit. No spec can name it."""

    type: Literal["named"] = "named"

    several: ClassVar[bool] = True


_KINDS: dict[str, dict[str | None, type[InputField]]] = {}


def register_field(kind: type[InputField], transform: str | None = None) -> None:
    """Registers a kind of field for its `type` and, if the type has several kinds, this `transform`."""
    (type_,) = kind.model_fields["type"].annotation.__args__  # type: ignore[union-attr]
    _KINDS.setdefault(type_, {})[transform] = kind


def transforms_of(type_: str) -> list[str]:
    """The possible values of `transform` for fields of this type."""
    return [transform for transform in _KINDS[type_] if transform is not None]


def keys_of_fields() -> dict[str, tuple[str, ...]]:
    """For each type, the keys that its fields may have."""
    return {
        type_: tuple(dict.fromkeys(key for kind in kinds.values() for key in kind.model_fields))
        for type_, kinds in _KINDS.items()
    }


def _field_of(data: Any, _: Any) -> InputField:
    """The field that a mapping in a spec describes, by its type and transform."""
    if isinstance(data, InputField):
        return data
    if not isinstance(data, dict):
        raise PydanticKnownError("dict_type")
    if "type" not in data:
        raise PydanticKnownError("union_tag_not_found", {"discriminator": "'type'"})
    type_, transform = data["type"], data.get("transform")
    kinds = _KINDS.get(type_) if isinstance(type_, str) else None
    if kinds is None:
        raise PydanticKnownError(
            "union_tag_invalid",
            {"discriminator": "'type'", "tag": str(type_), "expected_tags": one_of(_KINDS)},
        )
    kind = kinds.get(transform) if isinstance(transform, str) or transform is None else None
    return (kind or next(iter(kinds.values()))).model_validate(data)


AnyField = Annotated[SerializeAsAny[InputField], WrapValidator(_field_of)]


_LEAST_SCALE, _MOST_SCALE = 1e-3, 1e3


def wrong_scale(name: str, scale: float, names: Collection[str]) -> str | None:
    """Why the field or cross `name` cannot have this scale in a spec with these `names`; None if it can."""
    if name not in names:
        return f"there is no field or cross {name!r} to scale; the spec has {', '.join(names)}"
    if not _LEAST_SCALE <= scale <= _MOST_SCALE:
        return f"{name!r} is scaled by {scale:g}; give a number from {_LEAST_SCALE:g} to {_MOST_SCALE:g}"
    return None


def column_of(field: InputField) -> str:
    """The column that a field reads."""
    return field.column or field.name


def columns_of(field: InputField) -> tuple[str, ...]:
    """All columns that a field reads, its own first."""
    return column_of(field), *field.beside


def one_of(names: Iterable[str]) -> str:
    """`'a', 'b' or 'c'`."""
    *others, last = map(repr, names)
    return f"{', '.join(others)} or {last}" if others else last


def check_delimiter(delimiter: str, *, quotes: bool) -> None:
    """Raises `misfit` unless this character can separate cells; with `quotes`, a quote cannot."""
    if len(delimiter) != 1 or not delimiter.isascii() or delimiter in ('\n\r"\0' if quotes else "\n\r\0"):
        raise misfit(
            ("delimiter",),
            f"must be one ASCII character, not a {'quote or ' if quotes else ''}line end, got {delimiter!r};"
            ' a tab is "\\t"',
        )
