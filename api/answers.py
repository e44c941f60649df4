"""The answer to a request: probabilities and, on request, the details behind them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any
from urllib.parse import parse_qs

import numpy as np
import orjson
import pyarrow as pa
from numpy.typing import NDArray

from ctr.api.requests import RequestError
from ctr.features import Batch, Transform
from ctr.model import Model, probabilities_of
from ctr.optimizers import Float32

MARGINS, UNSEEN, CONTRIBUTIONS = "margins", "unseen", "contributions"
DETAILS = (MARGINS, UNSEEN, CONTRIBUTIONS)
"""What a request may ask for in addition: `?include=margins,unseen`."""
BIAS = "(bias)"
_ARROW_NAMES = {MARGINS: "margin"}
_ARROW_TYPES = {
    CONTRIBUTIONS: pa.list_(
        pa.struct([("field", pa.string()), ("slot", pa.uint64()), ("contribution", pa.float32())])
    )
}


def details_of(query: bytes) -> frozenset[str]:
    """The details that a query string asks for. Raises `RequestError` (422) for unknown ones."""
    if not query:
        return frozenset()
    parameters = parse_qs(query.decode("latin-1"), keep_blank_values=True)
    for key in parameters:
        if key != "include":
            raise RequestError(422, f"unknown parameter {key!r:.80}; the only one is 'include'")
    details = {name for value in parameters["include"] for name in value.split(",")}
    for name in sorted(details.difference(DETAILS)):
        raise RequestError(422, f"include={name:.80}: not known; use one or more of: {', '.join(DETAILS)}")
    return frozenset(details)


@dataclass(frozen=True)
class Answers:
    """Makes the answers of a model. Any number of threads may use it."""

    model: Model
    on_predictions: Callable[[NDArray[np.float32]], None] = lambda _: None
    """Called with the predictions of each answer."""

    @cached_property
    def with_fields(self) -> Transform:
        """The model's transform, which also records the field of each feature."""
        history = self.model.transform.history
        return Transform(self.model.spec, with_label=False, with_fields=True, history=history)

    def transform_for(self, details: frozenset[str]) -> Transform:
        """The transform whose batches hold what these details need."""
        return self.with_fields if CONTRIBUTIONS in details else self.model.transform

    def json(
        self,
        batch: Batch,
        details: frozenset[str],
        keep: Callable[[NDArray[np.float32]], list[str] | None] | None = None,
    ) -> bytes:
        """The answer to the rows of a batch, as JSON; `keep` stores the rows and returns their ids."""
        margins, predictions = self._predict(batch)
        answer: dict[str, Any] = {"predictions": predictions, "model": self.model.id}
        if keep is not None and (ids := keep(predictions)) is not None:
            answer["ids"] = ids
        if details:
            answer |= self._details(batch, margins, details)
        # Serialized from the float32 array: each number gets the fewest digits that give the same float32
        # back, and no Python float is created.
        return orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)

    def table(self, batch: Batch, details: frozenset[str]) -> pa.Table:
        """The same as a table, one row per row of the batch; the schema's metadata has the model's id."""
        margins, predictions = self._predict(batch)
        columns = {"prediction": _array_of(predictions)}
        for name, values in self._details(batch, margins, details).items():
            is_array = isinstance(values, np.ndarray)
            array = _array_of(values) if is_array else pa.array(values, _ARROW_TYPES.get(name))
            columns[_ARROW_NAMES.get(name, name)] = array
        return pa.table(columns).replace_schema_metadata({"model": self.model.id})

    def _predict(self, batch: Batch) -> tuple[Float32, Float32]:
        """Margins and probabilities."""
        margins = self.model.margins(batch)
        predictions = probabilities_of(margins)
        self.on_predictions(predictions)
        return margins, predictions

    def _details(self, batch: Batch, margins: Float32, details: frozenset[str]) -> dict[str, Any]:
        """The details by name, each with a value per row."""
        values: dict[str, Any] = {MARGINS: margins} if MARGINS in details else {}
        if not details.intersection((UNSEEN, CONTRIBUTIONS)):
            return values
        weights = self.model.linear.weights_at(batch.slots)
        if UNSEEN in details:
            values[UNSEEN] = _unseen(batch, weights, bias=self.model.spec.bias)
        if CONTRIBUTIONS in details:
            values[CONTRIBUTIONS] = self._contributions(batch, weights)
        return values

    def _contributions(self, batch: Batch, weights: Float32) -> list[list[dict[str, Any]]]:
        """The contributions of each row's features, in the order of fields and crosses."""
        contributions = weights if batch.values is None else weights * batch.values
        names: Sequence[str] = (BIAS, *self.model.spec.names)
        if batch.fields is None:  # more fields than field ids
            raise RequestError(422, "include=contributions: the model has too many fields to tell them apart")
        features = [
            {"field": names[field], "slot": slot, "contribution": contribution}
            for field, slot, contribution in zip(
                batch.fields.tolist(), batch.slots.tolist(), contributions, strict=True
            )
        ]
        bounds = batch.indptr.tolist()
        return [features[first:last] for first, last in pairwise(bounds)]


def _array_of(values: Float32) -> pa.Array:
    """The same as Arrow; `pa.array` would import pandas, for seconds in the first request."""
    return pa.Array.from_buffers(pa.float32(), values.size, [None, pa.py_buffer(values)])


def _unseen(batch: Batch, weights: Float32, *, bias: bool) -> Float32:
    """float32[rows]: the share of a row's features, bias excluded, without a weight; 0 for no features."""
    zeros_before = np.concatenate([[0], np.cumsum(weights == 0)])
    missing = zeros_before[batch.indptr[1:]] - zeros_before[batch.indptr[:-1]]
    sizes = np.diff(batch.indptr)
    if bias:  # the first feature of each row
        missing = missing - (weights[batch.indptr[:-1]] == 0)
        sizes = sizes - 1
    shares: Float32 = (missing / np.maximum(sizes, 1)).astype(np.float32)
    return shares
