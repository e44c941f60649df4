"""`Naming`: readable texts for the features of rows; `window_names`: texts for buckets of windows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, combinations, groupby, islice, product
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ctr.features.batches import BatchBuilder
from ctr.features.columns import Arrays, Buckets, Column
from ctr.features.spec import Cross, FeatureSpec, InputField, Window, WindowField, columns_of, learnt_of
from ctr.features.steps import STEPS, log_bounds
from ctr.features.text import Cells, hash_bytes
from ctr.features.transform import Transform, seed_of

if TYPE_CHECKING:
    from functools import _lru_cache_wrapper

MISSING = "(missing)"
NAMED = pa.schema({"slot": pa.uint64(), "feature": pa.string(), "count": pa.int64()})
"""The columns of a table of features."""
_LONGEST = 200  # characters of a value
_TEXTS_KEPT = 65_536  # by field, so that repeated values are not parsed again


class Features(NamedTuple):
    """The features that one field or cross has in some rows."""

    bounds: NDArray[np.int64]
    """int64[rows + 1]: row `i` has the features `bounds[i]..bounds[i + 1] - 1`."""
    hashes: NDArray[np.uint64]
    """uint64[bounds[-1]]: all 64 bits of each hash."""
    values: NDArray[np.float32] | None = None
    """float32[bounds[-1]]; None: all are 1."""


def slots_of(hashes: NDArray[np.uint64], bits: int) -> NDArray[np.uint64]:
    """The slots of features with these hashes."""
    slots: NDArray[np.uint64] = np.maximum(hashes & np.uint64((1 << bits) - 1), np.uint64(1))
    return slots


class Naming:
    """Names the features of a spec. Its fields and crosses are numbered in the spec's order.

    Each of them has its own `Transform`, whose slots are all 64 bits of the hashes. So the named features are
    those that training and serving hash, whatever the step.
    """

    def __init__(self, spec: FeatureSpec, columns: Sequence[str]) -> None:
        """For cells of these columns. Raises SpecError as `Transform` does."""
        self.names = spec.names
        """The names of fields and crosses."""
        self.fields, self.crosses = spec.all_fields, spec.crosses
        fields = {field.name: field for field in self.fields}
        self._transforms = [_alone(spec, [field]) for field in self.fields]
        self._transforms += [
            _alone(spec, [fields[part] for part in dict.fromkeys(cross.of)], cross) for cross in self.crosses
        ]
        self._places = [[columns.index(column) for column in each.columns] for each in self._transforms]
        self._columns = [[columns.index(column) for column in columns_of(field)] for field in self.fields]
        learnt = learnt_of(spec) or {}
        self._texts = [_texts_of(field, learnt) for field in self.fields]
        self._missing = [hash_bytes(b"", seed_of(field.name, spec)) for field in self.fields]

    def of(self, cells: Cells, status: NDArray[np.uint8]) -> NamedRows:
        """The features of the rows whose `status` is 0, which must all be good."""
        features: list[Features] = []
        for transform, places in zip(self._transforms, self._places, strict=True):
            own = Cells(
                cells.buffer,
                np.ascontiguousarray(cells.starts[:, places]),
                np.ascontiguousarray(cells.ends[:, places]),
            )
            builder = BatchBuilder(transform.layout, len(cells))
            transform.append(own, status.copy(), np.zeros(len(cells), np.int32), builder, 0)
            batch = builder.take()
            hashes = batch.slots.astype(np.uint64, copy=False)
            features.append(Features(batch.indptr, hashes, batch.values))
        for number, cross in enumerate(self.crosses, len(self.fields)):
            parts = [features[self.names.index(part)] for part in dict.fromkeys(cross.of)]
            features[number] = _behind(parts, features[number])
        return NamedRows(self, cells, np.flatnonzero(status == 0), features)

    def forget(self) -> None:
        """Drop the texts of values that are kept."""
        for texts in self._texts:
            texts.cache_clear()

    def values(self, number: int, cells: Cells, row: int, hashes: list[int]) -> Sequence[str]:
        """The texts of a field's features in a row of `cells`, without its name; `hashes`: of these."""
        if hashes == [self._missing[number]]:
            return [MISSING]
        cell, *beside = (
            bytes(cells.buffer[cells.starts[row, j] : cells.ends[row, j]]).decode("utf-8", "replace")
            for j in self._columns[number]
        )
        for text in (cell, self.fields[number].constant):
            texts = self._texts[number](text, *beside) if text else []
            if len(texts) == len(hashes):
                return texts
        return [f"#{hashed:016x}" for hashed in hashes]  # the step has no texts for these


@dataclass(frozen=True, slots=True)
class NamedRows:
    """The features of some rows."""

    naming: Naming
    cells: Cells
    rows: NDArray[np.int64]
    """int64[rows]: their numbers in `cells`."""
    features: Sequence[Features]
    """By number of the field or cross."""

    def __len__(self) -> int:
        return self.rows.size

    def texts(self, number: int, chosen: NDArray[np.int64]) -> list[str]:
        """The texts of some features, such as `site=example.com` or `site * hour=example.com * 14`."""
        naming, bounds = self.naming, self.features[number].bounds
        rows = np.searchsorted(bounds, chosen, side="right") - 1
        places = zip(rows.tolist(), (chosen - bounds[rows]).tolist(), strict=True)
        if number < len(naming.fields):
            values = [self._values(number, row)[nth][1] for row, nth in places]
        else:
            cross = naming.crosses[number - len(naming.fields)]
            values = [self._combination(cross, row, nth) for row, nth in places]
        name = naming.names[number]
        return [f"{name}={v if len(v) <= _LONGEST else v[:_LONGEST] + '…'}" for v in values]

    def _values(self, number: int, row: int) -> list[tuple[int, str]]:
        """The hashes and texts of a field's features in a row."""
        bounds, hashes, _ = self.features[number]
        of_row = hashes[bounds[row] : bounds[row + 1]].tolist()
        texts = self.naming.values(number, self.cells, int(self.rows[row]), of_row)
        return list(zip(of_row, texts, strict=True))

    def _combination(self, cross: Cross, row: int, nth: int) -> str:
        """The texts of the n-th combination in a row, in the order of `write_list_crosses`."""
        choices = []
        for part, run in groupby(cross.of):
            times = len(list(run))
            values = self._values(self.naming.names.index(part), row)
            some = (sorted(chosen) for chosen in combinations(values, times))
            choices.append([chosen for chosen in some if len({hashed for hashed, _ in chosen}) == times])
        chosen = next(islice(product(*choices), nth, None))
        return " * ".join(text for _, text in chain(*chosen))


def _behind(parts: Sequence[Features], together: Features) -> Features:
    """The features of a cross, which follow those of its parts in each row of `together`."""
    sizes = np.diff(together.bounds) - np.sum([np.diff(part.bounds) for part in parts], axis=0)
    bounds = np.concatenate([[0], np.cumsum(sizes)])
    places = np.arange(bounds[-1]) + np.repeat(together.bounds[1:] - bounds[1:], sizes)
    values = None if together.values is None else together.values[places]
    return Features(bounds, together.hashes[places], values)


def _texts_of(field: InputField, learnt: Mapping[str, NDArray[Any]]) -> _lru_cache_wrapper[Sequence[str]]:
    """A function from the texts of a field's cells to the texts of its features."""
    arrays = {array: learnt[f"{field.name}/{array}"] for array in field.learns}
    texts = STEPS[field.step].texts or _plain_texts
    return lru_cache(_TEXTS_KEPT)(lambda text, *beside: texts(field, text, arrays, *beside))


def _plain_texts(field: InputField, text: str, learnt: Arrays) -> Sequence[str]:
    """The number of the value's bucket, otherwise the value itself."""
    value = STEPS[field.step].make(field, Column.of(text), 0, learnt)
    return [str(value.buckets.view(np.int64)[0])] if isinstance(value, Buckets) else [text]


def _alone(spec: FeatureSpec, fields: list[InputField], *crosses: Cross) -> Transform:
    """A transform with only these fields and crosses, and whole hashes as slots."""
    changed = {
        "bits": 64,
        "bias": False,
        "most_features": 2**62,
        "windows": (),
        "fields": tuple(fields),
        "crosses": crosses,
    }
    return Transform(spec.model_copy(update=changed), with_label=False)


_UNITS = {
    "count": "rows of",
    "clicks": "clicks of",
    "rate": "clicks per row of",
    "since_last": "s since the last row of",
}


def window_names(spec: FeatureSpec, most_rows: float) -> pa.Table | None:
    """All buckets of the spec's window features, such as `ip.count.1h=[3, 5) rows of ip`; None: no windows.

    Buckets of more than `most_rows` rows or clicks are left out, as they cannot occur and would only be
    further texts of a slot that they share. Columns are `slot`, `feature` and `count`, as in a dictionary;
    `count` is null, as no rows are read. Crosses with features of windows are left out.
    """
    if not spec.windows:
        return None
    hashes, texts = [], []
    for window in spec.windows:
        for field in window.fields:
            seed = seed_of(field.name, spec)
            for bucket, low, high in _buckets(window, field, most_rows):
                hashes.append(hash_bytes(bucket.to_bytes(8, "little"), seed))
                unit = f"{_UNITS[field.kind]} {', '.join(window.key)}"
                texts.append(f"{field.name}=[{low:.6g}, {high:.6g}) {unit}")
    slots = slots_of(np.array(hashes, np.uint64), spec.bits)
    return pa.table([slots, texts, [None] * len(slots)], NAMED)


def _buckets(window: Window, field: WindowField, most_rows: float) -> Iterator[tuple[int, float, float]]:
    """The number of each bucket, and its bounds: see `write_features`."""
    if field.kind == "rate":
        bounds = [0.0, *window.rate_edges, math.inf]
        yield from ((k, bounds[k], bounds[k + 1]) for k in range(len(bounds) - 1))
        return
    decays = field.span is not None and field.span.startswith("half_")
    whole = field.kind != "since_last" and not decays
    scale = 10.0 if decays else 1.0
    most = window.expires / 1e6 if field.kind == "since_last" else most_rows * scale
    for bucket in range(3 + int(math.log(max(most, 1.0)) ** 2)):
        low, high = (bucket, bucket + 1) if bucket < 2 else log_bounds(bucket)
        if whole:  # some buckets contain no whole number
            low, high = math.ceil(low), math.ceil(high)
        if low < high:
            yield bucket, low / scale, high / scale
