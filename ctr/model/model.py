"""`Model`: weights and the transform they were trained with, ready to predict."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np

from ctr.learn import Float32
from ctr.learn import ftrl_kernels as kernels
from features import Batch, Chunk, FeatureSpec, Slots, Transform
from features.batches import localize

FORMAT: Final = "ctr model"
FORMAT_VERSION: Final = 1
"""Of the model folder; a program reads the version it writes and no other."""

# Below this, looking up every feature is cheaper than finding the distinct slots first.
_LOCALIZE_FROM_ROWS = 512


@dataclass(frozen=True, slots=True)
class Model:
    """A trained model: sorted slots and their weights, and the transform they were trained with.

    Immutable, so any number of threads may predict with one object.
    """

    spec: FeatureSpec
    slots: Slots
    """uint32|uint64[k], sorted: the slots whose weight is not zero."""
    weights: Float32
    """float32[k]."""
    manifest: dict[str, Any]
    """What `GET /v1/model` shows: JSON values only."""
    transform: Transform

    @property
    def id(self) -> str:
        """12 hex digits of the SHA-256 of weights and transform: the same model has the same id anywhere."""
        return str(self.manifest["id"])

    @staticmethod
    def of_weights(spec: FeatureSpec, slots: Slots, weights: Float32, facts: Mapping[str, Any]) -> Model:
        """The model of weights float32[k] at sorted slots; `facts` go into the manifest."""
        kept = weights != 0
        if not kept.all():
            slots, weights = slots[kept], weights[kept]
        manifest = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "id": model_id(spec, slots, weights),
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "bits": spec.bits,
            "spec_fingerprint": spec.fingerprint,
            "nonzero_weights": int(weights.size),
            **facts,
        }
        return Model(spec, slots, weights, manifest, Transform(spec, with_label=False))

    def predict(self, examples: Batch | Chunk) -> Float32:
        """The click probability of each example, float32[n]."""
        probabilities = self.margins(examples)
        kernels.probabilities_of(probabilities)
        return probabilities

    def margins(self, examples: Batch | Chunk) -> Float32:
        """The log-odds of a click of each example, float32[n]: exact also where a probability rounds to 1."""
        if isinstance(examples, Batch) and len(examples) < _LOCALIZE_FROM_ROWS:
            indices = np.arange(examples.slots.size, dtype=np.uint32)
            w = self._weights_at(examples.slots)
            indptr, values = examples.indptr, examples.values
        else:
            chunk = localize(examples)
            w = self._weights_at(chunk.slots)
            indptr, indices, values = chunk.indptr, chunk.indices, chunk.values
        out = np.empty(len(examples), np.float32)
        kernels.margins_of(indptr, indices, values, w, out)
        return out

    def predict_rows(self, rows: Sequence[Mapping[str, object]]) -> Float32:
        """The click probability of each row, a mapping of column to value, float32[n].

        A column that is absent or None is a missing value. Raises DataError, naming row and column, for
        a column that the model does not know and for a value of the wrong kind.
        """
        if not rows:
            return np.empty(0, np.float32)
        return self.predict(self.transform.apply_rows(rows))

    def _weights_at(self, slots: Slots) -> Float32:
        if self.slots.size == 0:
            return np.zeros(slots.size, np.float32)
        at = np.searchsorted(self.slots, slots)
        at[at == self.slots.size] = 0
        return np.where(self.slots[at] == slots, self.weights[at], np.float32(0))


def model_id(spec: FeatureSpec, slots: Slots, weights: Float32) -> str:
    """12 hex digits of the SHA-256 of the transform and of non-zero weights float32[k] at sorted slots."""
    digest = hashlib.sha256(spec.fingerprint.encode())
    digest.update(slots.data)
    digest.update(weights.data)
    return digest.hexdigest()[:12]
