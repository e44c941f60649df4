"""`Transform`: cells -> batch, the only way from raw values to slots, for training and serving alike."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ctr.errors import DataError, SpecError
from ctr.features.batches import MOST_FIELDS, Batch, BatchBuilder, BatchLayout
from ctr.features.columns import Arrays, Buckets, Columns, HashedTokens, TokenCounts, read_only
from ctr.features.spec import (
    FeatureSpec,
    InputField,
    WindowField,
    column_of,
    columns_of,
    learnt_of,
)
from ctr.features.text import Cells, CodedCells, RowStatus, cells_of_rows
from ctr.features.transform.by_value import ByValue
from ctr.features.transform.cross_plan import most_of_lists
from ctr.features.transform.field_features import FieldFeatures
from ctr.features.transform.kernels import transform_rows
from ctr.features.transform.plan import (
    TILED,
    Step,
    column_features,
    feature_lists,
    plan_of,
    scratch_of,
    seed_of,
)
from ctr.features.transform.plan_kernels import ColumnFeatures, Examples, FeatureLists, Plan, Scratch
from ctr.features.transform.problems import explain
from ctr.jit import is_cached, pack


class History(Protocol):
    """What windows know of earlier rows."""

    def buckets(
        self, cells: Cells, status: NDArray[np.uint8], columns: Sequence[str], rows: slice, *, take_in: bool
    ) -> list[Buckets]:
        """The features of rows, in the order of the spec's window fields (`ctr.features.windows.Windows`)."""


class _Route(NamedTuple):
    """How cells of some columns become slots."""

    columns: tuple[str, ...]
    plan: Plan
    by_column: list[FieldFeatures]
    """The fields whose features are made before the kernels run."""


class Transform:
    """A spec, ready to run. Immutable except for its history; may be shared by threads."""

    spec: FeatureSpec
    with_label: bool
    with_fields: bool
    columns: tuple[str, ...]
    """The columns that `Cells` must have: label and weight (with `with_label`), fields, and `also`."""
    layout: BatchLayout
    """Of its batches."""
    numbers: frozenset[str]
    """Columns that no field reads as categories."""
    lists: frozenset[str]
    """Columns whose values may be lists."""
    ignored: frozenset[str]
    """Further columns that rows given as mappings may have."""

    def __init__(
        self,
        spec: FeatureSpec,
        *,
        with_label: bool,
        with_fields: bool = False,
        history: History | None = None,
        take_in: bool = False,
        also: Sequence[str] = (),
    ) -> None:
        """Without label, neither label nor weight is read: for examples to be predicted.

        `with_fields`: batches say which field each feature belongs to, unless there are more fields than
        field ids. `history`: where window features come from; without it, examples have none. `take_in`: each
        row counts for later rows, with its label if that is among the columns. `also`: further columns of the
        cells, which are not used here.

        Raises SpecError if the spec must learn from data first, or a constant for missing values is invalid.
        """
        self.spec = spec
        self.with_label = with_label
        self.with_fields = with_fields and len(spec.names) <= MOST_FIELDS
        self.layout = BatchLayout.of(spec, with_label=with_label, with_fields=self.with_fields)
        self.history = history
        self._take_in = take_in
        columns = [spec.label_column, spec.weight_column] if with_label else []
        columns += [*spec.columns, *also]
        self.columns = tuple(dict.fromkeys(column for column in columns if column is not None))
        learnt = learnt_of(spec)
        if learnt is None:
            name = next(field.name for field in spec.all_fields if field.learns)
            raise SpecError(
                f"field {name!r}: its transform learns from data first; write a data set with"
                f" `ctr features build`, which has it learn, and use that instead of the raw files."
            )
        self._learnt = {
            field.name: {array: learnt[f"{field.name}/{array}"] for array in field.learns}
            for field in spec.all_fields
        }
        self._fields = [
            FieldFeatures(field, seed_of(field.name, spec), self._learnt[field.name])
            for field in spec.all_fields
        ]
        self._single = [each for each in self._fields if not each.field.several]
        read = [column_of(each.field) for each in self._single]
        self._by_value = ByValue(
            self._single,
            [self.columns.index(column) if column in spec.by_value else -1 for column in read],
            spec.bits,
            {name for cross in spec.crosses for name in cross.of},
        )
        self._routes: dict[frozenset[str], _Route] = {}
        self._thread = threading.local()
        self._list_columns = [
            self.columns.index(column_of(field)) for field in spec.all_fields if field.several
        ]
        categories = {c for field in spec.fields if not field.numeric for c in columns_of(field)}
        categories.update(column for window in spec.windows for column in window.key)
        self.numbers = frozenset(self.columns) - categories
        self.lists = spec.list_columns
        unused = {*spec.source.columns, *spec.source.ignore, spec.label, spec.weight}
        self.ignored = frozenset(column for column in unused if column is not None)

    @staticmethod
    def is_compiled() -> bool:
        """Whether the kernel that hashes rows has been compiled before, by any process and for any spec."""
        return is_cached(transform_rows)

    def learnt(self, field: InputField) -> Arrays:
        """What this field of the spec has learnt."""
        return self._learnt[field.name]

    def append(
        self,
        cells: Cells,
        status: NDArray[np.uint8],
        column: NDArray[np.int32],
        builder: BatchBuilder,
        first_row: int,
        history: History | None = None,
    ) -> int:
        """Transforms the rows from `first_row` on into `builder`, until they end or it is full.

        Rows whose `status` (uint8[rows], a RowStatus) is not OK are skipped; their cells may be anything. A
        bad row adds nothing: its status is set, and `column` (int32[rows], an index into `columns`) says
        where the problem is. `history`: used instead of the transform's. Returns the next row to transform.
        """
        history = self.history if history is None else history
        tables, coded = None, frozenset[str]()
        if isinstance(cells, CodedCells):
            tables = self._by_value.of(cells)
            if tables is None:
                cells = cells.kept()
            else:
                coded = frozenset(self.columns[place] for place in cells.columns.dictionaries)
                cells = cells.others
        route = self._route(coded)
        if cells.starts.shape[1] != len(route.columns):
            raise ValueError(f"cells have {cells.starts.shape[1]} columns, not {len(route.columns)}")
        if len(cells) == 0:
            return first_row
        buffer = read_only(cells.buffer)
        cells = Cells(buffer, cells.starts, cells.ends)
        starts, ends = cells.starts.reshape(-1), cells.ends.reshape(-1)
        scratch, row = self._scratch, first_row
        while row < len(cells) and builder.spare_rows > 0:
            last, by_column, lists = self._by_column(route, cells, status, row, builder, history)
            examples = Examples(
                builder.indptr,
                builder.slots,
                builder.values,
                builder.fields,
                builder.labels,
                builder.no_click,
                builder.weights,
            )
            next_row, builder.rows = transform_rows(
                buffer,
                starts,
                ends,
                row,
                last,
                status,
                column,
                route.plan,
                by_column,
                lists,
                tables,
                scratch,
                examples,
                builder.rows,
            )
            row = int(next_row)
        return row

    def _route(self, coded: frozenset[str]) -> _Route:
        """For cells without the `coded` columns."""
        if coded not in self._routes:
            self._routes[coded] = _Route(
                columns=tuple(column for column in self.columns if column not in coded),
                plan=pack(plan_of(self.spec, self._single, self.columns, coded, with_label=self.with_label)),
                by_column=[
                    each
                    for each in self._fields
                    if each.field.step not in TILED and column_of(each.field) not in coded
                ],
            )
        return self._routes[coded]

    @property
    def _scratch(self) -> Scratch:
        """One per thread."""
        if not hasattr(self._thread, "scratch"):
            self._thread.scratch = pack(scratch_of(self._route(frozenset()).plan))
        scratch: Scratch = self._thread.scratch
        return scratch

    def _by_column(
        self,
        route: _Route,
        cells: Cells,
        status: NDArray[np.uint8],
        first: int,
        builder: BatchBuilder,
        history: History | None,
    ) -> tuple[int, ColumnFeatures | None, FeatureLists | None]:
        """Where the next rows end, and their features that are made before the kernels run."""
        if not route.by_column:
            return len(cells), None, None
        good = np.flatnonzero(status[first:] == 0)  # rows that may go into the builder
        last = len(cells) if good.size < builder.spare_rows else first + int(good[builder.spare_rows - 1]) + 1
        columns = Columns(cells, status, slice(first, last), route.columns)
        windows: Iterator[Buckets] = iter(())
        if history is not None:
            windows = iter(
                history.buckets(cells, status, route.columns, slice(first, last), take_in=self._take_in)
            )
        steps: list[Step] = []
        for each in route.by_column:
            column = columns[column_of(each.field)]
            if history is not None and isinstance(each.field, WindowField):
                features: Buckets | HashedTokens | TokenCounts = next(windows)
            else:
                features = each.make(column)
            if isinstance(features, TokenCounts):
                features = each.filled(features, column.status)
            steps.append(Step(each, self.columns.index(column_of(each.field)), features))
        by_column, lists = column_features(first, last - first, steps), feature_lists(first, steps)
        if lists is not None:
            builder.reserve(self._require_capacity(route.plan, by_column, lists))
        return last, by_column, lists

    def _require_capacity(self, plan: Plan, by_column: ColumnFeatures, lists: FeatureLists) -> int:
        """The most features that these rows can have; marks rows with too many of them in `by_column`."""
        others = self.spec.features_per_example
        most = others + most_of_lists(plan.list_crosses, lists.bounds)
        if self.spec.fields:  # no limit if data carries its own features
            too_many = np.flatnonzero((most > self.spec.most_features) & (by_column.problem == 0))
            longest = np.diff(lists.bounds[:, [too_many, too_many + 1]], axis=1)[:, 0].argmax(axis=0)
            by_column.problem[too_many] = RowStatus.FEATURES
            by_column.bad_column[too_many] = np.array(self._list_columns, np.int32)[longest]
        return int(most[by_column.problem == 0].sum())

    def apply(self, cells: Cells, most_features: int | None = None, history: History | None = None) -> Batch:
        """All rows as a batch. Raises DataError, which names row, column and value of the first bad row.

        `most_features`: raises MoreFeaturesError before making more features than this. `history`: used
        instead of the transform's.
        """
        builder = BatchBuilder(self.layout, len(cells), most_features=most_features)
        status = np.zeros(len(cells), np.uint8)
        column = np.zeros(len(cells), np.int32)
        self.append(cells, status, column, builder, 0, history)
        if builder.rows < len(cells):
            row = int(np.flatnonzero(status)[0])
            raise DataError(
                f"rows[{row}]: {self.explain(cells, row, int(status[row]), int(column[row]))[0]}."
            )
        return builder.last()

    def apply_rows(self, rows: Sequence[Mapping[str, object]]) -> Batch:
        """Rows given as mappings from column names to values, such as JSON objects, as a batch.

        Columns that no feature needs are allowed if the spec names them: as label, as weight, in
        `source.columns` or in `source.ignore`. Raises DataError as `apply` and `cells_of_rows` do.
        """
        return self.apply(self.cells_of(rows))

    def cells_of(self, rows: Sequence[Mapping[str, object]]) -> Cells:
        """Such rows as cells of `columns`; rows of libsvm or VW have their features as text in `features`."""
        return cells_of_rows(rows, self.columns, numbers=self.numbers, lists=self.lists, ignored=self.ignored)

    def explain(self, cells: Cells, row: int, status: int, column: int) -> tuple[str, str]:
        """What is wrong with a bad row, such as ``column 'I3': 'x' is not a number``; its kind of problem."""
        return explain(self.spec, self.columns, cells, row, RowStatus(status), column)
