"""What a prediction says: the probabilities, and on request what they come from."""

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
"""What may be asked for besides: `?include=margins,unseen`."""
BIAS = "(bias)"


def details_of(query: bytes) -> frozenset[str]:
    """The details that a query string asks for. `RequestError` (422) for others."""
    if not query:
        return frozenset()
    asked = parse_qs(query.decode("latin-1"), keep_blank_values=True)
    for key in asked:
        if key != "include":
            raise RequestError(422, f"unknown parameter {key!r:.80}; the only one is 'include'")
    details = {name for value in asked["include"] for name in value.split(",")}
    for name in sorted(details.difference(DETAILS)):
        raise RequestError(422, f"include={name:.80}: not known; use one or more of: {', '.join(DETAILS)}")
    return frozenset(details)


@dataclass(frozen=True)
class Answers:
    """Makes the answers of a model. Any number of threads may use it."""

    model: Model
    note: Callable[[NDArray[np.float32]], None] = lambda _: None
    """Called with the predictions of each answer."""

    @cached_property
    def with_fields(self) -> Transform:
        """The model's transform, which also tells the field of each feature."""
        of_model = self.model.transform
        return Transform(self.model.spec, with_label=False, with_fields=True, history=of_model.history)

    def transform_for(self, details: frozenset[str]) -> Transform:
        """The transform whose batches have what these details need."""
        return self.with_fields if CONTRIBUTIONS in details else self.model.transform

    def json(
        self,
        batch: Batch,
        details: frozenset[str],
        keep: Callable[[NDArray[np.float32]], list[str] | None] | None = None,
    ) -> bytes:
        """The answer to the rows of a batch, as JSON; `keep` gives ids for rows with these predictions."""
        margins = self.model.margins(batch)
        predictions = probabilities_of(margins)
        self.note(predictions)
        answer: dict[str, Any] = {"predictions": predictions, "model": self.model.id}
        if keep is not None and (ids := keep(predictions)) is not None:
            answer["ids"] = ids
        if details:
            if MARGINS in details:
                answer[MARGINS] = margins
            answer |= self._details(batch, details)
        # From the float32 array itself: each number has the fewest digits that give the same float32 back,
        # and no Python float is made of it.
        return orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)

    def table(self, batch: Batch, details: frozenset[str]) -> pa.Table:
        """The same as a table with a row per row; the model's id is in the schema's metadata."""
        margins = self.model.margins(batch)
        predictions = probabilities_of(margins)
        self.note(predictions)
        columns = {"prediction": pa.array(predictions)}
        if MARGINS in details:
            columns["margin"] = pa.array(margins)
        if UNSEEN in details:
            columns[UNSEEN] = pa.array(self._details(batch, frozenset({UNSEEN}))[UNSEEN])
        if CONTRIBUTIONS in details:
            of_rows = self._details(batch, frozenset({CONTRIBUTIONS}))[CONTRIBUTIONS]
            kind = pa.list_(
                pa.struct([("field", pa.string()), ("slot", pa.uint64()), ("contribution", pa.float32())])
            )
            columns[CONTRIBUTIONS] = pa.array(of_rows, kind)
        return pa.table(columns).replace_schema_metadata({"model": self.model.id})

    def _details(self, batch: Batch, details: frozenset[str]) -> dict[str, Any]:
        weights = self.model.linear.weights_at(batch.slots)
        found: dict[str, Any] = {}
        if UNSEEN in details:
            found[UNSEEN] = _unseen(batch, weights, bias=self.model.spec.bias)
        if CONTRIBUTIONS in details:
            found[CONTRIBUTIONS] = self._contributions(batch, weights)
        return found

    def _contributions(self, batch: Batch, weights: Float32) -> list[list[dict[str, Any]]]:
        """Of each row, those of its features, in the order of fields and crosses."""
        parts = weights if batch.values is None else weights * batch.values
        names: Sequence[str] = (BIAS, *self.model.spec.names)
        if batch.fields is None:  # there are more fields than ids
            raise RequestError(422, "include=contributions: the model has too many fields to tell them apart")
        features = [
            {"field": names[field], "slot": slot, "contribution": part}
            for field, slot, part in zip(batch.fields.tolist(), batch.slots.tolist(), parts, strict=True)
        ]
        bounds = batch.indptr.tolist()
        return [features[first:last] for first, last in pairwise(bounds)]


def _unseen(batch: Batch, weights: Float32, *, bias: bool) -> Float32:
    """float32[rows]: of each row's features but the bias, the share that has no weight; 0 if it has none."""
    none = np.concatenate([[0], np.cumsum(weights == 0)])
    missing = none[batch.indptr[1:]] - none[batch.indptr[:-1]]
    sizes = np.diff(batch.indptr)
    if bias:  # the first feature of each row
        missing = missing - (weights[batch.indptr[:-1]] == 0)
        sizes = sizes - 1
    shares: Float32 = (missing / np.maximum(sizes, 1)).astype(np.float32)
    return shares
