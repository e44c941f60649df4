"""`Naming`: the features of rows, each with a readable text; `window_names`: those that windows can give."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import chain, combinations, groupby, islice, product
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ctr.features.batches import BatchBuilder
from ctr.features.columns import Arrays, Buckets, Column
from ctr.features.spec import Cross, FeatureSpec, InputField, Window, WindowField, columns_of, learnt_of
from ctr.features.steps import STEPS, log_bounds
from ctr.features.text import Cells, hash_bytes
from ctr.features.transform import Transform, seed_of

MISSING = "(missing)"
_LONGEST = 200  # characters of a value
_TEXTS_KEPT = 65_536  # by field: values that come again need not be parsed again


class Features(NamedTuple):
    """The features that one field or cross has in some rows."""

    bounds: NDArray[np.int64]
    """int64[rows + 1]: row `i` has the features `bounds[i]..bounds[i + 1] - 1`."""
    hashes: NDArray[np.uint64]
    """uint64[bounds[-1]]: all 64 bits of each."""
    values: NDArray[np.float32] | None = None
    """float32[bounds[-1]]; None: all are 1."""


class Naming:
    """Names the features of a spec. Its fields and crosses are numbered in the spec's order.

    Each has a `Transform` of its own, whose slots are all 64 bits of the hashes: so the named features are
    those that training and serving hash, whatever the step.
    """

    names: tuple[str, ...]
    """Of fields and crosses."""

    def __init__(self, spec: FeatureSpec, columns: Sequence[str]) -> None:
        """For cells of these columns. Raises SpecError as `Transform` does."""
        fields = {field.name: field for field in spec.all_fields}
        crosses = {cross.name: cross for cross in spec.crosses}
        self.names = (*fields, *crosses)
        self.fields = [
            _FieldTexts(field, spec, [columns.index(column) for column in columns_of(field)])
            for field in fields.values()
        ]
        self.crosses = list(crosses.values())
        self._transforms = [_alone(spec, [field]) for field in fields.values()]
        self._transforms += [
            _alone(spec, [fields[part] for part in dict.fromkeys(c.of)], c) for c in self.crosses
        ]
        self._places = [[columns.index(column) for column in each.columns] for each in self._transforms]

    def of(self, cells: Cells, status: NDArray[np.uint8]) -> NamedRows:
        """The features of the rows whose `status` is 0; all of these must be good."""
        features: list[Features] = []
        for transform, places in zip(self._transforms, self._places, strict=True):
            own = Cells(
                cells.buffer,
                np.ascontiguousarray(cells.starts[:, places]),
                np.ascontiguousarray(cells.ends[:, places]),
            )
            builder = BatchBuilder(transform, len(cells))
            transform.append(own, status.copy(), np.zeros(len(cells), np.int32), builder, 0)
            batch = builder.take()
            hashes = batch.slots.astype(np.uint64, copy=False)
            features.append(Features(batch.indptr, hashes, batch.values))
        rows = NamedRows(self, cells, np.flatnonzero(status == 0), features[: len(self.fields)])
        for cross, all_of in zip(self.crosses, features[len(self.fields) :], strict=True):
            rows.add_cross(cross, all_of)
        return rows


class NamedRows:
    """The features of some rows."""

    def __init__(
        self, naming: Naming, cells: Cells, rows: NDArray[np.int64], of_fields: list[Features]
    ) -> None:
        self._naming, self._cells, self._rows = naming, cells, rows
        self.features = of_fields
        """By the number of the field or cross."""

    def __len__(self) -> int:
        return self._rows.size

    def add_cross(self, cross: Cross, together: Features) -> None:
        """Adds the features of a cross, which follow those of its parts in each row of `together`."""
        parts = [self.features[self._naming.names.index(part)] for part in dict.fromkeys(cross.of)]
        sizes = np.diff(together.bounds) - np.sum([np.diff(part.bounds) for part in parts], axis=0)
        bounds = np.concatenate([[0], np.cumsum(sizes)])
        places = np.arange(bounds[-1]) + np.repeat(together.bounds[1:] - bounds[1:], sizes)
        values = None if together.values is None else together.values[places]
        self.features.append(Features(bounds, together.hashes[places], values))

    def texts(self, number: int, chosen: NDArray[np.int64]) -> list[str]:
        """The texts of some features, such as `site=example.com` or `site * hour=example.com * 14`."""
        bounds = self.features[number].bounds
        rows = np.searchsorted(bounds, chosen, side="right") - 1
        places = zip(rows.tolist(), (chosen - bounds[rows]).tolist(), strict=True)
        if number < len(self._naming.fields):
            values = [self._values(number, row)[nth] for row, nth in places]
        else:
            cross = self._naming.crosses[number - len(self._naming.fields)]
            values = [self._combination(cross, row, nth) for row, nth in places]
        name = self._naming.names[number]
        return [f"{name}={v if len(v) <= _LONGEST else v[:_LONGEST] + '…'}" for v in values]

    def _values(self, number: int, row: int) -> Sequence[str]:
        """The texts of a field's features in a row."""
        texts = self._naming.fields[number]
        bounds, hashes, _ = self.features[number]
        cells = [self._cell(int(self._rows[row]), place) for place in texts.places]
        return texts.of(cells, hashes[bounds[row] : bounds[row + 1]].tolist())

    def _cell(self, row: int, place: int) -> str:
        cell = self._cells.buffer[self._cells.starts[row, place] : self._cells.ends[row, place]]
        return cell.tobytes().decode("utf-8", "replace")

    def _combination(self, cross: Cross, row: int, nth: int) -> str:
        """The values of the n-th combination in a row, in the order of `write_list_crosses`."""
        choices = []
        for part, run in groupby(cross.of):
            number = self._naming.names.index(part)
            bounds, hashes, _ = self.features[number]
            values = self._values(number, row)
            pairs = list(zip(hashes[bounds[row] : bounds[row + 1]].tolist(), values, strict=True))
            times = len(list(run))
            some = (sorted(chosen) for chosen in combinations(pairs, times))
            choices.append([chosen for chosen in some if len({hashed for hashed, _ in chosen}) == times])
        chosen = next(islice(product(*choices), nth, None))
        return " * ".join(text for _, text in chain(*chosen))


class _FieldTexts:
    """The texts of a field's features."""

    def __init__(self, field: InputField, spec: FeatureSpec, places: Sequence[int]) -> None:
        self.places = places
        """The columns of its cells, its own first."""
        learnt = learnt_of(spec) or {}
        arrays = {array: learnt[f"{field.name}/{array}"] for array in field.learns}
        texts = STEPS[field.step].texts or _plain_texts
        self._texts: Callable[..., Sequence[str]] = lru_cache(_TEXTS_KEPT)(
            lambda text, *beside: texts(field, text, arrays, *beside)
        )
        self._constant = field.constant
        self._missing = hash_bytes(b"", hash_bytes(field.name.encode(), spec.seed))

    def of(self, cells: Sequence[str], hashes: list[int]) -> Sequence[str]:
        """A text for each feature that a row has by these cells."""
        if hashes == [self._missing]:
            return [MISSING]
        cell, *beside = cells
        for text in (cell, self._constant):
            texts = self._texts(text, *beside) if text else []
            if len(texts) == len(hashes):
                return texts
        return [f"#{hashed:016x}" for hashed in hashes]  # the step has no texts for them


def _plain_texts(field: InputField, text: str, learnt: Arrays) -> Sequence[str]:
    """The number of its bucket, or else the value itself."""
    value = STEPS[field.step].make(field, Column.repeated(text, 1), 0, learnt)
    return [str(value.buckets.view(np.int64)[0])] if isinstance(value, Buckets) else [text]


def _alone(spec: FeatureSpec, fields: list[InputField], *crosses: Cross) -> Transform:
    """A transform of only these fields and crosses, with the whole hashes as slots."""
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

    Buckets of more rows or clicks than `most_rows` are left out: one that cannot occur would be one more text
    of a slot that it shares. Columns are `slot`, `feature` and `count`, as in a dictionary; `count` is null,
    as no rows are read. Crosses with features of windows are not among them.
    """
    if not spec.windows:
        return None
    slots, texts = [], []
    for window in spec.windows:
        for field in window.fields:
            seed = seed_of(field.name, spec)
            for bucket, low, high in _buckets(window, field, most_rows):
                hashed = hash_bytes(bucket.to_bytes(8, "little"), seed)
                slots.append(max(hashed & ((1 << spec.bits) - 1), 1))
                unit = f"{_UNITS[field.kind]} {', '.join(window.key)}"
                texts.append(f"{field.name}=[{low:.6g}, {high:.6g}) {unit}")
    types = (pa.uint64(), pa.string(), pa.int64())
    columns = (slots, texts, [None] * len(slots))
    names = ["slot", "feature", "count"]
    return pa.table([pa.array(each, type_) for each, type_ in zip(columns, types, strict=True)], names)


def _buckets(window: Window, field: WindowField, most_rows: float) -> Iterator[tuple[int, float, float]]:
    """The number of each, and from where to where it goes: see `write_features`."""
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
        if whole:  # of some buckets no whole number is in
            low, high = math.ceil(low), math.ceil(high)
        if low < high:
            yield bucket, low / scale, high / scale
