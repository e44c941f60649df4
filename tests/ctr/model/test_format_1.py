"""A model that an early version trained (commit 57efb2e, of tests/features/dataset/format_1/log.csv)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import ctr

FORMAT_1 = Path(__file__).parent / "format_1"
LOG = Path(__file__).parents[2] / "features" / "dataset" / "format_1" / "log.csv"
PREDICTED = [0.34623289108276367, 0.31559139490127563, 0.35802170634269714, 0.3146386444568634]
"""By that version, of the first rows."""
LOGLOSS = 0.5975191141182741


def test_it_is_evaluated_to_the_same_bits() -> None:
    model = ctr.load_model(FORMAT_1)
    assert model.id == "5ab0e0ee28d0"
    assert model.predict(LOG)[:4].tolist() == np.array(PREDICTED, np.float32).tolist()
    assert ctr.evaluate(model, LOG).metrics.logloss == LOGLOSS


def test_training_continues_from_it(tmp_path: Path) -> None:
    model = ctr.load_model(FORMAT_1)
    trained = ctr.train(LOG, model.spec, warm_start=FORMAT_1)
    assert ctr.evaluate(trained, LOG).metrics.logloss < LOGLOSS
    assert trained.manifest["training"]["warm_start"] == str(FORMAT_1)
    trained.save(tmp_path / "model")
    assert ctr.load_model(tmp_path / "model").id == trained.id
