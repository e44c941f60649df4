"""A table, a spec for it, and when two matrices are the same."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
from scipy import sparse

SPEC = """
version: 1
source: {format: delimited, header: true}
label: click
weight: w
bits: 20
fields:
  - {name: site, type: category, missing: feature}
  - {name: rare, column: site, type: category, min_count: 3}
  - {name: n, type: number, transform: log, missing: feature}
  - {name: price, type: number, transform: quantiles, buckets: 5, missing: feature}
  - {name: margin, column: price, type: number, transform: linear, steps: [zscore]}
  - {name: at, type: category}
  - {name: title, type: text, words: [1]}
crosses: [site * price, n * title]
"""
ROWS = 300
TABLE = pa.table(
    {
        "at": pa.array(
            [datetime(2017, 11, 6, i % 24, 0, 0, i % 2, UTC) for i in range(ROWS)], pa.timestamp("us", "UTC")
        ),
        "click": pa.array([i % 3 == 0 for i in range(ROWS)]),
        "n": pa.array([None if i % 5 == 0 else i * i for i in range(ROWS)], pa.int32()),
        "price": pa.array([float("nan") if i % 11 == 0 else i / 8 for i in range(ROWS)]),
        "site": pa.array([None if i % 7 == 0 else f"s{i % 120}" for i in range(ROWS)]).dictionary_encode(),
        "title": pa.array(["ab c"[i % 4 :] for i in range(ROWS)], pa.large_string()),
        "unused": [[i] for i in range(ROWS)],
        "w": pa.array([1 + i % 2 for i in range(ROWS)], pa.float32()),
    }
)


def assert_equal(one: sparse.csr_matrix[Any], other: sparse.csr_matrix[Any]) -> None:
    assert one.shape == other.shape
    for name in ("indptr", "indices", "data"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
