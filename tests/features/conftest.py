"""Files of rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from tests.features.raw_files import ROWS, csv_of, write


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """`ROWS` in three files: plain, compressed with other columns, and Parquet."""
    a = write(tmp_path / "a.csv", csv_of(ROWS[:40]))
    b = write(tmp_path / "b.csv.gz", csv_of([(c, "x", y, n) for y, n, c in ROWS[40:70]], "c,extra,y,n"))
    y, n, c = zip(*ROWS[70:], strict=True)
    parquet.write_table(pa.table({"c": c, "n": np.array(n, np.float64), "y": y}), tmp_path / "c.parquet")
    return [a, b, tmp_path / "c.parquet"]
