"""The crosses of a spec: written out, or in short, with groups and patterns of fields, and then expanded."""

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
_MOST_TRIED = 250_000  # combinations in all lines of a spec, the same ones and a field with itself included


class Cross(BaseModel):
    """One feature for each combination of the features of several fields."""

    model_config = FROZEN

    name: Name
    of: Annotated[tuple[Name, ...], Field(strict=False, min_length=2)]
    """Names of fields; their order matters to the hash. A field with several values may be there again, right
    behind itself: that is every combination of so many of its values."""


def _as_written(data: Any, handler: ValidatorFunctionWrapHandler) -> Any:
    return data if isinstance(data, str) else handler(data)


Crosses = Annotated[tuple[Annotated[Cross, WrapValidator(_as_written)], ...], Field(strict=False)]
"""In YAML a list of mappings or text such as `site * hour`; in a spec, all crosses that these are."""


def expand_crosses(
    written: Sequence[Cross | str], fields: Mapping[str, InputField], groups: Mapping[str, Names], most: int
) -> tuple[Cross, ...]:
    """All crosses of a spec; raises `misfit` for one that is wrong, or that makes more than `most`."""
    members = _members(fields, groups)
    expanded: list[Cross] = []
    origins: dict[str, int] = {}
    by_fields: dict[tuple[str, ...], tuple[int, bool]] = {}
    budget = _MOST_TRIED
    for i, one in enumerate(written):
        short = isinstance(one, str)
        if isinstance(one, str):
            choices = _choices(one, i, fields, members, budget)
            budget -= math.prod(map(len, choices))
            meant = _combinations(one, i, choices, most)
        else:
            meant = [one]
        for cross in meant:
            place: Place = ("crosses", i) if short else ("crosses", i, "name")
            _check_cross(cross, i, fields)
            if cross.name in fields:
                raise misfit(place, f"{cross.name!r} is the name of a field already")
            if cross.name in origins:
                where = "" if origins[cross.name] == i or not short else f" (crosses[{origins[cross.name]}])"
                raise misfit(place, f"{cross.name!r} is there twice{where}; names must be distinct")
            same, same_short = by_fields.setdefault(tuple(sorted(cross.of)), (i, short))
            if same != i and (short or same_short):
                raise misfit(place, f"{_TIMES.join(cross.of)!r} is there already, as crosses[{same}] has it")
            origins[cross.name] = i
            expanded.append(cross)
    return tuple(expanded)


def _check_cross(cross: Cross, i: int, fields: Mapping[str, InputField]) -> None:
    for k, part in enumerate(cross.of):
        place: Place = ("crosses", i, "of", k)
        if part not in fields:
            raise misfit(place, f"there is no field {part!r}; cross names of `fields`")
        if fields[part].not_crossed is not None:
            raise misfit(place, f"{part!r} {fields[part].not_crossed}")
        if part in cross.of[:k]:
            if not fields[part].several:
                raise misfit(place, f"{part!r} is there twice, but an example has only one value of it")
            if cross.of[k - 1] != part:
                raise misfit(place, f"{part!r} is there already; write it right behind itself")


def _members(fields: Mapping[str, InputField], groups: Mapping[str, Names]) -> dict[str, tuple[str, ...]]:
    """The fields of each group."""
    members: dict[str, tuple[str, ...]] = {}
    for group, parts in groups.items():
        if group in fields:
            raise misfit(("groups", group), f"{group!r} is the name of a field already")
        if not parts:
            raise misfit(("groups", group), "a group has at least one field")
        members[group] = ()
        for k, part in enumerate(parts):
            names = (part,) if part in fields else _matching(part, fields)
            if not names:
                raise misfit(("groups", group, k), f"there is no field {part!r}; group names of `fields`")
            if twice := [name for name in names if name in members[group]]:
                raise misfit(("groups", group, k), f"{twice[0]!r} is there twice; names must be distinct")
            members[group] += names
    return members


def _matching(pattern: str, fields: Mapping[str, InputField]) -> tuple[str, ...]:
    """The fields that a pattern such as `user_*` stands for: those that can be crossed."""
    crossed = (name for name, field in fields.items() if field.not_crossed is None)
    return tuple(name for name in crossed if "*" in pattern and fnmatchcase(name, pattern))


def _choices(
    text: str, i: int, fields: Mapping[str, InputField], members: Mapping[str, tuple[str, ...]], budget: int
) -> list[list[tuple[str, ...]]]:
    """For each part of text such as `site * user_*`, or run of equal parts, the fields that it may be.

    Raises `misfit` if there would be more than `budget` combinations.
    """
    place: Place = ("crosses", i)
    parts = _BETWEEN.split(text.strip())
    if len(parts) < 2:
        raise misfit(place, f"{text!r} is no cross; write two fields or more with ` * ` between: site * hour")
    runs = [(part, len(list(run))) for part, run in groupby(parts)]
    meant = [(part,) if part in fields else _named(part, place, fields, members) for part, _ in runs]
    tried = math.prod(
        1 if part in fields else max(math.comb(len(names), times), 1)
        for (part, times), names in zip(runs, meant, strict=True)
    )
    if tried > budget:
        others = f" besides the {_MOST_TRIED - budget:,} of other lines" if budget < _MOST_TRIED else ""
        raise misfit(
            place,
            f"{text!r} stands for up to {tried:,} crosses{others}, more than the {_MOST_TRIED:,} that a spec"
            " can have in short; cross fewer fields",
        )
    return [
        [(part,) * times] if part in fields else list(combinations(names, times))
        for (part, times), names in zip(runs, meant, strict=True)
    ]


def _named(
    part: str, place: Place, fields: Mapping[str, InputField], members: Mapping[str, tuple[str, ...]]
) -> tuple[str, ...]:
    """The fields that a group, `[field other_*]`, or a pattern stands for."""
    inline = _INLINE.fullmatch(part)
    if part in members or inline is None:
        names = members.get(part) or _matching(part, fields)
        if not names:
            raise misfit(place, f"there is no field, group or pattern of fields {part!r}; see `fields`")
        return names
    # Names with blanks need commas between them.
    listed = [name.strip() for name in inline[1].split(",")] if "," in inline[1] else inline[1].split()
    listed_fields: dict[str, None] = {}
    for name in filter(None, listed):
        names = (name,) if name in fields else members.get(name) or _matching(name, fields)
        if not names:
            raise misfit(place, f"there is no field, group or pattern of fields {name!r}, as in {part!r}")
        listed_fields |= dict.fromkeys(names)
    if not listed_fields:
        raise misfit(place, f"{part!r} is empty; write fields into it, such as [site hour]")
    return tuple(listed_fields)


def _combinations(text: str, i: int, choices: Sequence[Sequence[tuple[str, ...]]], most: int) -> list[Cross]:
    """Every combination of the choices of text such as `site * user_*`, each once."""
    place: Place = ("crosses", i)
    literal = Counter(_BETWEEN.split(text.strip()))
    crosses: dict[frozenset[str], tuple[str, ...]] = {}
    for chosen in product(*choices):
        of = tuple(chain(*chosen))
        which = frozenset(of)
        # A field that a group or pattern stands for must not occur twice.
        if len(which) == len(of) or all(n <= max(literal[name], 1) for name, n in Counter(of).items()):
            crosses.setdefault(which, of)
    if not crosses:
        raise misfit(place, f"{text!r} leaves nothing to cross: its parts are the same fields")
    if len(crosses) > most:
        raise misfit(
            place,
            f"{text!r} stands for {len(crosses):,} crosses, more than the {most:,} of `most_features`; cross"
            " fewer fields, or raise that",
        )
    return [Cross(name=_TIMES.join(of), of=of) for of in crosses.values()]
