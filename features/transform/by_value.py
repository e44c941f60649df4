"""`ByValue`: features of columns with dictionaries; each distinct text is hashed once."""

from __future__ import annotations

import threading
from collections.abc import Container, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ctr.features.batches import Slots, slot_dtype
from ctr.features.columns import Column, TokenCounts, read_only
from ctr.features.text import CodedCells, Texts
from ctr.features.transform.field_features import FieldFeatures
from ctr.features.transform.plan_kernels import ValueTables


class _Table(NamedTuple):
    """The features that a field makes of the texts of a dictionary."""

    texts: Texts
    slots: Slots
    """0 where a text has no feature."""
    hashes: NDArray[np.uint64]
    present: NDArray[np.bool_]
    is_sound: bool
    """Whether none of the texts is a bad value."""


class _CachedTables(NamedTuple):
    """The tables of the latest dictionaries."""

    dictionaries: Mapping[int, Texts]
    of_fields: Mapping[int, _Table]
    joined: ValueTables | None


class ByValue:
    """Features of coded columns, for fields with at most one feature. May be shared by threads."""

    def __init__(
        self, fields: Sequence[FieldFeatures], columns: Sequence[int], bits: int, crossed: Container[str]
    ) -> None:
        """`columns`: for each field, its column if the spec's `by_value` has it, otherwise -1; `crossed`: the
        names of fields in crosses, which need hashes as well."""
        self._fields = fields
        self._columns = columns
        self._mask, self._slot_dtype = np.uint64((1 << bits) - 1), slot_dtype(bits)
        self._crossed = [each.field.name in crossed for each in fields]
        self._thread = threading.local()

    def of(self, cells: CodedCells) -> ValueTables | None:
        """The tables of the fields that read coded columns, with the codes of these cells.

        None if the cells must be read one by one: a dictionary has a bad value, which is reported with its
        row, or a coded column is not in the spec's `by_value`.
        """
        cached: _CachedTables | None = getattr(self._thread, "cached", None)
        dictionaries = cells.columns.dictionaries
        if cached is None or cached.dictionaries != dictionaries:  # `Texts` compare by identity
            before = {} if cached is None else cached.of_fields
            cached = self._thread.cached = self._look_up(dictionaries, before)
        if cached.joined is None:
            return None
        return cached.joined._replace(codes=cells.columns.codes, first=cells.first)

    def _look_up(self, dictionaries: Mapping[int, Texts], before: Mapping[int, _Table]) -> _CachedTables:
        tables = {}
        for f, column in enumerate(self._columns):
            if (texts := dictionaries.get(column)) is not None:
                tables[f] = before[f] if f in before and before[f].texts is texts else self._table(f, texts)
        if set(dictionaries) - {self._columns[f] for f in tables} or not all(
            table.is_sound for table in tables.values()
        ):
            return _CachedTables(dictionaries, tables, None)
        places = list(dictionaries)
        every = list(tables.values())
        crossed = [self._crossed[f] for f in tables]
        hashed = every if any(crossed) else []
        joined = ValueTables(
            fields=np.array(list(tables), np.int64),
            codes=np.empty((0, 0), np.int32),
            first=0,
            columns=np.array([places.index(self._columns[f]) for f in tables], np.int64),
            starts=np.array([0, *accumulate(table.slots.size for table in every)][:-1], np.uint64),
            slots=np.concatenate([table.slots for table in every]),
            crossed=np.array(crossed, np.bool_),
            hashes=np.concatenate([np.empty(0, np.uint64), *(table.hashes for table in hashed)]),
            present=np.concatenate([np.empty(0, np.bool_), *(table.present for table in hashed)]),
        )
        return _CachedTables(dictionaries, tables, joined)

    def _table(self, field: int, texts: Texts) -> _Table:
        status = np.zeros(texts.starts.size, np.uint8)
        column = Column(read_only(texts.buffer), texts.starts, texts.ends, status)
        features = self._fields[field].make(column)
        assert not isinstance(features, TokenCounts)
        hashes, present = np.empty(status.size, np.uint64), np.empty(status.size, np.bool_)
        self._fields[field].write(features, hashes, present)
        slots = hashes & self._mask
        slots[slots == 0] = 1
        slots[~present] = 0
        return _Table(texts, slots.astype(self._slot_dtype), hashes, present, not features.problem.any())
