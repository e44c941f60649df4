"""Steps and buckets of numbers as docs/spec.md states them, in plain Python."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ctr.features.spec import Clip, NumberField, Scale

_LARGEST = 1.7976931348623157e308


def after_step(step: str | Clip | Scale, value: float, scaling: Sequence[float]) -> float:
    sign = math.copysign(1.0, value)
    if isinstance(step, Clip):
        after = sorted((step.clip[0], value, step.clip[1]))[1]
    elif isinstance(step, Scale):
        after = value * step.scale
    elif step == "sqrt":
        after = sign * math.sqrt(abs(value))
    elif step == "log":
        after = sign * math.log1p(abs(value))
    elif step == "square":
        after = value * value
    else:
        after = (value - float(scaling[0])) / float(scaling[1])  # of numpy's, overflow is a warning
    return max(-_LARGEST, min(_LARGEST, after))


def after_steps(field: NumberField, value: float, learnt: Mapping[str, Any]) -> float:
    for step in field.steps:
        value = after_step(step, value, learnt.get("scaling", ()))
    return value


def bucket(field: NumberField, value: float, learnt: Mapping[str, Any]) -> int:
    value = after_steps(field, value, learnt)
    if field.transform in ("edges", "quantiles"):
        edges = field.edges if field.transform == "edges" else learnt["edges"]
        return sum(bool(edge <= value) for edge in edges)
    if field.transform == "width":
        quotient = value / field.width
        return 2**63 - 1024 if quotient >= 2**63 else math.floor(max(quotient, -(2.0**63)))
    if value <= 2:
        return max(math.floor(value), -(2**63))
    return 2 + math.floor(math.log(value) ** 2)


def quantile_edges(values: Sequence[float], buckets: int) -> list[float]:
    """The first value of each bucket but the first, when all values are there to be sorted."""
    ordered = sorted(values)
    return [ordered[len(ordered) * i // buckets] for i in range(1, buckets)]
