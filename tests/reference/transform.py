"""The transform as docs/spec.md states it, in plain Python over bytes, with the `xxhash` package."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import xxhash

from ctr.features.spec import CategoryField, FeatureSpec, NumberField, column_of
from tests.reference.crosses import cross as cross_features

_NUMBER = re.compile(rb"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_NAN = re.compile(rb"[+-]?nan", re.IGNORECASE)


_WHOLE = re.compile(rb"(-?(?:0|[1-9]\d*))\.0+")
_BOOLEANS = {b"true": b"1", b"True": b"1", b"TRUE": b"1", b"false": b"0", b"False": b"0", b"FALSE": b"0"}


class BadRowError(Exception):
    """Args: what is bad (the name of a RowStatus), and the index of its column."""


def number(text: bytes) -> float | None:
    """None when missing. Raises ValueError."""
    text = text.strip(b" \t")
    if not text or _NAN.fullmatch(text):
        return None
    if not _NUMBER.fullmatch(text):
        raise ValueError(text)
    value = float(text)
    if math.isinf(value):
        raise ValueError(text)
    return value


def category(text: bytes) -> bytes | None:
    """The one spelling of a category; None when missing."""
    if text in (b"", b"nan", b"NaN"):
        return None
    whole = _WHOLE.fullmatch(text)
    if whole:
        text = b"0" if whole[1] == b"-0" else whole[1]
    return _BOOLEANS.get(text, text)


def bucket(field: NumberField, value: float) -> int:
    if field.transform == "edges":
        return sum(edge <= value for edge in field.edges)
    if value <= 2:
        return max(math.floor(value), -(2**63))
    return 2 + math.floor(math.log(value) ** 2)


def field_hash(field: NumberField | CategoryField, text: bytes, seed: int) -> int | None:
    """The hash of a field's feature, or None when it has none."""
    field_seed = xxhash.xxh64_intdigest(field.name.encode(), seed)
    value = number(text) if isinstance(field, NumberField) else category(text)
    if value is None and field.constant is not None:
        return field_hash(field.model_copy(update={"missing": "skip"}), field.constant.encode(), seed)
    if value is None:
        return xxhash.xxh64_intdigest(b"", field_seed) if field.missing == "feature" else None
    data = value if isinstance(value, bytes) else bucket(field, value).to_bytes(8, "little", signed=True)
    return xxhash.xxh64_intdigest(data, field_seed)


def is_of_another_kind(label: float, kinds: set[float]) -> bool:
    """Whether it is 0 and rows before have -1, or the other way round; notes the first of them."""
    if label != 1 and not kinds:
        kinds.add(label)
    return label != 1 and label not in kinds


def transform_row(
    spec: FeatureSpec,
    columns: Sequence[str],
    row: Sequence[bytes],
    with_label: bool,
    kinds: set[float] | None = None,
) -> tuple[list[int], float | None, float | None]:
    """Slots, label and weight of a row of cells that stand in the order of `columns`.

    `kinds` is what labels of no click, 0 or -1, rows before it have; an empty set takes the first.
    """
    cell = dict(zip(columns, row, strict=True))
    label = weight = None
    if with_label:
        written = _checked("label", columns, cell, spec.label, {0.0: 0.0, 1.0: 1.0, -1.0: -1.0}.get)
        if is_of_another_kind(written, set() if kinds is None else kinds):
            raise BadRowError("label_minus" if written == -1 else "label_zero", columns.index(spec.label))
        label = float(written == 1)
        if spec.weight is not None:
            weight = _checked(
                "weight", columns, cell, spec.weight, lambda v: v if 1e-45 < v < 3.4e38 else None
            )
    hashes: dict[str, int | None] = {}
    for field in spec.fields:
        try:
            hashes[field.name] = field_hash(field, cell[column_of(field)], spec.seed)
        except ValueError:
            raise BadRowError("number", columns.index(column_of(field))) from None
    for cross in spec.crosses:
        features = {name: [] if h is None else [(h, 1)] for name, h in hashes.items()}
        found = cross_features(cross.name, cross.of, features, spec.seed)
        hashes[cross.name] = found[0][0] if found else None
    slots = [(h & (2**spec.bits - 1)) or 1 for h in hashes.values() if h is not None]
    return [0] * spec.bias + slots, label, weight


def _checked(what, columns, cell, column, check):
    try:
        value = number(cell[column])
    except ValueError:
        value = None
    value = None if value is None else check(value)
    if value is None:
        raise BadRowError(what, columns.index(column))
    return value
