"""`spec_changes`: what sets one feature spec apart from another, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ctr.features import FeatureSpec
from ctr.features.spec import learnt_of

_WHOLE = ("label", "weight", "bits", "seed", "bias", "most_features")


def spec_changes(first: FeatureSpec, second: FeatureSpec) -> list[str]:
    """A line per difference that matters for features, from the first spec to the second."""
    one, other = first.model_dump(mode="json"), second.model_dump(mode="json")
    lines = [f"{key}: {one[key]} -> {other[key]}" for key in _WHOLE if one[key] != other[key]]
    for kind, singular in (("fields", "field"), ("windows", "window"), ("crosses", "cross")):
        lines += _of_named(singular, _named(one[kind]), _named(other[kind]))
    lines += [
        f"scale of {name!r}: {before:g} -> {after:g}"
        for name in dict.fromkeys([*first.scales, *second.scales])
        if (before := first.scales.get(name, 1)) != (after := second.scales.get(name, 1))
    ]
    if not lines and first.fingerprint != second.fingerprint:
        learnt = learnt_of(first) or learnt_of(second)
        lines.append("what its steps have learnt from data" if learnt else "the way rows are read")
    return lines


def _named(parts: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {part["name"]: part for part in parts}


def _of_named(kind: str, one: Mapping[str, dict[str, Any]], other: Mapping[str, dict[str, Any]]) -> list[str]:
    lines = [f"{kind} {name!r} is only in the first" for name in one if name not in other]
    lines += [f"{kind} {name!r} is only in the second" for name in other if name not in one]
    for name, part in one.items():
        after = other.get(name, part)
        keys = [key for key in {**part, **after} if part.get(key) != after.get(key)]
        lines += [f"{kind} {name!r}, {key}: {part.get(key)} -> {after.get(key)}" for key in keys]
    return lines
