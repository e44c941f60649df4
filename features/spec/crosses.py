"""The crosses of a spec: written out, or in short, with groups and patterns of fields, to be expanded."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import chain, combinations, groupby, product
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidatorFunctionWrapHandler, WrapValidator

from ctr.features.spec.fields import FROZEN, InputField, Name, Names, misfit
from ctr.features.spec.yaml_text import Place

_TIMES = " * "
_BETWEEN = re.compile(r"\s+\*\s+")
_INLINE = re.compile(r"\[([^\]]*)\]")
_MOST_TRIED = (
    250_000  # combinations in all lines of a spec, including repeated ones and fields with themselves
)


class Cross(BaseModel):
    """One feature for each combination of features of several fields."""

    model_config = FROZEN

    name: Name
    of: Annotated[tuple[Name, ...], Field(strict=False, min_length=2)]
    """Names of fields; their order matters to the hash. A field with several values may directly follow
    itself: the cross then has every combination of that many of its values."""


def _as_written(data: Any, handler: ValidatorFunctionWrapHandler) -> Any:
    return data if isinstance(data, str) else handler(data)


Crosses = Annotated[tuple[Annotated[Cross, WrapValidator(_as_written)], ...], Field(strict=False)]
"""In YAML, a list of mappings or texts such as `site * hour`; in a spec, all crosses that these stand for."""


class CrossExpansion:
    """Expands the crosses of a spec, which may be written out or in short."""

    def __init__(self, fields: Mapping[str, InputField], groups: Mapping[str, Names], most: int) -> None:
        """`most`: how many crosses a line may stand for. Raises `misfit` for an invalid group."""
        self._fields, self._most = fields, most
        self._tried = 0  # combinations in the lines so far
        self._members: dict[
            str, tuple[str, ...]
        ] = {}  # empty while groups are read: a group cannot have groups
        self._members = {group: self._members_of(group, parts) for group, parts in groups.items()}

    def expand(self, written: Sequence[Cross | str]) -> tuple[Cross, ...]:
        """All crosses of the spec. Raises `misfit` for an invalid one, or a line that stands for too many."""
        expanded: list[Cross] = []
        origins: dict[str, int] = {}
        by_fields: dict[tuple[str, ...], tuple[int, bool]] = {}
        for i, each in enumerate(written):
            short = isinstance(each, str)
            place: Place = ("crosses", i) if short else ("crosses", i, "name")
            for cross in self._in_short(each, i) if isinstance(each, str) else [each]:
                self._check(cross, i)
                if cross.name in self._fields:
                    raise misfit(place, f"{cross.name!r} is the name of a field already")
                if cross.name in origins:
                    where = (
                        "" if origins[cross.name] == i or not short else f" (crosses[{origins[cross.name]}])"
                    )
                    raise misfit(place, f"{cross.name!r} is there twice{where}; names must be distinct")
                same, same_short = by_fields.setdefault(tuple(sorted(cross.of)), (i, short))
                if same != i and (short or same_short):
                    raise misfit(
                        place, f"{_TIMES.join(cross.of)!r} is there already, as crosses[{same}] has it"
                    )
                origins[cross.name] = i
                expanded.append(cross)
        return tuple(expanded)

    def _check(self, cross: Cross, i: int) -> None:
        for k, part in enumerate(cross.of):
            place: Place = ("crosses", i, "of", k)
            if part not in self._fields:
                raise misfit(place, f"there is no field {part!r}; cross names of `fields`")
            field = self._fields[part]
            if field.not_crossed is not None:
                raise misfit(place, f"{part!r} {field.not_crossed}")
            if part in cross.of[:k]:
                if not field.several:
                    raise misfit(place, f"{part!r} is there twice, but an example has only one value of it")
                if cross.of[k - 1] != part:
                    raise misfit(place, f"{part!r} is there already; write it right behind itself")

    def _members_of(self, group: str, parts: Names) -> tuple[str, ...]:
        """The fields of a group."""
        if group in self._fields:
            raise misfit(("groups", group), f"{group!r} is the name of a field already")
        if not parts:
            raise misfit(("groups", group), "a group has at least one field")
        members: tuple[str, ...] = ()
        for k, part in enumerate(parts):
            names = self._named(part)
            if not names:
                raise misfit(("groups", group, k), f"there is no field {part!r}; group names of `fields`")
            if twice := [name for name in names if name in members]:
                raise misfit(("groups", group, k), f"{twice[0]!r} is there twice; names must be distinct")
            members += names
        return members

    def _named(self, name: str) -> tuple[str, ...]:
        """The field or group of this name, or the fields to cross that match a pattern (`user_*`)."""
        if name in self._fields:
            return (name,)
        if name in self._members or "*" not in name:
            return self._members.get(name, ())
        crossed = (field for field in self._fields.values() if field.not_crossed is None)
        return tuple(field.name for field in crossed if fnmatchcase(field.name, name))

    def _fields_of(self, part: str, place: Place) -> tuple[str, ...]:
        """The fields that a part of a cross stands for: a field, a group, a pattern, or `[field other_*]`."""
        inline = None if part in self._fields or part in self._members else _INLINE.fullmatch(part)
        if inline is None:
            names, remedy = [part], "; see `fields`"
        else:  # names with blanks need commas between them
            names = [name.strip() for name in inline[1].split(",")] if "," in inline[1] else inline[1].split()
            remedy = f", as in {part!r}"
        fields: dict[str, None] = {}
        for name in filter(None, names):
            if not (meant := self._named(name)):
                raise misfit(place, f"there is no field, group or pattern of fields {name!r}{remedy}")
            fields |= dict.fromkeys(meant)
        if not fields:
            raise misfit(place, f"{part!r} is empty; write fields into it, such as [site hour]")
        return tuple(fields)

    def _in_short(self, text: str, i: int) -> list[Cross]:
        """All crosses that a text such as `site * user_*` stands for, without duplicates."""
        place: Place = ("crosses", i)
        parts = _BETWEEN.split(text.strip())
        if len(parts) < 2:
            raise misfit(
                place, f"{text!r} is no cross; write two fields or more with ` * ` between: site * hour"
            )
        runs = [(part, self._fields_of(part, place), len(list(run))) for part, run in groupby(parts)]
        tried = math.prod(
            1 if part in self._fields else max(math.comb(len(names), times), 1) for part, names, times in runs
        )
        if self._tried + tried > _MOST_TRIED:
            others = f" besides the {self._tried:,} of other lines" if self._tried else ""
            raise misfit(
                place,
                f"{text!r} stands for up to {tried:,} crosses{others}, more than the {_MOST_TRIED:,} that a"
                " spec can have in short; cross fewer fields",
            )
        self._tried += tried
        choices = [
            [(part,) * times] if part in self._fields else list(combinations(names, times))
            for part, names, times in runs
        ]
        literal = Counter(parts)
        crosses: dict[frozenset[str], tuple[str, ...]] = {}
        for chosen in product(*choices):
            of = tuple(chain(*chosen))
            which = frozenset(of)
            # A field that a group or pattern stands for must not occur twice.
            if len(which) == len(of) or all(n <= max(literal[name], 1) for name, n in Counter(of).items()):
                crosses.setdefault(which, of)
        if not crosses:
            raise misfit(place, f"{text!r} leaves nothing to cross: its parts are the same fields")
        if len(crosses) > self._most:
            raise misfit(
                place,
                f"{text!r} stands for {len(crosses):,} crosses, more than the {self._most:,} of"
                " `most_features`; cross fewer fields, or raise that",
            )
        return [Cross(name=_TIMES.join(of), of=of) for of in crosses.values()]
