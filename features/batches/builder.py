"""`BatchBuilder`: the arrays to which the kernels of readers write the examples of the next batch."""

from __future__ import annotations

from copy import deepcopy
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ctr.features.batches.batch import Batch, FieldIds, Slots, field_id_dtype, slot_dtype
from ctr.features.spec import FeatureSpec


class BatchLayout(NamedTuple):
    """Which arrays the examples of a transform have."""

    slot_dtype: Any
    has_values: bool
    has_fields: bool
    field_dtype: Any
    has_labels: bool
    has_weights: bool
    features: int
    """The most features of an example, without those of lists and their crosses."""

    @staticmethod
    def of(spec: FeatureSpec, *, with_label: bool, with_fields: bool) -> BatchLayout:
        """The layout of the spec's examples; `with_label`: with labels, and with weights if it has any."""
        return BatchLayout(
            slot_dtype=slot_dtype(spec.bits),
            has_values=spec.has_values,
            has_fields=with_fields,
            field_dtype=field_id_dtype(len(spec.names)),
            has_labels=with_label,
            has_weights=with_label and spec.weight_column is not None,
            features=spec.features_per_example,
        )


class MoreFeaturesError(Exception):
    """Examples have more features than the limit."""


class BatchBuilder:
    """Arrays for up to `capacity` examples, which are written in order and then taken as a `Batch`.

    Kernels write to the arrays; their caller then sets `rows`. If a field gives an example any number of
    features, call `reserve` first; for other specs, the arrays are large enough.
    """

    capacity: int
    rows: int
    """Examples written so far."""
    indptr: NDArray[np.int64]
    """int64[capacity + 1], valid up to `indptr[rows]`; `indptr[0] == 0`."""
    slots: Slots
    """uint32|uint64[...], valid up to `indptr[rows]`."""
    values: NDArray[np.float32]
    """float32, as long as `slots`; empty unless the spec `has_values`."""
    fields: FieldIds
    """uint8|uint16, as long as `slots`; empty unless the layout `has_fields`."""
    labels: NDArray[np.float32]
    """float32[capacity]; empty without labels."""
    no_click: NDArray[np.int8]
    """int8[1]: the label of rows without a click, 0 or -1; 1 before the first such row."""
    weights: NDArray[np.float32]
    """float32[capacity]; empty without weights."""

    def __init__(
        self,
        layout: BatchLayout,
        rows: int,
        no_click: NDArray[np.int8] | None = None,
        most_features: int | None = None,
    ) -> None:
        """For up to `rows` examples of a transform with this `layout`.

        `no_click`: shared by all builders whose rows must have labels of the same kind. `most_features`: if
        there could be more, this and `reserve` raise MoreFeaturesError.
        """
        self.capacity = rows
        self.no_click = np.ones(1, np.int8) if no_click is None else no_click
        self._layout = layout
        self._features = rows * layout.features
        self._most = most_features
        self._require(self._features)
        self._allocate()

    @property
    def spare_rows(self) -> int:
        """How many more examples fit."""
        return self.capacity - self.rows

    @property
    def features(self) -> int:
        """Features written so far."""
        return int(self.indptr[self.rows])

    def reserve(self, features: int) -> None:
        """Makes room for `features` more features; this may replace `slots`, `values` and `fields`."""
        needed = self.features + features
        self._require(needed)
        if needed <= self.slots.size:
            return
        self._features = max(needed, 2 * self.slots.size)
        used, written = self.features, (self.slots, self.values, self.fields)
        self._allocate_features()
        for array, before in zip((self.slots, self.values, self.fields), written, strict=True):
            array[:used] = before[:used]

    def _require(self, features: int) -> None:
        if self._most is not None and features > self._most:
            raise MoreFeaturesError

    def add(self, batch: Batch, start: int, stop: int) -> None:
        """Appends copies of a batch's examples `start..stop-1`; at most `spare_rows`."""
        first, last = int(batch.indptr[start]), int(batch.indptr[stop])
        self.reserve(last - first)
        row, feature = self.rows, self.features
        self.rows += stop - start
        end = feature + last - first
        np.add(batch.indptr[start + 1 : stop + 1], feature - first, out=self.indptr[row + 1 : self.rows + 1])
        self.slots[feature:end] = batch.slots[first:last]
        if batch.values is not None:
            self.values[feature:end] = batch.values[first:last]
        if batch.fields is not None:
            self.fields[feature:end] = batch.fields[first:last]
        if batch.labels is not None:
            self.labels[row : self.rows] = batch.labels[start:stop]
        if batch.weights is not None:
            self.weights[row : self.rows] = batch.weights[start:stop]

    def last(self) -> Batch:
        """As `take`, but the builder cannot be used again."""
        batch = self._written()
        return batch if 2 * batch.slots.size >= self.slots.size else deepcopy(batch)

    def take(self) -> Batch:
        """Removes and returns the examples written so far; builder and batch share no memory."""
        batch = self._written()
        rows, features = self.rows, batch.slots.size
        # To hand over the arrays saves a copy (5 ns per Criteo row), unless the batch would keep much more
        # memory than it needs.
        if 2 * rows >= self.capacity and 2 * features >= self.slots.size:
            self._allocate()
            return batch
        self.rows = 0
        return deepcopy(batch)

    def _written(self) -> Batch:
        rows, features, layout = self.rows, self.features, self._layout
        return Batch(
            indptr=self.indptr[: rows + 1],
            slots=self.slots[:features],
            values=self.values[:features] if layout.has_values else None,
            labels=self.labels[:rows] if layout.has_labels else None,
            weights=self.weights[:rows] if layout.has_weights else None,
            fields=self.fields[:features] if layout.has_fields else None,
        )

    def _allocate(self) -> None:
        self.rows = 0
        self.indptr = np.empty(self.capacity + 1, np.int64)
        self.indptr[0] = 0
        self._allocate_features()
        self.labels = np.empty(self.capacity if self._layout.has_labels else 0, np.float32)
        self.weights = np.empty(self.capacity if self._layout.has_weights else 0, np.float32)

    def _allocate_features(self) -> None:
        self.slots = np.empty(self._features, self._layout.slot_dtype)
        self.values = np.empty(self._features if self._layout.has_values else 0, np.float32)
        self.fields = np.empty(self._features if self._layout.has_fields else 0, self._layout.field_dtype)
