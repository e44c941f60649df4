"""The model folder: what is loaded is what was saved, also while a training job replaces it."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import numpy as np
import pytest

from ctr.errors import ModelError
from ctr.model.artifact import load_model, load_state, save_model
from ctr.model.model import Model, model_id
from features import parse_spec

SPEC = """
version: 1
source: {format: delimited, delimiter: ",", header: true}
label: click
bits: 22
fields: [{name: site, type: category}]
"""
FACTS = {"optimizer": {"name": "ftrl", "alpha": 0.1, "beta": 1.0, "l1": 0.0, "l2": 0.0, "passes": 1}}


def model_of(weight: float, slots: int = 100_000) -> Model:
    weights = np.full(slots, weight, np.float32)
    return Model.of_weights(
        parse_spec(SPEC, "spec.yaml"),
        np.arange(slots, dtype=np.uint32),
        weights,
        FACTS,
    )


def save(model: Model, folder: Path) -> None:
    save_model(model, folder, (model.slots, np.ones((model.slots.size, 2), np.float32) * model.weights[0]))


def test_a_model_that_is_replaced_while_it_is_loaded_is_the_old_or_the_new_one(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    models = [model_of(1.0), model_of(2.0)]
    save(models[0], folder)

    def retrain() -> None:
        for i in range(12):
            save(models[i % 2], folder)

    training = threading.Thread(target=retrain)
    training.start()
    seen = set()
    try:
        while training.is_alive():
            loaded = load_model(folder)
            assert loaded.id == model_id(loaded.spec, loaded.slots, loaded.weights)
            seen.add(loaded.id)
            state = load_state(folder, loaded.spec)
            assert state.state[0, 0] in (1.0, 2.0)
    finally:
        training.join()
    assert seen == {model.id for model in models}


def test_a_manifest_with_the_weights_of_another_model(tmp_path: Path) -> None:
    model = model_of(1.0, slots=3)
    save(model, tmp_path / "model")
    path = tmp_path / "model" / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "id": "0123456789ab"}))
    with pytest.raises(ModelError, match=f"0123456789ab, but the weights are those of model {model.id}"):
        load_model(tmp_path / "model")
