"""libsvm rows to features in plain Python, with the `xxhash` package."""

from __future__ import annotations

import numpy as np
import xxhash

from ctr.features.spec import FeatureSpec
from tests.reference.transform import is_of_another_kind, number


def parse_row(
    line: bytes, spec: FeatureSpec, kinds: set[float] | None = None
) -> tuple[float, list[int], list[np.float32]] | None:
    """Label, slots and values of a row; None if it is bad. `kinds`: as for `transform.transform_row`."""
    tokens = line.partition(b"#")[0].split()
    label = number(tokens[0]) if _is_number(tokens[0]) else None
    if label not in (0, 1, -1) or is_of_another_kind(label, set() if kinds is None else kinds):
        return None
    slots = [0] if spec.bias else []
    values = [np.float32(1)] if spec.bias else []
    seed = xxhash.xxh64_intdigest(b"index", spec.seed)
    for token in tokens[1:]:
        index, colon, text = token.partition(b":")
        if not colon or not index.isdigit() or int(index) >= 2**63 or not _is_number(text):
            return None
        with np.errstate(over="ignore"):
            value = np.float32(number(text))
        if not np.isfinite(value):
            return None
        if value != 0:
            slot = xxhash.xxh64_intdigest(int(index).to_bytes(8, "little"), seed) % 2**spec.bits
            slots.append(slot or 1)
            values.append(value)
    return float(label == 1), slots, values


def _is_number(text: bytes) -> bool:
    try:
        return number(text) is not None
    except ValueError:
        return False
