"""The model folder: what is loaded is what was saved, also while a training job replaces it."""

from __future__ import annotations

import hashlib
import json
import mmap
import threading
from pathlib import Path

import numpy as np
import pytest

from ctr.errors import ModelError
from ctr.features import parse_spec
from ctr.model.artifact import load_model, load_state, save_model, state_of
from ctr.model.linear import LinearModel
from ctr.model.model import Model, model_id

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
    linear = LinearModel.of_weights(np.arange(slots, dtype=np.uint32), weights)
    return Model.of(parse_spec(SPEC, "spec.yaml"), linear, FACTS)


def save(model: Model, folder: Path) -> None:
    slots, weights = model.linear.slots, model.linear.weights
    save_model(model, folder, (slots, np.ones((slots.size, 2), np.float32) * weights[0]))


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
            assert loaded.id == model_id(loaded.spec, loaded.linear)
            seen.add(loaded.id)
            state = load_state(folder, loaded.spec)
            assert state.state[0, 0] in (1.0, 2.0)
    finally:
        training.join()
    assert seen == {model.id for model in models}


def test_a_link_that_leads_to_one_model_and_then_another(tmp_path: Path) -> None:
    """To and fro, so that the manifest may be what it was before though the weights were another's."""
    link, draft = tmp_path / "model", tmp_path / "draft"
    models = [model_of(1.0, slots=10), model_of(2.0, slots=10)]
    for i, model in enumerate(models):
        save(model, tmp_path / f"model-{i}")
    link.symlink_to("model-0")
    over = threading.Event()

    def relink() -> None:
        i = 0
        while not over.is_set():
            draft.symlink_to(f"model-{(i := 1 - i)}")
            draft.replace(link)

    relinking = threading.Thread(target=relink)
    relinking.start()
    try:
        seen = {load_model(link).id for _ in range(1_000)}
    finally:
        over.set()
        relinking.join()
    assert seen == {model.id for model in models}


def test_the_state_of_a_model_whose_place_another_has_taken(tmp_path: Path) -> None:
    old, new = model_of(1.0, slots=3), model_of(2.0, slots=3)
    save(old, tmp_path / "model")
    loaded = load_model(tmp_path / "model")
    assert state_of(loaded)[1][0, 0] == 1
    save(new, tmp_path / "model")
    with pytest.raises(ModelError, match=f"another model, {new.id}, has replaced {old.id}"):
        state_of(loaded)


def test_a_manifest_with_the_weights_of_another_model(tmp_path: Path) -> None:
    model = model_of(1.0, slots=3)
    save(model, tmp_path / "model")
    path = tmp_path / "model" / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "id": "0123456789ab"}))
    with pytest.raises(ModelError, match=f"0123456789ab, but the weights are those of model {model.id}"):
        load_model(tmp_path / "model")


def test_numbers_are_mapped_and_stay_what_they_were(tmp_path: Path) -> None:
    old, new = model_of(1.0), model_of(2.0)
    save(old, tmp_path / "model")
    loaded = load_model(tmp_path / "model")
    state = load_state(tmp_path / "model", loaded.spec)
    save(new, tmp_path / "model")
    for numbers, wanted in (
        (loaded.linear.slots, old.linear.slots),
        (loaded.linear.weights, old.linear.weights),
        (state.slots, old.linear.slots),
        (state.state, np.ones((100_000, 2))),
    ):
        owner = numbers
        while isinstance(owner, np.ndarray):
            owner = owner.base
        assert isinstance(getattr(owner, "obj", owner), mmap.mmap)
        assert numbers.flags.writeable  # or kernels would be compiled anew
        np.testing.assert_array_equal(numbers, wanted)
    assert load_model(tmp_path / "model").id == new.id


@pytest.mark.parametrize("kept", [0, 4, 9, 200])
def test_torn_weights_with_the_right_checksum(tmp_path: Path, kept: int) -> None:
    save(model_of(1.0), tmp_path / "model")
    weights, path = tmp_path / "model" / "weights.safetensors", tmp_path / "model" / "manifest.json"
    weights.write_bytes(weights.read_bytes()[:kept])
    manifest = json.loads(path.read_text())
    manifest["sha256"][weights.name] = hashlib.sha256(weights.read_bytes()).hexdigest()
    path.write_text(json.dumps(manifest))
    with pytest.raises(ModelError, match=r"weights\.safetensors.* cannot be read"):
        load_model(tmp_path / "model")
