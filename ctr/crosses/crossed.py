"""The fields that are crossed: those of a spec, with missing values, and its numbers in coarser buckets."""

from __future__ import annotations

from collections.abc import Collection

from ctr.features import FeatureSpec
from ctr.features.spec import InputField, NumberField, column_of


def crossed_fields(spec: FeatureSpec) -> dict[str, tuple[InputField, str]]:
    """By name, the fields that are crossed, those of `spec` first, and the name of the field that each is of.

    That a value is missing tells something, too. And log-squared buckets are ever finer for larger numbers:
    in two of them hardly two rows agree. So those of `transform: log` have buckets of their logarithm beside.
    """
    own = {field.name: field for field in spec.fields}
    found = {name: (_with_missing(field), name) for name, field in own.items()}
    taken = {field.name for field in spec.all_fields} | {cross.name for cross in spec.crosses}
    for name, field in own.items():
        if not isinstance(field, NumberField) or field.transform != "log" or field.learns:
            continue
        coarse = _coarse(field)
        alike = (each for each in own.values() if each.model_copy(update={"name": coarse.name}) == coarse)
        if (same := next(alike, None)) is not None:
            found[same.name] = (same, name)
            continue
        while coarse.name in taken:
            coarse = coarse.model_copy(update={"name": f"{coarse.name}'"})
        taken.add(coarse.name)
        found[coarse.name] = (coarse, name)
    return found


def with_crossed_fields(spec: FeatureSpec, names: Collection[str]) -> FeatureSpec:
    """`spec` with its `crossed_fields` of these `names`, in the place of, or behind, its own."""
    wanted = {name: field for name, (field, _) in crossed_fields(spec).items() if name in names}
    fields = tuple(wanted.pop(field.name, field) for field in spec.fields)
    return spec.model_copy(update={"fields": (*fields, *wanted.values())})


def _with_missing(field: InputField) -> InputField:
    if field.missing != "skip" or field.several:
        return field
    return field.model_copy(update={"missing": "feature"})


def _coarse(field: NumberField) -> InputField:
    changed: dict[str, object] = {"name": f"{field.name} coarse", "column": column_of(field)}
    changed |= {"transform": "width", "width": 1.0, "steps": (*field.steps, "log")}
    return _with_missing(field.model_copy(update=changed))
