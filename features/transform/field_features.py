"""`FieldFeatures`: from a column to the hashed features of one field, including missing values."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ctr.errors import SpecError
from ctr.features.columns import Arrays, Buckets, Column, HashedTokens, TokenCounts
from ctr.features.spec import InputField, NumberField
from ctr.features.steps import STEPS
from ctr.features.text.hashing import hash_bytes
from ctr.features.transform.field_kernels import complete


class FieldFeatures:
    """A field of a spec and what it has learnt, ready to run."""

    def __init__(self, field: InputField, seed: int, learnt: Arrays) -> None:
        """`seed`: of the field's hashes. Raises SpecError if the constant for missing values is invalid."""
        self.field = field
        self.seed = seed
        self._learnt = learnt
        self.missing, self._missing_values = self._of_missing()
        """uint64[k] and float32[k]: the features of a missing value; at most one, unless it has `several`."""

    def make(self, column: Column) -> Buckets | HashedTokens | TokenCounts:
        """Applies the field's step to its column; `write` and `filled` add features for missing values."""
        return STEPS[self.field.step].make(self.field, column, self.seed, self._learnt)

    def write(
        self, features: Buckets | HashedTokens, hashes: NDArray[np.uint64], present: NDArray[np.bool_]
    ) -> None:
        """Writes the features' hashes, also for missing values; `present`: which rows have a feature."""
        keeps = self.missing.size > 0
        missing = self.missing[0] if keeps else np.uint64(0)
        words, are_there, _ = features
        is_hashed, seed = isinstance(features, HashedTokens), np.uint64(self.seed)
        complete(words, are_there, is_hashed, seed, keeps, missing, hashes, present)

    def filled(self, tokens: TokenCounts, status: NDArray[np.uint8]) -> TokenCounts:
        """`tokens`, with the features of a missing value in rows without a value; `status` as in `Column`."""
        if not self.missing.size:
            return tokens
        empty = np.diff(tokens.bounds) == 0 if tokens.missing is None else tokens.missing
        rows = np.flatnonzero(empty & (status == 0) & (tokens.problem == 0))
        if not rows.size:
            return tokens
        more = np.zeros(tokens.bounds.size, np.int64)
        more[rows + 1] = self.missing.size
        places = np.repeat(tokens.bounds[rows], self.missing.size)
        size = tokens.bounds[-1]
        return TokenCounts(
            tokens.bounds + np.cumsum(more),
            np.insert(tokens.hashes[:size], places, np.tile(self.missing, rows.size)),
            np.insert(tokens.values[:size], places, np.tile(self._missing_values, rows.size)),
            tokens.problem,
        )

    def _of_missing(self) -> tuple[NDArray[np.uint64], NDArray[np.float32]]:
        field = self.field
        if field.constant is None:
            hashes = [hash_bytes(b"", self.seed)] if field.missing == "feature" else []
            return np.array(hashes, np.uint64), np.ones(len(hashes), np.float32)
        constant = self.make(Column.of(field.constant))
        if isinstance(constant, TokenCounts):
            is_there = bool(constant.bounds[1] > 0 if constant.missing is None else not constant.missing[0])
            features = constant.hashes[: constant.bounds[1]], constant.values[: constant.bounds[1]]
        else:
            is_there = bool(constant.present[0])
            word = int(constant[0][0])
            if isinstance(constant, Buckets):
                word = hash_bytes(word.to_bytes(8, "little"), self.seed)
            hashes = [word] if is_there else []
            features = np.array(hashes, np.uint64), np.ones(len(hashes), np.float32)
        # A field that learns may drop a rare constant, as it drops other rare values.
        if constant.problem[0] or not (is_there or field.learns):
            kind = "number" if isinstance(field, NumberField) else "value of such a field"
            raise SpecError(
                f"field {field.name!r}: what stands for missing values, {field.constant!r}, is no {kind};"
                f" write one that is."
            )
        return features
