"""`FeatureSpec`: what the columns of raw data mean, and which features they become."""

from __future__ import annotations

import hashlib
import json
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from ctr.errors import SpecError
from features.spec.yaml_text import SpecText, dump_yaml

_SHIPPED = Path(__file__).parent / "shipped"

# Strict: YAML reads `no` as a bool and `1.0` as a float; a silent cast would hide the slip.
_FROZEN = ConfigDict(frozen=True, extra="forbid", strict=True)

Name = Annotated[str, Field(min_length=1)]
# Strict tuples would refuse the lists that YAML yields.
Names = Annotated[tuple[Name, ...], Field(strict=False)]
_Place = tuple[str | int, ...]
Missing = Literal["skip", "feature"]


class Source(BaseModel):
    """How the raw data is laid out. It does not change which features a value becomes."""

    model_config = _FROZEN

    format: Literal["delimited", "parquet", "libsvm"]
    """The format of files whose name does not tell it by its suffix."""
    delimiter: str = ","
    """The one ASCII character between two cells; delimited text only."""
    header: bool = True
    """Whether the first line names the columns; delimited text only."""
    quote: bool = False
    """Whether a cell may stand in double quotes, where `""` is a quote and newlines are text."""
    columns: Names = ()
    """The names of all columns in their order: given if and only if `header` is false."""
    ignore: Names = ()
    """Columns that no field reads, but that rows sent for scoring may carry; not in libsvm."""


class NumberField(BaseModel):
    """A column of numbers, each replaced by a bucket."""

    model_config = _FROZEN

    name: Name
    type: Literal["number"]
    column: Name | None = None
    """The column it reads; None: the one of its own name."""
    missing: Missing = "skip"
    """`skip`: a missing value adds no feature; `feature`: it is a value like any other."""
    transform: Literal["log", "edges"]
    """`log`: floor(v) up to 2, above it 2 + floor(ln(v)**2); `edges`: how many edges are <= v."""
    edges: Annotated[tuple[Annotated[float, Field(allow_inf_nan=False)], ...], Field(strict=False)] = ()
    """Strictly increasing; for the transform `edges` only."""


class CategoryField(BaseModel):
    """A column whose every distinct text is a feature."""

    model_config = _FROZEN

    name: Name
    type: Literal["category"]
    column: Name | None = None
    """The column it reads; None: the one of its own name."""
    missing: Missing = "skip"
    """`skip`: an empty value adds no feature; `feature`: it is a value like any other."""


class Cross(BaseModel):
    """One feature for each combination of the features of several fields."""

    model_config = _FROZEN

    name: Name
    of: Annotated[tuple[Name, ...], Field(strict=False, min_length=2)]
    """Names of fields; their order matters to the hash."""


AnyField = Annotated[NumberField | CategoryField, Field(discriminator="type")]


class FeatureSpec(BaseModel):
    """A checked feature spec; see `load_spec` for where one comes from."""

    model_config = _FROZEN

    version: Literal[1]
    source: Source
    label: Name | None = None
    """The column of the label: 0 or 1, or -1 or 1. None in libsvm, where it has its own place."""
    weight: Name | None = None
    """The column of the example's weight, finite and above 0; None: every example weighs 1."""
    bits: Annotated[int, Field(ge=1, le=40)] = 22
    """Slots are in `[0, 2**bits)`."""
    seed: Annotated[int, Field(ge=0, le=2**64 - 1)] = 0
    """Seed of every hash."""
    bias: bool = True
    """Whether every example has the feature of slot 0."""
    fields: Annotated[tuple[AnyField, ...], Field(strict=False)] = ()
    crosses: Annotated[tuple[Cross, ...], Field(strict=False)] = ()

    @model_validator(mode="after")
    def _check(self) -> FeatureSpec:
        _check_source(self.source)
        if self.source.format == "libsvm":
            _check_libsvm(self)
        else:
            _check_columns(self)
            _check_fields(self)
            _check_crosses(self)
        return self

    @property
    def features_per_example(self) -> int:
        """The most features an example can have; of libsvm, whose rows have any number, the bias alone."""
        return int(self.bias) + len(self.fields) + len(self.crosses)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256, in hex, of all that decides which slots an example's values become.

        Where the values stand (source, columns, label, weight) does not enter: data of one
        fingerprint may be mixed.
        """
        # A key that is added here later enters only where it is not at its default, as in `_decisive`.
        decisive = {
            "version": self.version,
            "libsvm": self.source.format == "libsvm",
            "bits": self.bits,
            "seed": self.seed,
            "bias": self.bias,
            "fields": [_decisive(field) for field in self.fields],
            "crosses": [_decisive(cross) for cross in self.crosses],
        }
        canonical = json.dumps(decisive, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(canonical.encode()).hexdigest()

    def to_yaml(self) -> str:
        """YAML text that `parse_spec` reads back as an equal spec, whatever later defaults may be."""
        data = self.model_dump(mode="json")
        if self.source.format != "delimited":
            data["source"] = {"format": self.source.format, "ignore": list(self.source.ignore)}
        return dump_yaml(_without_empty(data))


# The keys that the parts of a spec had when format version 1 was fixed.
_FIRST_KEYS = frozenset({"name", "type", "missing", "transform", "edges", "of"})


def _decisive(part: NumberField | CategoryField | Cross) -> dict[str, Any]:
    """What of a part of a spec enters the fingerprint.

    Keys that came after `_FIRST_KEYS` enter only where they are not at their default, so that a new one
    changes no fingerprint of a spec that does not use it: its models and data sets stay usable.
    """
    fields = type(part).model_fields
    return {
        key: value
        for key, value in part.model_dump(exclude={"column"}).items()
        if key in _FIRST_KEYS or value != fields[key].get_default(call_default_factory=True)
    }


_VOCABULARY = {
    "the spec itself": tuple(FeatureSpec.model_fields),
    "source": tuple(Source.model_fields),
    "number fields": tuple(NumberField.model_fields),
    "category fields": tuple(CategoryField.model_fields),
    "crosses": tuple(Cross.model_fields),
}


def load_spec(name_or_path: str | Path) -> FeatureSpec:
    """The spec that ships under that name (`criteo`, `avazu`, `libsvm`), or else that file's.

    Raises SpecError when there is none or it is wrong.
    """
    shipped = {path.stem: path for path in sorted(_SHIPPED.glob("*.yaml"))}
    path = shipped.get(str(name_or_path), Path(name_or_path))
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        raise SpecError(
            f"There is no feature spec {str(name_or_path)!r}: name one that ships with the package"
            f" ({', '.join(shipped)}), or give the path of a YAML file."
        ) from None
    except UnicodeDecodeError as error:
        raise SpecError(f"{path}: byte {error.start} is not UTF-8 text; save the spec as UTF-8.") from None
    except OSError as error:
        raise SpecError(f"{path}: the feature spec cannot be read ({error.strerror}).") from None
    return parse_spec(text, str(path))


def parse_spec(text: str, where: str) -> FeatureSpec:
    """The spec in the YAML `text`; `where` (a file name) begins the message of a SpecError."""
    document = SpecText(text, where)
    try:
        return FeatureSpec.model_validate(document.data)
    except ValidationError as error:
        raise document.explain(error, _VOCABULARY) from None


def _without_empty(data: dict[str, Any]) -> dict[str, Any]:
    """`data` without the keys, at any depth, whose value is None or an empty list."""
    kept: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, dict):
            kept[key] = _without_empty(value)
        elif isinstance(value, list) and value:
            kept[key] = [_without_empty(item) if isinstance(item, dict) else item for item in value]
        elif value is not None and value != []:
            kept[key] = value
    return kept


def _misfit(place: _Place, problem: str) -> PydanticCustomError:
    """An error about one place of a spec whose parts are well-formed but do not fit together."""
    return PydanticCustomError("misfit", "{problem}", {"place": place, "problem": problem})


def _check_source(source: Source) -> None:
    given = source.model_fields_set
    if source.format != "delimited":
        for key in ("delimiter", "header", "quote", "columns"):
            if key in given:
                raise _misfit(
                    ("source", key), f"only delimited text has it, not format {source.format}; remove it"
                )
        if source.ignore and source.format == "libsvm":
            raise _misfit(("source", "ignore"), "libsvm data has no named columns; remove it")
        return
    delimiter = source.delimiter
    if len(delimiter) != 1 or not delimiter.isascii() or delimiter in '\n\r"\0':
        raise _misfit(
            ("source", "delimiter"),
            f'must be one ASCII character, not a quote or line end, met {delimiter!r}; a tab is "\\t"',
        )
    if source.header and source.columns:
        raise _misfit(
            ("source", "columns"), "the header names the columns; remove this list or set header: false"
        )
    if not source.header and not source.columns:
        raise _misfit(("source",), "without a header, `columns` must list the names of all columns in order")
    _check_distinct(source.columns, ("source", "columns"))


def _check_libsvm(spec: FeatureSpec) -> None:
    for key in ("label", "weight", "fields", "crosses"):
        if getattr(spec, key):
            raise _misfit((key,), "libsvm data carries its own label and features; remove this key")


def _check_columns(spec: FeatureSpec) -> None:
    if spec.label is None:
        raise _misfit((), "`label` is missing: name the column that tells whether there was a click")
    if spec.weight == spec.label:
        raise _misfit(("weight",), f"{spec.weight!r} is the label's column already")
    used: list[tuple[_Place, str | None]] = [
        (("label",), spec.label),
        (("weight",), spec.weight),
    ]
    for i, field in enumerate(spec.fields):
        place: _Place = ("fields", i, "column" if field.column else "name")
        used.append((place, column_of(field)))
        if column_of(field) in (spec.label, spec.weight):
            raise _misfit(
                place, f"column {column_of(field)!r} is the label or weight; it cannot be a field too"
            )
    _check_distinct(spec.source.ignore, ("source", "ignore"))
    for i, name in enumerate(spec.source.ignore):
        if name in [column for _, column in used]:
            raise _misfit(("source", "ignore", i), f"column {name!r} is not ignored but used; remove it here")
    if spec.source.columns:
        for place, column in used:
            if column is not None and column not in spec.source.columns:
                raise _misfit(place, f"there is no column {column!r} in source.columns")


def _check_fields(spec: FeatureSpec) -> None:
    if not spec.fields:
        raise _misfit((), "`fields` is missing: list at least one field")
    _check_distinct([field.name for field in spec.fields], ("fields",), "name")
    for i, field in enumerate(spec.fields):
        if isinstance(field, CategoryField):
            continue
        if field.transform == "edges" and not field.edges:
            raise _misfit(("fields", i), "`edges` is missing: list the numbers between the buckets")
        if field.transform != "edges" and field.edges:
            raise _misfit(("fields", i, "edges"), "only `transform: edges` has edges; set it or remove them")
        for k in range(1, len(field.edges)):
            if not field.edges[k - 1] < field.edges[k]:
                raise _misfit(
                    ("fields", i, "edges", k),
                    f"edges must increase, met {field.edges[k]:g} after {field.edges[k - 1]:g}",
                )


def _check_crosses(spec: FeatureSpec) -> None:
    names = {field.name for field in spec.fields}
    _check_distinct([cross.name for cross in spec.crosses], ("crosses",), "name")
    for i, cross in enumerate(spec.crosses):
        if cross.name in names:
            raise _misfit(("crosses", i, "name"), f"{cross.name!r} is the name of a field already")
        _check_distinct(cross.of, ("crosses", i, "of"))
        for k, part in enumerate(cross.of):
            if part not in names:
                raise _misfit(("crosses", i, "of", k), f"there is no field {part!r}; cross names of `fields`")


def _check_distinct(names: tuple[str, ...] | list[str], place: _Place, *key: str) -> None:
    seen: set[str] = set()
    for i, name in enumerate(names):
        if name in seen:
            raise _misfit((*place, i, *key), f"{name!r} is there twice; names must be distinct")
        seen.add(name)


def column_of(field: NumberField | CategoryField) -> str:
    """The column that a field reads."""
    return field.column if field.column is not None else field.name


__all__ = [
    "CategoryField",
    "Cross",
    "FeatureSpec",
    "NumberField",
    "Source",
    "column_of",
    "load_spec",
    "parse_spec",
]
