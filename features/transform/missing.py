"""What becomes of missing values: nothing, a feature, or what a constant in their place becomes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctr.errors import SpecError
from ctr.features.columns import Arrays, Bag, Column, Hashes, Words
from ctr.features.spec import InputField, NumberField
from ctr.features.steps import STEPS
from ctr.features.text.hashing import hash_bytes
from ctr.features.text.number_kernels import NUMBER, edge_bucket, log_bucket, parse_number
from ctr.features.text.spelling_kernels import hash_spelling

Make = Callable[[Column], Words | Hashes | Bag]


def missing_hash(field: InputField, seed: int, learnt: Arrays) -> int | None:
    """The hash of the feature of a missing value of a field with at most one; None if it adds no feature.

    Raises SpecError if the constant that stands for it is no value.
    """
    if field.constant is None:
        return hash_bytes(b"", seed) if field.missing == "feature" else None
    if STEPS[field.step].make is not None:
        found = _of_constant(field, field.constant, seed, learnt)
        assert not isinstance(found, Bag)
        if not found.present[0]:
            return None
        word = int(found.words[0])
        return word if isinstance(found, Hashes) else hash_bytes(word.to_bytes(8, "little"), seed)
    text = np.frombuffer(field.constant.encode(), np.uint8)
    if not isinstance(field, NumberField):
        is_value, hashed = hash_spelling(text, np.uint64(0), np.uint64(text.size), np.uint64(seed))
        if not is_value:
            raise _no_value(field)
        return int(hashed)
    kind, value = parse_number(text, np.uint64(0), np.uint64(text.size))
    if kind != NUMBER:
        raise _no_value(field)
    edges = np.array(field.edges, np.float64)
    bucket = log_bucket(value) if field.transform == "log" else edge_bucket(value, edges)
    return hash_bytes(int(bucket).to_bytes(8, "little", signed=True), seed)


def maker(field: InputField, seed: int, learnt: Arrays) -> Make | None:
    """The step of `field` before the kernels, if it has one; of a field with `several` with missing values.

    Raises SpecError if the constant that stands for them is no value.
    """
    make = STEPS[field.step].make
    if make is None:
        return None
    if not field.several or field.missing == "skip":
        return lambda column: make(field, column, seed, learnt)
    hashes, values = np.array([hash_bytes(b"", seed)], np.uint64), np.ones(1, np.float32)
    if field.constant is not None:
        found = _of_constant(field, field.constant, seed, learnt)
        assert isinstance(found, Bag)
        hashes, values = found.hashes[: found.bounds[1]], found.values[: found.bounds[1]]

    def filled(column: Column) -> Bag:
        bag = make(field, column, seed, learnt)
        assert isinstance(bag, Bag)
        return fill(bag, column.status, hashes, values)

    return filled


def fill(bag: Bag, status: NDArray[np.uint8], hashes: NDArray[np.uint64], values: NDArray[np.float32]) -> Bag:
    """`bag` with these features in the rows whose value is missing; `status` as in `Column`."""
    empty = np.diff(bag.bounds) == 0 if bag.missing is None else bag.missing
    rows = np.flatnonzero(empty & (status == 0) & (bag.problem == 0))
    if not rows.size or not hashes.size:
        return bag
    more = np.zeros(bag.bounds.size, np.int64)
    more[rows + 1] = hashes.size
    places = np.repeat(bag.bounds[rows], hashes.size)
    size = bag.bounds[-1]
    return Bag(
        bag.bounds + np.cumsum(more),
        np.insert(bag.hashes[:size], places, np.tile(hashes, rows.size)),
        np.insert(bag.values[:size], places, np.tile(values, rows.size)),
        bag.problem,
    )


def _of_constant(field: InputField, constant: str, seed: int, learnt: Arrays) -> Any:
    make = STEPS[field.step].make
    assert make is not None
    found = make(field, Column.repeated(constant, 1), seed, learnt)
    if isinstance(found, Bag):
        is_there = found.bounds[1] > 0 if found.missing is None else not found.missing[0]
    else:
        is_there = found.present[0]
    # One that is rare may be dropped as other rare values are.
    if found.problem[0] or not (is_there or field.learns):
        raise _no_value(field)
    return found


def _no_value(field: InputField) -> SpecError:
    kind = "number" if isinstance(field, NumberField) else "value of such a field"
    return SpecError(
        f"field {field.name!r}: what stands for missing values, {field.constant!r}, is no {kind}; write one"
        f" that is."
    )
