"""What a program predicts: rows and tables, as they are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import ctr
from ctr.errors import DataError
from ctr.features import parse_spec
from ctr.model import LinearModel, save_model
from ctr.optimizers.ftrl import Ftrl

SPEC = """
version: 1
source: {format: parquet}
label: click
bits: 12
fields:
  - {name: site, type: category}
  - {name: price, type: number, transform: edges, edges: [1, 10]}
"""
ROWS = [{"site": "news", "price": 0.5}, {"site": "shop", "price": None}, {"site": "news", "price": 99}]


@pytest.fixture
def model() -> ctr.Model:
    """Every slot has a weight of its own."""
    slots = np.arange(1 << 12, dtype=np.uint32)
    weights = np.linspace(-1, 1, slots.size, dtype=np.float32)
    return ctr.Model.of(
        parse_spec(SPEC, "the spec"),
        LinearModel(slots, weights),
        {"optimizer": {**Ftrl().to_json(), "passes": 1}},
    )


def test_rows_and_tables_of_any_library_are_predicted_alike(model: ctr.Model) -> None:
    columns = {name: [row[name] for row in ROWS] for name in ROWS[0]}
    rows = model.predict(ROWS)
    assert len(set(rows.tolist())) == 3
    for table in (pa.table(columns), pd.DataFrame(columns), pl.DataFrame(columns)):
        assert np.array_equal(model.predict(table), rows)
    assert np.array_equal(model.predict(pa.table({**columns, "click": [0, 1, 1], "other": [1, 2, 3]})), rows)
    assert model.margins(ROWS) == pytest.approx(np.log(rows / (1 - rows)), abs=1e-5)
    assert model.predict([]).shape == (0,)
    assert model.predict(ROWS[1]).tolist() == rows[1:2].tolist()
    assert repr(model) == f"<Model {model.id}, slots: 2**12, non-zero weights: 4,096>"


def test_a_model_that_was_saved(model: ctr.Model, tmp_path: Path) -> None:
    state = np.ones((model.linear.slots.size, 2), np.float32)
    save_model(model, tmp_path / "model", (model.linear.slots, state))
    loaded = ctr.load_model(str(tmp_path / "model"))
    assert np.array_equal(loaded.predict(ROWS), model.predict(ROWS))


def test_what_is_no_example(model: ctr.Model) -> None:
    with pytest.raises(DataError, match="site"):
        model.predict(pa.table({"price": [1.0]}))
    with pytest.raises(DataError, match="sight"):
        model.predict([{"sight": "news"}])
    with pytest.raises(DataError, match=r"expected an Arrow table.*got"):
        model.predict(3)
    with pytest.raises(DataError, match=r"'price'.*not a number"):
        model.predict([{"price": "cheap"}])


def test_a_model_of_named_features_has_no_columns() -> None:
    spec = parse_spec("version: 1\nsource: {format: libsvm}\nbits: 12\n", "the spec")
    model = ctr.Model.of(spec, LinearModel(np.zeros(1, np.uint32), np.ones(1, np.float32)), {})
    with pytest.raises(DataError, match="libsvm features have no columns"):
        model.predict(pa.table({"price": [1.0]}))
