"""`ByValue`: the features of columns whose distinct texts are known, each of which is hashed once."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ctr.features.batches import Slots, slot_dtype
from ctr.features.columns import Bag, Column
from ctr.features.text import CodedCells, Texts
from ctr.features.transform.coded_kernels import CodedSlots, slots_of
from ctr.features.transform.field_kernels import TILE
from ctr.features.transform.missing import Make
from ctr.features.transform.plan import Step, plan_of_others, plan_of_texts, scratch_of, step_features
from ctr.features.transform.step_kernels import Coded, Plan, hash_texts


class _Table(NamedTuple):
    """What a field makes of each text of a dictionary."""

    texts: Texts
    hashes: NDArray[np.uint64]
    present: NDArray[np.bool_]
    is_sound: bool
    """Whether none of them is bad."""


class _SlotTable(NamedTuple):
    """The slots of several fields' texts, in one array with room for each field's."""

    slots: Slots
    rooms: Mapping[int, slice]
    """By field."""


class _Known(NamedTuple):
    """What is known of the dictionaries that came last."""

    dictionaries: Mapping[int, Texts]
    tables: Mapping[int, _Table]
    """By field."""
    found: tuple[Plan, Coded] | CodedSlots | None
    slots: _SlotTable


class ByValue:
    """What a spec's fields with at most one feature make of coded columns. May be shared by threads."""

    def __init__(
        self, plan: Plan, columns: Sequence[int], makers: Mapping[int, Make], *, alone: bool
    ) -> None:
        """`columns`: of each field of `plan`, its column if that is in the spec's `by_value`, or else -1;
        `makers`: the steps before the kernels, by field; `alone`: no feature has a value."""
        self._plan = plan
        self._columns = columns
        self._makers = makers
        self._thread = threading.local()
        self._no_slots = _SlotTable(np.empty(0, slot_dtype(int(plan.mask).bit_length())), {})
        # The slots of all fields, and nothing else, are an example's features.
        self._only_slots = alone and plan.crosses.seeds.size == 0

    def of(self, cells: CodedCells) -> tuple[Plan, Coded] | CodedSlots | None:
        """The plan for all other fields, and what these make of the cells; if there are no others, the slots.

        None: the cells are to be worked on one by one, for there is a bad value, to be told with its row.
        What comes is valid until the same thread asks again.
        """
        known: _Known | None = getattr(self._thread, "known", None)
        dictionaries = cells.columns.dictionaries
        if known is None or known.dictionaries != dictionaries:  # texts are only equal to themselves
            known = self._thread.known = self._look_up(dictionaries, known)
        if known.found is None:
            return None
        if isinstance(known.found, CodedSlots):
            return known.found._replace(codes=cells.columns.codes, first=cells.first)
        plan, coded = known.found
        return plan, coded._replace(codes=cells.columns.codes, first=cells.first)

    def _look_up(self, dictionaries: Mapping[int, Texts], last: _Known | None) -> _Known:
        tables, before = {}, {} if last is None else last.tables
        for f, column in enumerate(self._columns):
            if (texts := dictionaries.get(column)) is not None:
                tables[f] = before[f] if f in before and before[f].texts is texts else self._table(f, texts)
        slots = self._no_slots if last is None else last.slots
        if not tables.keys() or not all(table.is_sound for table in tables.values()):
            return _Known(dictionaries, tables, None, slots)
        if set(dictionaries) - {self._columns[f] for f in tables}:
            return _Known(dictionaries, tables, None, slots)
        places = list(dictionaries)
        columns = np.array([places.index(self._columns[f]) for f in tables], np.int64)
        if self._only_slots and len(tables) == len(self._columns):
            slots = self._slots(tables, {} if slots is self._no_slots else before, slots)
            coded = CodedSlots(
                codes=np.empty((0, 0), np.int32),
                first=0,
                columns=columns,
                starts=np.array([slots.rooms[f].start for f in tables], np.uint64),
                slots=slots.slots,
                tile=np.empty((len(tables), TILE), slots.slots.dtype),
            )
            return _Known(dictionaries, tables, coded, slots)
        hashes = Coded(
            codes=np.empty((0, 0), np.int32),
            first=0,
            columns=columns,
            starts=np.array([0, *accumulate(t.hashes.size for t in tables.values())][:-1], np.uint64),
            hashes=np.concatenate([table.hashes for table in tables.values()]),
            present=np.concatenate([table.present for table in tables.values()]),
        )
        return _Known(dictionaries, tables, (plan_of_others(self._plan, list(tables)), hashes), slots)

    def _slots(
        self, tables: Mapping[int, _Table], before: Mapping[int, _Table], slots: _SlotTable
    ) -> _SlotTable:
        """The slots of these tables, in place of those of the tables before, which `slots` has."""
        rooms = slots.rooms
        sizes = {f: table.hashes.size for f, table in tables.items()}
        if any(f not in rooms or rooms[f].stop - rooms[f].start < size for f, size in sizes.items()):
            known = {f: room.stop - room.start for f, room in rooms.items()}
            ends = [0, *accumulate(max(size, known.get(f, 0)) for f, size in sizes.items())]
            rooms = {f: slice(*bounds) for f, bounds in zip(tables, pairwise(ends), strict=True)}
            slots, before = _SlotTable(np.empty(ends[-1], slots.slots.dtype), rooms), {}
        for f, table in tables.items():
            if before.get(f) is not table:
                slots_of(table.hashes, table.present, self._plan.mask, slots.slots[rooms[f]])
        return slots

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
        steps: list[Step] = []
        if field in self._makers:
            made = self._makers[field](Column(buffer, texts.starts, texts.ends, status))
            assert not isinstance(made, Bag)
            status |= made.problem
            steps.append((0, made))
        hash_texts(
            buffer,
            texts.starts,
            texts.ends,
            status,
            plan,
            step_features(0, size, steps),
            scratch_of(plan),
            hashes,
            present,
        )
        return _Table(texts, hashes, present, not status.any())
