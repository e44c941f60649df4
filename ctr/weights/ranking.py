"""`largest`: the weights that say most."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from pyarrow import compute

from ctr.errors import DataError
from ctr.weights.table import BETWEEN


def largest(weights: pa.Table, rows: int, *, field: str | None = None, negative: bool = False) -> pa.Table:
    """At most so many rows of a `weight_table`, the largest weights first, whatever their sign.

    `field`: those of features of this field or cross only, as far as their texts are known. `negative`: those
    below 0 only. Raises DataError when no feature of the field is known by its text.
    """
    if field is not None:
        weights = weights.filter(_is_of(field, weights["feature"]))
        if not weights.num_rows:
            raise DataError(
                f"there is no weight whose feature is known to be one of {field!r}: name features with a "
                "dictionary (`ctr features build --dictionary N`) or with values (--values FILE)."
            )
    w = weights["weight"].to_numpy()
    if negative:
        weights = weights.filter(pa.array(w < 0))
        w = w[w < 0]
    order = np.argsort(-np.abs(w), kind="stable")[:rows]
    return weights.take(pa.array(order))


def _is_of(field: str, texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Which texts have a feature of the field, such as `site=example.com`; never null."""
    start = f"{field}="
    first = compute.starts_with(texts, start)
    found = compute.or_(first, compute.match_substring(texts, BETWEEN + start))
    return compute.fill_null(found, fill_value=False)
