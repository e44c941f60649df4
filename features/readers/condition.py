"""`RowChoice`: the rows that meet a condition on their columns, or those that do not."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ctr.errors import DataError, SpecError
from ctr.features.block import Block
from ctr.features.columns import Column, Columns
from ctr.features.readers.condition_kernels import compare_texts
from ctr.features.spec import FeatureSpec, TimeField, columns_of
from ctr.features.text import Cells, RowStatus, expected_time, is_decimal

_OPERATORS: Mapping[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_QUOTED = r'"[^"]*"' + r"|'[^']*'"
_TERM = re.compile(
    rf"\s*(?P<column>{_QUOTED}|[^\"'=<>!]+?)\s*(?P<sign>==|!=|<=|>=|=|<|>)(?!\s*[=<>!])\s*(?P<value>.*?)\s*",
    re.DOTALL,
)
_WORD = re.compile(rf"({_QUOTED})|\s(and|or)(?=\s|$)", re.IGNORECASE)


class Time(NamedTuple):
    """A time to compare with."""

    value: int
    """Microseconds since 1970, in UTC."""
    format: str | None
    """How the column writes its times; None: ISO 8601."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """`column sign value`.

    Columns that have times by the spec are compared as times. Others are compared as numbers if the value is
    a number, otherwise as text, byte by byte.
    """

    column: str
    sign: str
    value: str
    number: float | None
    time: Time | None = None

    def holds(self, column: Column) -> NDArray[np.bool_]:
        """bool[rows]; False if the value is missing, or not a number or time where these are compared."""
        if self.time is not None or self.number is not None:
            typed = column.numbers if self.time is None else column.times(self.time.format)
            bound = self.number if self.time is None else self.time.value
            compared: NDArray[np.bool_] = _OPERATORS[self.sign](typed.values, bound)
            return np.asarray(compared & typed.present & (typed.problem == 0), np.bool_)
        order = np.zeros(len(column), np.int8)
        value = np.frombuffer(self.value.encode(), np.uint8)
        compare_texts(column.text, value, order)
        holds: NDArray[np.bool_] = _OPERATORS[self.sign](order, 0)
        return np.asarray(holds & (column.lengths > 0), np.bool_)


@dataclass(frozen=True)
class RowChoice:
    """The rows that meet a condition, or those that do not."""

    text: str
    """The condition, as a user wrote it."""
    alternatives: Sequence[Sequence[Comparison]]
    """Comparisons joined by `and`, in groups joined by `or`."""
    meets: bool = True

    @staticmethod
    def parse(text: str, *, meets: bool = True) -> RowChoice:
        """Parses a condition such as `click_time >= 2017-11-09 and site != "a or b"`. Raises SpecError."""
        alternatives: list[list[Comparison]] = [[]]
        at = 0
        for word in [*_WORD.finditer(text), None]:
            if word is not None and word[2] is None:
                continue
            alternatives[-1].append(_comparison(text[at : None if word is None else word.start()], text))
            if word is not None:
                at = word.end()
                if word[2].lower() == "or":
                    alternatives.append([])
        return RowChoice(text, alternatives, meets)

    @cached_property
    def columns(self) -> list[str]:
        """The columns it compares, without duplicates."""
        return list(dict.fromkeys(each.column for terms in self.alternatives for each in terms))

    def with_times(self, spec: FeatureSpec) -> RowChoice:
        """This choice for data of `spec`, whose time fields and windows say which columns have times.

        A time may be written as in the column, or in ISO 8601. Raises SpecError if it is not a valid time.
        """
        formats = dict(_times_in(spec))

        def typed(each: Comparison) -> Comparison:
            time = self._time(each, formats[each.column]) if each.column in formats else None
            return replace(each, time=time)

        return replace(self, alternatives=[[*map(typed, terms)] for terms in self.alternatives])

    def _time(self, comparison: Comparison, time_format: str | None) -> Time:
        value = Column.of(comparison.value)
        for written_as in (None, time_format):
            times = value.times(written_as)
            if times.present[0]:
                return Time(int(times.values[0]), time_format)
        expected = " or ".join(dict.fromkeys(map(expected_time, (None, time_format))))
        raise SpecError(
            f"the condition {self.text!r}: column {comparison.column!r} has times, and {comparison.value!r}"
            f" is not a valid time; write {expected}."
        )

    def splits_nothing(self, met_by: Literal["no row", "every row"]) -> DataError:
        """The error of a hold-out with no row, or with every row."""
        return DataError(
            f"the hold-out has {met_by}: {met_by} meets {self.text!r}; check the condition, and how its"
            " column is written."
        )

    def applied(self, block: Block, columns: Sequence[str], wanted: int) -> Block:
        """The block with its first `wanted` columns; rows that are not chosen are marked.

        Rows that cannot be read do not meet the condition.
        """
        compared = Columns(block.cells, block.status, slice(None), columns)
        holds = np.logical_or.reduce(
            [
                np.logical_and.reduce([each.holds(compared[each.column]) for each in terms])
                for terms in self.alternatives
            ]
        )
        block.status[holds != self.meets] = RowStatus.ELSEWHERE
        if wanted == len(columns):
            return block
        cells = block.cells
        starts, ends = (np.ascontiguousarray(each[:, :wanted]) for each in (cells.starts, cells.ends))
        return replace(block, cells=Cells(cells.buffer, starts, ends))


def _times_in(spec: FeatureSpec) -> Iterator[tuple[str, str | None]]:
    """Each column that time fields or windows read as times, with their format."""
    for window in spec.windows:
        yield window.time, window.format
    for field in spec.fields:
        if isinstance(field, TimeField):
            yield from ((column, field.format) for column in columns_of(field))


def _comparison(part: str, text: str) -> Comparison:
    term = _TERM.fullmatch(part)
    if term is None or not term["value"]:
        raise SpecError(
            f"the condition {text!r}: {part.strip()!r} is no comparison; write such as `click_time >="
            f" 2017-11-09`, with one of = != < <= > >=, and join several by `and` or `or`."
        )
    column, value = term["column"], term["value"]
    quoted = re.fullmatch(_QUOTED, value) is not None
    number = float(value) if not quoted and is_decimal(value) else None
    return Comparison(_unquoted(column), term["sign"], _unquoted(value), number)


def _unquoted(text: str) -> str:
    return text[1:-1] if re.fullmatch(_QUOTED, text) else text
