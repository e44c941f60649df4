"""`explain`: what each feature of a row adds to its prediction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from math import nan
from typing import Any

import numpy as np
import pyarrow as pa

from ctr.errors import DataError
from ctr.features import Batch, Chunk, DatasetSource, Slots, is_dataset, open_source, slot_dtype
from ctr.features.inspect import ShownFeature, show, show_values
from ctr.model.linear import probabilities_of
from ctr.model.model import Model
from ctr.weights import BIAS, texts_of, with_names


@dataclass(frozen=True, slots=True)
class Contribution:
    """What one feature adds to the log-odds of a row: its weight times its value."""

    field: str
    """Of the field or cross."""
    text: str
    """The cell; empty for a cross, and for what comes from a hashed data set."""
    feature: str
    slot: int
    value: float
    weight: float
    """0 where the model has not learnt the feature, or learnt that it tells nothing."""
    contribution: float


@dataclass(frozen=True, slots=True)
class Explanation:
    """A row's prediction, and the contributions that add up to it."""

    place: str
    """Where the row stands, such as `clicks.tsv:17`; if it is a bad row, with what is wrong."""
    log_odds: float
    """The sum of the contributions: before calibration, if the model has one."""
    prediction: float
    """NaN for a bad row, as its log-odds."""
    contributions: tuple[Contribution, ...]
    """The largest first, whatever its sign."""

    def to_json(self) -> dict[str, Any]:
        """The fields by name, as JSON can hold them."""
        return asdict(self)


def explain(model: Model, inputs: Sequence[str], rows: int, values: object = None) -> list[Explanation]:
    """The first `rows` rows of raw data, or of a hashed data set.

    For raw rows, the features of windows are left out, as they depend on the moment. Hashed rows have all
    features, with the texts that `Model.weights` or the data set's dictionary has for their slots, or else
    the slots themselves. Raises DataError for raw data that carries its own features, when there is no row,
    and as reading does.
    """
    if len(inputs) == 1 and is_dataset(inputs[0]):
        return _of_hashed(model, inputs[0], rows, values)
    return [
        _explanation(model, row.place, _with_bias(model, row.features))
        if row.features
        else Explanation(row.place, nan, nan, ())
        for row in show(model.spec, inputs, rows)
    ]


def explain_row(model: Model, row: Mapping[str, object]) -> Explanation:
    """A row as `Model.predict` takes it, with the features of windows at this moment.

    Of these, crosses are named by their slots.
    """
    shown, batch = show_values(model.spec, row), model.transform.apply_rows([row])
    features = _with_bias(model, shown.features)
    by_fields = Counter(each.slot for each in features)
    values = [1.0] * batch.slots.size if batch.values is None else batch.values.tolist()
    texts = _texts(model.window_names(), batch.slots)
    for slot, value, text in zip(batch.slots.tolist(), values, texts, strict=True):
        if by_fields[slot]:
            by_fields[slot] -= 1
        else:
            features.append(_of_slot(slot, value, text))
    return _explanation(model, shown.place, features)


def _of_hashed(model: Model, path: str, rows: int, values: object) -> list[Explanation]:
    source = open_source([path], model.spec, labels="ignored")
    assert isinstance(source, DatasetSource)
    batches: Iterator[Batch | Chunk] = source.batches(rows)
    batch = next(batches, None)
    if batch is None:
        raise DataError(f"{path}: there is no row to explain.")
    slots = batch.slots[batch.indices] if isinstance(batch, Chunk) else batch.slots
    content = source.dictionary()
    own = None if content is None else pa.ipc.open_file(content).read_all()
    names = with_names(model.names(values), own)
    texts = _texts(names, slots)
    sizes = [1.0] * slots.size if batch.values is None else batch.values.tolist()
    features = [
        ShownFeature(BIAS, "", BIAS, 0) if model.spec.bias and slot == 0 else _of_slot(slot, value, text)
        for slot, value, text in zip(slots.tolist(), sizes, texts, strict=True)
    ]
    return [
        _explanation(model, f"{path}, row {number}", features[first:last])
        for number, (first, last) in enumerate(pairwise(batch.indptr.tolist()), 1)
    ]


def _texts(names: pa.Table | None, slots: Slots) -> list[str | None]:
    """Of each slot, or None."""
    return [None] * slots.size if names is None else list(texts_of(names, slots)[0].to_pylist())


def _of_slot(slot: int, value: float, text: str | None) -> ShownFeature:
    """A feature by its slot, whose text, if that is known, begins with the field."""
    field, _, feature = (text or "").partition("=")
    return ShownFeature(field, "", feature or f"slot {slot}", slot, value)


def _with_bias(model: Model, features: Sequence[ShownFeature]) -> list[ShownFeature]:
    """The features that a row has."""
    bias = [ShownFeature(BIAS, "", BIAS, 0)] if model.spec.bias else []
    return [*bias, *(each for each in features if each.slot is not None)]


def _explanation(model: Model, place: str, features: Sequence[ShownFeature]) -> Explanation:
    slots: Slots = np.array([each.slot for each in features], slot_dtype(model.spec.bits))
    weights = model.linear.weights_at(slots).tolist()
    parts = [
        Contribution(f.field, f.text, f.feature, slot, f.value, weight, weight * f.value)
        for f, slot, weight in zip(features, slots.tolist(), weights, strict=True)
    ]
    total = sum(part.contribution for part in parts)
    parts.sort(key=lambda part: -abs(part.contribution))
    prediction = probabilities_of(model.log_odds(np.array([total], np.float32)))
    return Explanation(place, total, float(prediction[0]), tuple(parts))
