"""The data sets that ship with the package are as they are described, and models learn from them."""

from __future__ import annotations

import csv
import doctest
import io
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import ctr
from ctr import datasets
from ctr.errors import DataError
from ctr.features import load_spec

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize(
    ("make", "low", "high"),
    [(datasets.ads, 0.14, 0.19), (datasets.criteo, 0.2, 0.27), (datasets.installs, 0.01, 0.03)],
)
def test_a_model_learns_from_it(make: Callable[..., datasets.Dataset], low: float, high: float) -> None:
    rows, spec = make(4_000)
    assert rows.num_rows == 4_000
    assert rows.equals(make(4_000).rows)
    model = ctr.train(rows, spec, holdout_fraction=0.25)
    found = model.manifest["metrics"]["holdout"]
    assert low < model.evaluate(rows).base_rate < high
    assert found["normalized_entropy"] < 1
    for wrong in (0, None):
        with pytest.raises(DataError, match=f"rows is {wrong}: give a whole number of at least 1"):
            make(wrong)


def test_it_is_what_the_examples_write() -> None:
    script = [sys.executable, EXAMPLES / "talkingdata_csv.py", "50"]
    written = subprocess.run(script, stdout=subprocess.PIPE, text=True, check=True).stdout
    rows = list(csv.DictReader(io.StringIO(written)))
    ours = datasets.installs(50).rows.to_pylist()
    assert [{name: str(value) for name, value in row.items()} for row in ours] == rows
    assert datasets.ads(10).spec.decisive() | {"bits": 22} == load_spec(EXAMPLES / "ads.yaml").decisive()


def test_the_matrix() -> None:
    x, y = datasets.sparse(2_000)
    assert x.shape == (2_000, 16_384)
    assert x.dtype == np.float32
    assert set(x.data.tolist()) == {1.0}
    assert 17 < x.nnz / 2_000 < 20
    assert 0.25 < y.mean() < 0.35
    learnt = ctr.FTRLClassifier().fit(x[:1_500], y[:1_500])
    probability = learnt.predict_proba(x[1_500:])[:, 1]
    assert np.corrcoef(probability, y[1_500:])[0, 1] > 0.2


def test_the_example_in_the_docstring() -> None:
    found = doctest.testmod(datasets)
    assert found.attempted >= 4
    assert found.failed == 0
