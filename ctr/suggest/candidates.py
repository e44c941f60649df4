"""`Candidate`: a cross that may be worth having, and which there are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from ctr.suggest.rows import Rows
from ctr.suggest.scorer import Score
from ctr.suggest.values import Values

Known = frozenset[frozenset[str]]
"""Crosses that the spec has already, as sets of fields."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A cross of two columns, of which one may be a cross itself."""

    fields: tuple[int, ...]
    """By their place in `Rows.fields`, rising."""
    one: Values
    other: Values


def pairs(rows: Rows, known: Known) -> list[Candidate]:
    """Every two fields."""
    columns = [(f, values) for f, values in enumerate(rows.values) if _varies(values)]
    every = [Candidate((f, g), one, other) for (f, one), (g, other) in combinations(columns, 2)]
    return [each for each in every if _worth_scoring(each, rows, known)]


def triples(rows: Rows, known: Known, found: Sequence[tuple[Candidate, Values]]) -> list[Candidate]:
    """Each of the pairs found, which come with their values, with one field more."""
    every = {}
    for pair, values in found:
        for f, other in enumerate(rows.values):
            fields = tuple(sorted((*pair.fields, f)))
            if f not in pair.fields and _varies(other) and fields not in every:
                every[fields] = Candidate(fields, values, other)
    return [each for _, each in sorted(every.items()) if _worth_scoring(each, rows, known)]


def best_apart(ranked: Sequence[tuple[Score, Candidate]], most: int) -> list[tuple[Score, Candidate]]:
    """The first ones that bring something for sure and have no field in common: those may bring the same."""
    picked: list[tuple[Score, Candidate]] = []
    used: set[int] = set()
    for score, candidate in ranked:
        if len(picked) == most or score.sure <= 0:
            break
        if used.isdisjoint(candidate.fields):
            picked.append((score, candidate))
            used.update(candidate.fields)
    return picked


def _varies(values: Values) -> bool:
    return bool(values.numbers.min(initial=0) != values.numbers.max(initial=0))


def _worth_scoring(candidate: Candidate, rows: Rows, known: Known) -> bool:
    """Whether the spec lacks the cross, and a row may expect another one with the same value of it."""
    if frozenset(rows.fields[f] for f in candidate.fields) in known:
        return False
    return candidate.one.alike * candidate.other.alike * len(rows) >= 1
