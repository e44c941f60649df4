"""The transform steps by name: for each, its fields, and how their values become features."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np

from ctr.features.columns import Arrays, Buckets, Column, HashedTokens, TokenCounts
from ctr.features.spec import (
    CategoryField,
    IndexField,
    InputField,
    LinearField,
    ListField,
    NamedField,
    NumberField,
    TextField,
    TimeField,
    WindowField,
    register_field,
)
from ctr.features.steps.index_kernels import hash_indices
from ctr.features.steps.named_kernels import hash_named
from ctr.features.steps.number_fit import fit_of_numbers
from ctr.features.steps.numbers import buckets_of_numbers, values_of_numbers
from ctr.features.steps.texts import (
    texts_of_indices,
    texts_of_linear,
    texts_of_named,
    texts_of_number,
    texts_of_times,
)
from ctr.features.steps.times import buckets_of_times
from ctr.features.words import (
    elements,
    known_values,
    ngrams,
    shaped,
    texts_of_elements,
    texts_of_ngrams,
    texts_of_value,
)

_BYTES_PER_FEATURE = 2  # at least: a name, and the separator after it


class Fit(Protocol):
    """What one field learns in a first pass over the data."""

    def prepared(self, column: Column) -> Any:
        """What `add` needs of some rows. This is most of the work, and several threads do it at once."""

    def add(self, prepared: Any) -> None:
        """Adds the results of `prepared`, in the order of the rows."""

    def merge(self, other: Self) -> None:
        """Adds what `other` has learnt from the rows after those of this fit."""

    def learnt(self) -> Arrays:
        """The arrays that the field `learns`, by name. Raises DataError if the data cannot determine them."""


@runtime_checkable
class OrderedFit(Fit, Protocol):
    """A `Fit` whose parts can be merged only if each knows how many values come before its own."""

    @property
    def count(self) -> int:
        """How many values were added."""

    def after(self, before: int) -> Self:
        """A new, empty fit, whose values follow `before` others."""


@dataclass(frozen=True, slots=True)
class Step:
    """A way to turn the values of a field into features."""

    field: type[InputField]
    """The class of such a field in a spec."""
    make: Callable[[Any, Column, int, Arrays], Buckets | HashedTokens | TokenCounts]
    """(field, values, seed of its hashes, what it learnt) -> its features. For some steps, kernels do the
    same tile by tile: see `ctr.features.transform.plan.TILED`."""
    fit: Callable[[Any], Fit | Arrays] | None = None
    """A new first pass for a field, or what it learns without one; None if such fields learn nothing."""
    texts: Callable[..., Sequence[str]] | None = None
    """(field, value, what it learnt, values of other columns that it needs) -> a readable text for each of
    the value's features, in their order. None: a value has one feature, and its text is the number of its
    bucket, or else the value itself."""


STEPS: dict[str, Step] = {}
"""The steps by the name in `InputField.step`."""


def register_step(name: str, step: Step, transform: str | None = None) -> None:
    """Registers a step, and its fields for use in specs: see `ctr.features.spec.register_field`."""
    STEPS[name] = step
    register_field(step.field, transform)


def _carried(hash_features: Any, _field: InputField, column: Column, seed: int, _: Arrays) -> TokenCounts:
    """The features that rows carry; those with a value of 0 are left out."""
    rows = len(column)
    most = int(column.lengths.sum(dtype=np.int64)) // _BYTES_PER_FEATURE + rows
    tokens = TokenCounts(
        np.empty(rows + 1, np.int64),
        np.empty(most, np.uint64),
        np.empty(most, np.float32),
        np.zeros(rows, np.uint8),
    )
    hash_features(column.text, np.uint64(seed), *tokens[:4])
    return tokens


def _no_history(_field: WindowField, column: Column, _seed: int, _learnt: Arrays) -> Buckets:
    """No features: `Transform` gets those of windows from its history, if it has one."""
    rows = len(column)
    return Buckets(np.zeros(rows, np.uint64), np.zeros(rows, np.bool_), np.zeros(rows, np.uint8))


_BUCKETS = Step(NumberField, buckets_of_numbers, fit_of_numbers, texts_of_number)

register_step("log", Step(NumberField, buckets_of_numbers, texts=texts_of_number), "log")
register_step("edges", Step(NumberField, buckets_of_numbers, texts=texts_of_number), "edges")
register_step("width", _BUCKETS, "width")
register_step("quantiles", _BUCKETS, "quantiles")
register_step("linear", Step(LinearField, values_of_numbers, fit_of_numbers, texts_of_linear), "linear")
STEPS["log after steps"] = STEPS["edges after steps"] = _BUCKETS
register_step("category", Step(CategoryField, shaped, texts=lambda _field, text, _learnt: [text]))
STEPS["shaped"] = Step(CategoryField, shaped, known_values, texts_of_value)
register_step("list", Step(ListField, elements, known_values, texts_of_elements))
register_step("text", Step(TextField, ngrams, known_values, texts_of_ngrams))
register_step("time", Step(TimeField, buckets_of_times, texts=texts_of_times))
STEPS["named"] = Step(NamedField, partial(_carried, hash_named), texts=texts_of_named)
STEPS["indices"] = Step(IndexField, partial(_carried, hash_indices), texts=texts_of_indices)
STEPS["window"] = Step(WindowField, _no_history)
