"""`ByValue`: the features of columns whose distinct texts are known, each of which is hashed once."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from features.columns import Bag, Column
from features.text import CodedCells, Texts
from features.transform.missing import Make
from features.transform.plan import made_of, plan_of_others, plan_of_texts, scratch_of
from features.transform.step_kernels import Coded, Plan, hash_texts


class _Table(NamedTuple):
    """What a field makes of each text of a dictionary."""

    texts: Texts
    hashes: NDArray[np.uint64]
    present: NDArray[np.bool_]
    is_sound: bool
    """Whether none of them is bad."""


class _Known(NamedTuple):
    """What is known of the dictionaries that came last."""

    dictionaries: Mapping[int, Texts]
    tables: Mapping[int, _Table]
    """By field."""
    found: tuple[Plan, Coded] | None


class ByValue:
    """What a spec's fields with at most one feature make of coded columns. May be shared by threads."""

    def __init__(self, plan: Plan, columns: Sequence[int], makers: Mapping[int, Make]) -> None:
        """`columns`: of each field of `plan`, its column if that is in the spec's `by_value`, or else -1;
        `makers`: the steps before the kernels, by field."""
        self._plan = plan
        self._columns = columns
        self._makers = makers
        self._thread = threading.local()

    def of(self, cells: CodedCells) -> tuple[Plan, Coded] | None:
        """The plan for all other fields, and what these make of the cells.

        None: the cells are to be worked on one by one, for there is a bad value, to be told with its row.
        """
        known: _Known | None = getattr(self._thread, "known", None)
        dictionaries = cells.columns.dictionaries
        if known is None or known.dictionaries != dictionaries:  # texts are only equal to themselves
            known = self._thread.known = self._look_up(dictionaries, {} if known is None else known.tables)
        if known.found is None:
            return None
        plan, coded = known.found
        return plan, coded._replace(codes=cells.columns.codes, first=cells.first)

    def _look_up(self, dictionaries: Mapping[int, Texts], before: Mapping[int, _Table]) -> _Known:
        tables = {}
        for f, column in enumerate(self._columns):
            if (texts := dictionaries.get(column)) is not None:
                tables[f] = before[f] if f in before and before[f].texts is texts else self._table(f, texts)
        if not tables.keys() or not all(table.is_sound for table in tables.values()):
            return _Known(dictionaries, tables, None)
        if set(dictionaries) - {self._columns[f] for f in tables}:
            return _Known(dictionaries, tables, None)
        places = list(dictionaries)
        coded = Coded(
            codes=np.empty((0, 0), np.int32),
            first=0,
            columns=np.array([places.index(self._columns[f]) for f in tables], np.int64),
            starts=np.array([0, *accumulate(t.hashes.size for t in tables.values())][:-1], np.uint64),
            hashes=np.concatenate([table.hashes for table in tables.values()]),
            present=np.concatenate([table.present for table in tables.values()]),
        )
        return _Known(dictionaries, tables, (plan_of_others(self._plan, list(tables)), coded))

    def _table(self, field: int, texts: Texts) -> _Table:
        size = texts.starts.size
        plan = plan_of_texts(self._plan, field)
        buffer = texts.buffer.view()
        buffer.flags.writeable = False  # as in `Transform.append`
        hashes, present, status = (
            np.empty(size, np.uint64),
            np.empty(size, np.bool_),
            np.zeros(size, np.uint8),
        )
        found = []
        if field in self._makers:
            made = self._makers[field](Column(buffer, texts.starts, texts.ends, status))
            assert not isinstance(made, Bag)
            status |= made.problem
            found.append((0, made))
        hash_texts(
            buffer,
            texts.starts,
            texts.ends,
            status,
            plan,
            made_of(0, size, found),
            scratch_of(plan),
            hashes,
            present,
        )
        return _Table(texts, hashes, present, not status.any())
