"""`weight_mass`: which fields a model's weights belong to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from ctr.weights import BIAS

UNKNOWN = "(no text)"


def weight_mass(weights: pa.Table, scales: Mapping[str, float]) -> list[tuple[str, float]]:
    """Fields and crosses with their shares of the sum of absolute weights, the largest first.

    `weights` is what `Model.weights` gives; each counts times the scale of its field or cross. The bias is
    left out; features without a text, such as those that a dictionary has no room for, are together in the
    last entry. Of several features that share a slot, the most frequent has the weight. Empty: nothing has a
    text.
    """
    sums: Counter[str] = Counter()
    unknown = 0.0
    sizes = np.abs(weights["weight"].to_numpy()).astype(np.float64)
    texts = weights["feature"]
    named = np.asarray(texts.is_valid())
    unknown = float(sizes[~named].sum())
    for text, size in zip(texts.filter(pa.array(named)).to_pylist(), sizes[named].tolist(), strict=True):
        if text != BIAS:
            name = text.partition("=")[0]
            sums[name] += size * scales.get(name, 1.0)
    whole = sum(sums.values()) + unknown
    if not sums or not whole:
        return []
    shares = [(name, size / whole) for name, size in sums.most_common()]
    return [*shares, (UNKNOWN, unknown / whole)] if unknown else shares
