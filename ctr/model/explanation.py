"""`explain`: what each feature of a row adds to its prediction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from math import nan
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import pyarrow as pa

from ctr.errors import DataError
from ctr.features import Batch, Chunk, DatasetSource, Slots, Transform, is_dataset, open_source, slot_dtype
from ctr.features.inspect import ShownFeature, show, show_values
from ctr.model.linear import probabilities_of
from ctr.model.model import Model
from ctr.weights import BIAS, texts_of, with_names

_BIAS_FEATURE = ShownFeature(BIAS, "", BIAS, 0)


@dataclass(frozen=True, slots=True)
class Contribution:
    """What one feature adds to the log-odds of a row: its weight times its value."""

    field: str
    """The name of the field or cross."""
    text: str
    """The cell's text; empty for a cross, and for rows of a hashed data set."""
    feature: str
    slot: int
    value: float
    weight: float
    """0 if the model has not learnt the feature, or learnt that it does not matter."""
    contribution: float


@dataclass(frozen=True, slots=True)
class Explanation:
    """A row's prediction, and the contributions that add up to it."""

    place: str
    """Where the row is, such as `clicks.tsv:17`; for a bad row, also what is wrong."""
    log_odds: float
    """The sum of the contributions, before any calibration."""
    prediction: float
    """NaN for a bad row, like its log-odds."""
    contributions: tuple[Contribution, ...]
    """Sorted by absolute value, the largest first."""

    def to_json(self) -> dict[str, Any]:
        """The fields by name, as JSON can hold them."""
        return asdict(self)


def explain(model: Model, inputs: Sequence[str], rows: int, values: object = None) -> list[Explanation]:
    """Explain the first `rows` rows of raw data, or of a hashed data set.

    Raw rows lack the features of windows, which depend on the moment. Hashed rows have all features, with
    the texts that `Model.weights` or the data set's dictionary has for their slots, or else the slots
    themselves. Raises DataError if raw data carries its own features, has no row, or cannot be read.
    """
    if len(inputs) == 1 and is_dataset(inputs[0]):
        return _explain_hashed(model, inputs[0], rows, values)
    return [
        _explanation(model, row.place, _with_bias(model, row.features))
        if row.features
        else Explanation(row.place, nan, nan, ())
        for row in show(model.spec, inputs, rows)
    ]


def explain_row(model: Model, row: Mapping[str, object]) -> Explanation:
    """Explain a row as `Model.predict` takes it, with the features of windows at this moment.

    Crosses of windows are named by their slots.
    """
    cells = model.transform.cells_of([row])
    batch = model.transform.apply(cells)  # first, as it finds what is wrong with the row
    shown = show_values(model.transform, cells)
    features = _with_bias(model, shown.features)
    shown_slots = Counter(feature.slot for feature in features)
    values = [1.0] * batch.slots.size if batch.values is None else batch.values.tolist()
    texts = _texts(_window_names(model), batch.slots)
    for slot, value, text in zip(batch.slots.tolist(), values, texts, strict=True):
        if shown_slots[slot]:
            shown_slots[slot] -= 1
        else:
            features.append(_feature_of_slot(slot, value, text))
    return _explanation(model, shown.place, features)


def _window_names(model: Model) -> pa.Table | None:
    """`Model.window_names`, computed once."""
    if model.transform not in _WINDOW_NAMES:
        _WINDOW_NAMES[model.transform] = model.window_names()
    return _WINDOW_NAMES[model.transform]


_WINDOW_NAMES: WeakKeyDictionary[Transform, pa.Table | None] = WeakKeyDictionary()
"""By the model's transform; cached, as they take longer than a row."""


def _explain_hashed(model: Model, path: str, rows: int, values: object) -> list[Explanation]:
    source = open_source([path], model.spec, labels="ignored")
    assert isinstance(source, DatasetSource)
    batches: Iterator[Batch | Chunk] = source.batches(rows)
    batch = next(batches, None)
    if batch is None:
        raise DataError(f"{path}: there is no row to explain.")
    slots = batch.slots[batch.indices] if isinstance(batch, Chunk) else batch.slots
    content = source.dictionary()
    dictionary = None if content is None else pa.ipc.open_file(content).read_all()
    texts = _texts(with_names(model.names(values), dictionary), slots)
    amounts = [1.0] * slots.size if batch.values is None else batch.values.tolist()
    features = [
        _BIAS_FEATURE if model.spec.bias and slot == 0 else _feature_of_slot(slot, amount, text)
        for slot, amount, text in zip(slots.tolist(), amounts, texts, strict=True)
    ]
    return [
        _explanation(model, f"{path}, row {number}", features[first:last])
        for number, (first, last) in enumerate(pairwise(batch.indptr.tolist()), 1)
    ]


def _texts(names: pa.Table | None, slots: Slots) -> list[str | None]:
    """The text of each slot, or None."""
    return [None] * slots.size if names is None else list(texts_of(names, slots)[0].to_pylist())


def _feature_of_slot(slot: int, value: float, text: str | None) -> ShownFeature:
    """The feature of a slot; its text, if known, begins with the field."""
    field, _, feature = (text or "").partition("=")
    return ShownFeature(field, "", feature or f"slot {slot}", slot, value)


def _with_bias(model: Model, features: Sequence[ShownFeature]) -> list[ShownFeature]:
    """The bias, if the model has one, and the features that have a slot."""
    bias = [_BIAS_FEATURE] if model.spec.bias else []
    return [*bias, *(feature for feature in features if feature.slot is not None)]


def _explanation(model: Model, place: str, features: Sequence[ShownFeature]) -> Explanation:
    slots: Slots = np.array([each.slot for each in features], slot_dtype(model.spec.bits))
    weights = model.linear.weights_at(slots).tolist()
    contributions = [
        Contribution(f.field, f.text, f.feature, slot, f.value, weight, weight * f.value)
        for f, slot, weight in zip(features, slots.tolist(), weights, strict=True)
    ]
    total = sum(each.contribution for each in contributions)
    contributions.sort(key=lambda each: -abs(each.contribution))
    prediction = probabilities_of(model.log_odds(np.array([total], np.float32)))
    return Explanation(place, total, float(prediction[0]), tuple(contributions))
