"""From columns of numbers to features: the steps and buckets of fields, and the values of `linear` fields."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ctr.features.columns import Arrays, Buckets, Column, TokenCounts
from ctr.features.spec import Clip, LinearField, NumberField, Scale
from ctr.features.steps import number_kernels as kernels
from ctr.features.text.hashing import hash_bytes

_CODES = {"sqrt": kernels.SQRT, "square": kernels.SQUARE, "log": kernels.LOG}
_BY = {
    "log": kernels.BY_LOG,
    "edges": kernels.BY_EDGES,
    "quantiles": kernels.BY_EDGES,
    "width": kernels.BY_WIDTH,
}
_LARGEST_VALUE = float(np.finfo(np.float32).max)


def buckets_of_numbers(field: NumberField, column: Column, seed: int, learnt: Arrays) -> Buckets:
    """The bucket of each number."""
    values, present, problem = column.numbers
    return Buckets(buckets_of(field, values, present, learnt).view(np.uint64), present, problem)


def values_of_numbers(field: LinearField, column: Column, seed: int, learnt: Arrays) -> TokenCounts:
    """One feature for each number, with the number as its value; a value of 0 is left out.

    All numbers have the same hash, that of bucket 0.
    """
    numbers, present, problem = column.numbers
    values = after_steps(field, numbers, present, learnt)
    single = np.clip(values, -_LARGEST_VALUE, _LARGEST_VALUE).astype(np.float32)
    has_feature = present & (single != 0)
    bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum(has_feature, dtype=np.int64)])
    hashes = np.full(bounds[-1], hash_bytes(bytes(8), seed), np.uint64)
    return TokenCounts(bounds, hashes, single[has_feature], problem, ~present)


def buckets_of(
    field: NumberField, values: NDArray[np.float64], present: NDArray[np.bool_], learnt: Arrays
) -> NDArray[np.int64]:
    """int64[n]: the bucket of each value that is present, after the field's steps."""
    edges = learnt["edges"] if field.transform == "quantiles" else np.array(field.edges, np.float64)
    buckets = np.zeros(values.size, np.int64)
    after = after_steps(field, values, present, learnt)
    kernels.bucket_numbers(after, present, _BY[field.transform], edges, field.width or 1.0, buckets)
    return buckets


def after_steps(
    field: NumberField,
    values: NDArray[np.float64],
    present: NDArray[np.bool_],
    learnt: Arrays,
    stop: int | None = None,
) -> NDArray[np.float64]:
    """The values after the field's first `stop` steps, or all; the steps are applied to present values."""
    steps = field.steps[:stop]
    if not steps:
        return values
    scaling = learnt["scaling"].tolist() if "scaling" in learnt else (0.0, 1.0)
    values = values.copy()
    kernels.apply_steps(values, present, *_program(steps, tuple(scaling)))
    return values


@lru_cache(maxsize=256)
def _program(
    steps: Sequence[str | Clip | Scale], scaling: tuple[float, float]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The steps as the arguments `codes` and `arguments` of `apply_steps`."""
    program: list[tuple[int, float, float]] = []
    for step in steps:
        if isinstance(step, Clip):
            program.append((kernels.CLIP, *step.clip))
        elif isinstance(step, Scale):
            program.append((kernels.SCALE, step.scale, 0.0))
        elif step in _CODES:
            program.append((_CODES[step], 0.0, 0.0))
        else:
            program.append((kernels.SHIFT, *scaling))
    codes = np.array([code for code, _, _ in program], np.int64)
    return codes, np.array([arguments for _, *arguments in program], np.float64).reshape(-1, 2)
