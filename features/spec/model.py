"""`FeatureSpec`: the meaning of the columns of raw data, and the features made from them."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import AfterValidator, BaseModel, Field, model_validator

from ctr.errors import SpecError
from ctr.features.spec.crosses import Cross, Crosses, CrossExpansion
from ctr.features.spec.fields import (
    FROZEN,
    AnyField,
    InputField,
    Name,
    column_of,
    columns_of,
    distinct,
    misfit,
    wrong_scale,
)
from ctr.features.spec.number_fields import NumberField
from ctr.features.spec.source import FORMATS, Source
from ctr.features.spec.windows import SERVED, Window
from ctr.features.spec.yaml_text import Place, dump_yaml

_Parts = TypeVar("_Parts", tuple[InputField, ...], tuple[Window, ...])


def _distinct_names(parts: _Parts) -> _Parts:
    distinct(tuple(part.name for part in parts), "name")
    return parts


class FeatureSpec(BaseModel):
    """A validated feature spec; see `load_spec` for its sources."""

    model_config = FROZEN

    version: Literal[1]
    source: Source
    label: Name | None = None
    """The column of the label: 0 or 1, or -1 or 1. None in libsvm, where labels have their own place."""
    weight: Name | None = None
    """The column of the example's weight, finite and above 0; None: all examples weigh 1."""
    bits: Annotated[int, Field(ge=1, le=40)] = 22
    """Slots are in `[0, 2**bits)`."""
    seed: Annotated[int, Field(ge=0, le=2**64 - 1)] = 0
    """Seed of every hash."""
    bias: bool = True
    """Whether every example has a feature in slot 0."""
    fields: Annotated[tuple[AnyField, ...], Field(strict=False), AfterValidator(_distinct_names)] = ()
    groups: dict[Name, Annotated[tuple[Name, ...], Field(strict=False)]] = Field(default_factory=dict)
    """By name, fields (or patterns of them) that crosses can name together; checked if there are crosses."""
    most_features: Annotated[int, Field(ge=1, le=1_000_000)] = 10_000
    """The most features that an example may have, so that one cross too many does not fill the memory. Data
    that carries its own features has no limit."""
    windows: Annotated[tuple[Window, ...], Field(strict=False), AfterValidator(_distinct_names)] = ()
    crosses: Crosses = ()
    scales: dict[Name, float] = Field(default_factory=dict)
    """By field or cross, a factor for the values of its features; 1 if not given."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if FORMATS[self.source.format].fields:
            _check_carried(self)
        else:
            _check_columns(self)
            _check_fields(self)
            if self.crosses:  # specs saved without crosses may have groups of fields that do not exist
                fields = {field.name: field for field in self.all_fields}
                expansion = CrossExpansion(fields, self.groups, self.most_features)
                self.__dict__["crosses"] = expansion.expand(self.crosses)
            _check_most(self)
            _check_scales(self)
        return self

    @property
    def weight_column(self) -> str | None:
        """The column of the weight: the spec's, or that of a format whose rows carry a weight."""
        return self.weight or FORMATS[self.source.format].weight

    @property
    def label_column(self) -> str | None:
        """The column of the label: the spec's, or that of a format whose rows carry a label."""
        return self.label or FORMATS[self.source.format].label

    @property
    def all_fields(self) -> tuple[InputField, ...]:
        """The fields of the spec and its windows, or those of a format whose rows carry features."""
        of_windows = [field for window in self.windows for field in window.fields]
        return (*self.fields, *of_windows) or FORMATS[self.source.format].fields

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that fields and windows read, without duplicates."""
        of_fields = [column for field in self.all_fields for column in columns_of(field)]
        return tuple(dict.fromkeys([*of_fields, *(name for window in self.windows for name in window.key)]))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all fields, including those of windows, and of the crosses."""
        return (*(field.name for field in self.all_fields), *(cross.name for cross in self.crosses))

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """As in pydantic, but without the cached properties of the original."""
        copied = super().model_copy(update=update, deep=deep)
        for name in ("by_value", "fingerprint"):
            copied.__dict__.pop(name, None)
        return copied

    def with_scales(self, scales: Mapping[str, float]) -> Self:
        """This spec with these scales, which override its own. Raises SpecError for an impossible scale."""
        if scales and FORMATS[self.source.format].fields:
            raise SpecError(f"{self.source.format} data carries its own features, which have no scales.")
        names = dict.fromkeys(self.names)
        for name, scale in scales.items():
            if (problem := wrong_scale(name, scale, names)) is not None:
                raise SpecError(f"{problem}.")
        return self.model_copy(update={"scales": {**self.scales, **scales}})

    def of_fields(self, fields: Sequence[AnyField]) -> FeatureSpec:
        """This spec with only these fields and their crosses, without windows."""
        names = {field.name for field in fields}
        crosses = tuple(cross for cross in self.crosses if names.issuperset(cross.of))
        names.update(cross.name for cross in crosses)
        scales = {name: scale for name, scale in self.scales.items() if name in names}
        changed = {"fields": tuple(fields), "crosses": crosses, "windows": (), "scales": scales}
        return self.model_copy(update=changed)

    @property
    def features_per_example(self) -> int:
        """The most features that an example can have, apart from lists and their crosses."""
        several = {field.name for field in self.all_fields if field.several}
        crosses = sum(several.isdisjoint(cross.of) for cross in self.crosses)
        return int(self.bias) + len(self.all_fields) - len(several) + crosses

    @property
    def has_values(self) -> bool:
        """Whether features may have values other than 1."""
        return any(field.several for field in self.all_fields) or any(s != 1 for s in self.scales.values())

    @property
    def list_columns(self) -> frozenset[str]:
        """The columns whose values may be lists: only fields with several texts read them."""
        fields = [f for f in self.fields if not f.several or isinstance(f, NumberField)]
        single = {column for field in fields for column in columns_of(field)}
        return frozenset(map(column_of, self.fields)) - single

    @cached_property
    def by_value(self) -> frozenset[str]:
        """The columns that only serve features which depend on one value of one column."""
        fields = [field for field in self.all_fields if field.several or field.beside]
        others = {column for field in fields for column in columns_of(field)}
        others.update(column for window in self.windows for column in (*window.key, window.time))
        others.update(name for name in (self.label_column, self.weight_column) if name is not None)
        return frozenset(map(column_of, self.fields)) - others

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256, in hex, of everything that decides to which slots the values of an example are hashed.

        It does not depend on where values are (source, columns, label, weight): data with the same
        fingerprint can be mixed.
        """
        return digest(self.decisive())

    def decisive(self) -> dict[str, Any]:
        """The content of the fingerprint, as JSON values."""
        # Keys added later enter only if they are not at their defaults, as in `_decisive`.
        decisive: dict[str, Any] = {
            "version": self.version,
            "libsvm": self.source.format == "libsvm",
            "bits": self.bits,
            "seed": self.seed,
            "bias": self.bias,
            "fields": [_decisive(field) for field in self.fields],
            "crosses": [_decisive(cross) for cross in self.crosses],
        }
        if not self.fields and not decisive["libsvm"]:
            decisive["fields_of"] = self.source.format
        if self.windows:
            decisive["windows"] = [_decisive(window) for window in self.windows]
        if scales := {name: scale for name, scale in self.scales.items() if scale != 1}:
            decisive["scales"] = scales
        return decisive

    def to_yaml(self) -> str:
        """YAML text that `parse_spec` reads as an equal spec, even if defaults change later.

        Crosses in short are expanded.
        """
        data = self.model_dump(mode="json") | {"source": self.source.to_yaml()}
        if self.most_features == FeatureSpec.model_fields["most_features"].default:
            del data["most_features"]  # no feature depends on it, and earlier versions reject it
        return dump_yaml(_without_empty(data))


def digest(decisive: Mapping[str, Any]) -> str:
    """SHA-256, in hex, of JSON values."""
    canonical = json.dumps(decisive, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()


# The keys that the parts of a spec had when format version 1 was fixed.
_FIRST_KEYS = frozenset({"name", "type", "missing", "transform", "edges", "of"})


def _decisive(part: InputField | Cross | Window) -> dict[str, Any]:
    """The entries of a part of a spec in the fingerprint.

    Keys newer than `_FIRST_KEYS` enter only if they differ from their defaults, so that a new key does not
    change the fingerprints of specs that do not use it: their models and data sets stay usable. The content
    of a vocabulary enters through what is learnt from it.
    """
    fields = type(part).model_fields
    return {
        key: value
        for key, value in part.model_dump(exclude={"column", "time", "vocabulary"}).items()
        if key in _FIRST_KEYS or value != fields[key].get_default(call_default_factory=True)
    }


def _without_empty(data: dict[str, Any]) -> dict[str, Any]:
    """`data` without keys, at any depth, whose value is None or empty."""
    kept: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, dict) and value:
            kept[key] = _without_empty(value)
        elif isinstance(value, list) and value:
            kept[key] = [_without_empty(item) if isinstance(item, dict) else item for item in value]
        elif value is not None and value not in ([], {}):
            kept[key] = value
    return kept


def _check_carried(spec: FeatureSpec) -> None:
    for key in ("label", "weight", "fields", "crosses", "windows", "scales"):
        if getattr(spec, key):
            raise misfit(
                (key,), f"{spec.source.format} data carries its own label and features; remove this key"
            )


def _check_columns(spec: FeatureSpec) -> None:
    if spec.label is None:
        raise misfit((), "`label` is missing: name the column that tells whether there was a click")
    if spec.weight == spec.label:
        raise misfit(("weight",), f"{spec.weight!r} is the label's column already")
    places: list[tuple[Place, str]] = []
    for i, field in enumerate(spec.fields):
        own: Place = ("fields", i, "column" if field.column else "name")
        places += [(own if name == column_of(field) else own[:2], name) for name in columns_of(field)]
    for i, window in enumerate(spec.windows):
        places.append((("windows", i, "time"), window.time))
        places += [(("windows", i, "key", k), name) for k, name in enumerate(window.key)]
    for place, name in places:
        if name in (spec.label, spec.weight):
            why = "it cannot be a field too" if place[0] == "fields" else "a row is not to look at it"
            raise misfit(place, f"column {name!r} is the label or weight; {why}")
    places += [((key,), name) for key in ("label", "weight") if (name := getattr(spec, key)) is not None]
    for place, name in places if spec.windows else ():
        if name == SERVED:
            raise misfit(place, f"column {name!r} is where servers log the features of windows; rename it")
    used = {name for _, name in places}
    for i, name in enumerate(spec.source.ignore):
        if name in used:
            raise misfit(("source", "ignore", i), f"column {name!r} is not ignored but used; remove it here")
    for place, name in places if spec.source.columns else ():
        if name not in spec.source.columns:
            raise misfit(place, f"there is no column {name!r} in source.columns")


def _check_fields(spec: FeatureSpec) -> None:
    if not spec.fields:
        raise misfit((), "`fields` is missing: list at least one field")
    names = {field.name for field in spec.fields}
    for i, window in enumerate(spec.windows):
        for of_window in window.fields:
            if of_window.name in names:
                raise misfit(("windows", i), f"its feature {of_window.name!r} has the name of another field")
            names.add(of_window.name)


def _check_scales(spec: FeatureSpec) -> None:
    names = dict.fromkeys(spec.names)
    for name, scale in spec.scales.items():
        if (problem := wrong_scale(name, scale, names)) is not None:
            raise misfit(("scales", name), problem)


def _check_most(spec: FeatureSpec) -> None:
    # Unbounded lists are checked row by row.
    bounds = {field.name: field.at_most or 0 for field in spec.all_fields}
    most = int(spec.bias) + sum(bounds.values())
    for cross in spec.crosses:
        most += math.prod(math.comb(bounds[part], times) for part, times in Counter(cross.of).items())
    if most > spec.most_features:
        raise misfit(
            ("crosses",) if spec.crosses else ("fields",),
            f"an example can have {most:,} features, more than the {spec.most_features:,} of"
            f" `most_features`; cross fewer fields, set `most` of lists, or raise that",
        )
