"""The weights of a model as a table, with the known texts of features; `largest`: the first of them."""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import compute

from ctr.errors import DataError, named
from ctr.features import Slots

BIAS = "(bias)"
"""The text of slot 0, the bias, which every example has."""
BETWEEN = " | "
"""Separates the texts of features that share a slot."""


def texts_of(names: pa.Table, slots: Slots) -> tuple[pa.Array, pa.Array]:
    """The texts and counts of the features at slots[k], in any order; null if unknown.

    `names` has the columns of a dictionary: `slot`, `feature`, `count`. If several features share a slot,
    their texts are separated by ` | `, the most frequent first, and their counts are added.
    """
    grouped = names.group_by("slot", use_threads=False).aggregate([("feature", "list"), ("count", "sum")])
    grouped = grouped.combine_chunks()
    texts = compute.binary_join(grouped["feature_list"].cast(pa.list_(pa.string())), BETWEEN)
    wide = pa.array(slots.astype(np.uint64, copy=False))
    places = compute.index_in(wide, value_set=grouped["slot"].combine_chunks())
    return texts.combine_chunks().take(places), grouped["count_sum"].combine_chunks().take(places)


def weight_table(
    slots: Slots, weights: NDArray[np.float32], names: pa.Table | None, *, bias: bool
) -> pa.Table:
    """One row per weight float32[k] of sorted slots[k]: `slot`, `weight`, `feature` and `count`.

    `names` has the columns of a dictionary (see `ctr.features.read_dictionary`). `bias`: slot 0 is the bias.
    """
    if names is None:
        texts, counts = pa.nulls(slots.size, pa.string()), pa.nulls(slots.size, pa.int64())
    else:
        texts, counts = texts_of(names, slots)
    if bias and slots.size and slots[0] == 0:
        texts = pa.concat_arrays([pa.array([BIAS]), texts.slice(1)])
    return pa.table(
        {
            "slot": pa.array(slots.astype(np.uint64, copy=False)),
            "weight": pa.array(weights),
            "feature": texts,
            "count": counts,
        }
    )


def largest(weights: pa.Table, rows: int, *, field: str | None = None, negative: bool = False) -> pa.Table:
    """At most `rows` rows of a `weight_table`, the largest absolute weights first.

    `field`: only features with a known text of this field or cross. `negative`: only weights below 0. Raises
    DataError if no feature of the field has a known text.
    """
    if field is not None:
        weights = weights.filter(_is_of(field, weights["feature"]))
        if not weights.num_rows:
            raise DataError(
                f"no weight has a feature that is known to be of {field!r}: name features with a "
                "dictionary (`ctr features build --dictionary N`), or with raw rows or a hashed data set "
                f"({named('values')})."
            )
    w = weights["weight"].to_numpy()
    if negative:
        weights = weights.filter(pa.array(w < 0))
        w = w[w < 0]
    order = np.argsort(-np.abs(w), kind="stable")[:rows]
    return weights.take(pa.array(order))


def _is_of(field: str, texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Whether each text names a feature of the field, such as `site=example.com` or `site`; never null."""
    end = f"=|$|{re.escape(BETWEEN)}"
    matches = compute.match_substring_regex(texts, f"(^|{re.escape(BETWEEN)}){re.escape(field)}({end})")
    return compute.fill_null(matches, fill_value=False)
