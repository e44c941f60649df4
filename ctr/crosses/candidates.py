"""`Candidate`: a cross that may be worth having, and which there are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from ctr.crosses.rows import Rows, Values

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
    """Every two fields; two numbers with fine and coarse buckets are both in fine ones or in coarse ones."""
    every = []
    for (f, one), (g, other) in combinations(_columns(rows), 2):
        sizes = {rows.fields[each] == rows.of_fields[each] for each in (f, g) if _is_number(rows, each)}
        if len(sizes) < 2:
            every.append(Candidate((f, g), one, other))
    return [each for each in every if _worth_scoring(each, rows, known)]


def triples(rows: Rows, known: Known, found: Sequence[tuple[Candidate, Values]]) -> list[Candidate]:
    """Each of the pairs found, which come with their values, with one field more."""
    every = {}
    for pair, values in found:
        for f, other in _columns(rows):
            fields = tuple(sorted((*pair.fields, f)))
            if f not in pair.fields and fields not in every:
                every[fields] = Candidate(fields, values, other)
    return [each for _, each in sorted(every.items()) if _worth_scoring(each, rows, known)]


def fields_of(candidate: Candidate, rows: Rows) -> frozenset[str]:
    """The fields of the spec that it is of; it needs no other cross of the same."""
    return frozenset(rows.of_fields[f] for f in candidate.fields)


def _columns(rows: Rows) -> list[tuple[int, Values]]:
    """The columns, by number, that say something."""
    every = enumerate(rows.values)
    return [(f, each) for f, each in every if each.numbers.min(initial=0) != each.numbers.max(initial=0)]


def _is_number(rows: Rows, f: int) -> bool:
    """Whether there is another column of the same field, with buckets of another size."""
    return rows.of_fields.count(rows.of_fields[f]) > 1


def _worth_scoring(candidate: Candidate, rows: Rows, known: Known) -> bool:
    """Whether the spec lacks the cross, and a row may expect another one with the same value of it."""
    of = fields_of(candidate, rows)
    if of in known or len(of) < len(candidate.fields):
        return False
    return candidate.one.alike * candidate.other.alike * len(rows) >= 1
