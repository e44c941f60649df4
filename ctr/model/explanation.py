"""`explain`: what each feature of a row adds to its prediction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import nan
from typing import Any

import numpy as np

from ctr.model.linear import probabilities_of
from ctr.model.model import Model
from features import Slots, slot_dtype
from features.inspect import show

BIAS = "(bias)"


@dataclass(frozen=True, slots=True)
class Contribution:
    """What one feature adds to the log-odds of a row: its weight times its value."""

    field: str
    """Of the field or cross."""
    text: str
    """The cell; empty for a cross."""
    feature: str
    slot: int
    value: float
    weight: float
    """0 where the model has not learnt the feature, or learnt that it tells nothing."""
    contribution: float


@dataclass(frozen=True, slots=True)
class Explanation:
    """A row's prediction, and what it is made of."""

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


def explain(model: Model, inputs: Sequence[str], rows: int) -> list[Explanation]:
    """The first `rows` rows of raw data.

    Features of windows are left out: they depend on the moment, and are those of no one value. Raises
    DataError for data that carries its own features, when there is no row, and as reading does.
    """
    found = []
    for row in show(model.spec, inputs, rows):
        if not row.features:
            found.append(Explanation(row.place, nan, nan, ()))
            continue
        features = [(each, each.slot) for each in row.features if each.slot is not None]
        bias = [0] if model.spec.bias else []
        slots: Slots = np.array([*bias, *(slot for _, slot in features)], slot_dtype(model.spec.bits))
        weights = model.linear.weights_at(slots).tolist()
        parts = [Contribution(BIAS, "", BIAS, 0, 1.0, weight, weight) for weight in weights[: len(bias)]]
        for (each, slot), weight in zip(features, weights[len(bias) :], strict=True):
            contribution = weight * each.value
            parts.append(
                Contribution(each.field, each.text, each.feature, slot, each.value, weight, contribution)
            )
        total = sum(part.contribution for part in parts)
        parts.sort(key=lambda part: -abs(part.contribution))
        prediction = probabilities_of(model.log_odds(np.array([total], np.float32)))
        found.append(Explanation(row.place, total, float(prediction[0]), tuple(parts)))
    return found
