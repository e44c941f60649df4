"""Models of ctr in MLflow, with its own tracking and registry in a folder."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ctr
from ctr.api.operations.sources import MlflowSource
from ctr.errors import DataError, ModelError
from ctr.mlflow import RegisteredModel
from ctr.model import load_model
from tests.api.operations.test_versions import until, versions_of
from tests.api.running import run_server

pd = pytest.importorskip("pandas")
pytestmark = [
    pytest.mark.xdist_group("mlflow"),  # one process loads it
    pytest.mark.skipif(find_spec("mlflow") is None, reason="no mlflow"),
    pytest.mark.filterwarnings("ignore:.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]

SPEC = """
version: 1
source: {format: jsonl}
label: click
bits: 18
fields:
  - {name: site, type: category}
  - {name: age, type: number, transform: log}
  - {name: tags, type: list}
"""


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where MLflow keeps runs and models."""
    import mlflow

    monkeypatch.setenv("CTR_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlflow").as_uri())
    yield tmp_path / "mlflow"
    while mlflow.active_run():
        mlflow.end_run()


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two models."""
    place = tmp_path_factory.mktemp("models")
    rows = [
        {"click": i % 3 // 2, "site": [f"s{i % 7}", i % 5][i % 2], "age": i % 11, "tags": ["a", f"t{i % 3}"]}
        for i in range(400)
    ]
    (place / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for alpha in (0.1, 0.3):
        spec = ctr.features.parse_spec(SPEC, "spec.yaml")
        ctr.train(place / "log.jsonl", spec, alpha=alpha, model=place / str(alpha))
    return [place / "0.1", place / "0.3"]


def registered(folder: Path, name: str = "clicks") -> str:
    """The version that a model becomes, which `champion` then is."""
    import mlflow

    info = ctr.mlflow.log_model(folder, registered_model_name=name)
    version = str(info.registered_model_version)
    mlflow.MlflowClient().set_registered_model_alias(name, "champion", version)
    return version


def test_it_predicts_there_what_it_predicts_here(store: Path, folders: list[Path]) -> None:
    import mlflow

    model = load_model(folders[0])
    ctr.mlflow.log_model(model, "model", registered_model_name="clicks")
    there = mlflow.pyfunc.load_model("models:/clicks/1")
    frame = pd.DataFrame(
        {
            "site": ["s1", "s2", None],
            "age": [3.0, np.nan, 4.0],
            "tags": [["a", "t1"], [], None],
            "more": [1, 2, 3],
        }
    )
    expected = model.predict(
        [{"site": "s1", "age": 3, "tags": ["a", "t1"]}, {"site": "s2", "tags": []}, {"age": 4}]
    )
    np.testing.assert_array_equal(there.predict(frame), expected)
    # Numbers as categories, which pandas makes floats of where one is missing; columns that are not there.
    expected = model.predict([{"site": 3}, {}])
    np.testing.assert_array_equal(there.predict(pd.DataFrame({"site": [3, None]})), expected)
    with pytest.raises(Exception, match="age"):
        there.predict(pd.DataFrame({"age": ["old"]}))
    assert {each.name for each in there.metadata.get_input_schema().inputs} == {"site", "age", "tags"}
    assert list(Path(store).rglob("*.pkl")) == []


def test_data_that_carries_its_own_features(store: Path, tmp_path: Path) -> None:
    import mlflow

    lines = [f"{i % 3 // 2} {i % 7}:1 {7 + i % 5}:0.5\n" for i in range(300)]
    (tmp_path / "log.svm").write_text("".join(lines))
    (tmp_path / "rows.svm").write_text("".join(lines[:4]))
    model = ctr.train(tmp_path / "log.svm", "libsvm", model=tmp_path / "model")
    there = mlflow.pyfunc.load_model(f"models:/clicks/{registered(tmp_path / 'model')}")
    frame = pd.DataFrame({"features": [line[2:].strip() for line in lines[:4]]})
    np.testing.assert_array_equal(there.predict(frame), model.predict(tmp_path / "rows.svm"))


def test_it_comes_back_whole(store: Path, folders: list[Path], tmp_path: Path) -> None:
    registered(folders[0])
    loaded = ctr.mlflow.load_model("models:/clicks@champion")
    assert loaded.id == load_model(folders[0]).id
    loaded.save(tmp_path / "again")
    for name in ("weights.safetensors", "state.safetensors", "examples.json"):
        assert (tmp_path / "again" / name).read_bytes() == (folders[0] / name).read_bytes()
    ctr.mlflow.save_model(loaded, tmp_path / "saved")
    assert ctr.mlflow.load_model(tmp_path / "saved").id == loaded.id


def test_an_alias_is_served_and_followed(store: Path, folders: list[Path]) -> None:
    import mlflow

    first = registered(folders[0])
    before, after = (load_model(folder).id for folder in folders)
    with run_server(versions_of(MlflowSource("models:/clicks@champion"))) as running:
        assert running.client.get("/readyz").json()["model"] == before
        registered(folders[1])
        until(lambda: running.client.get("/readyz").json()["model"] == after)
        moved = store.with_name("away")
        store.rename(moved)
        until(lambda: "ctr_unread_labels_total 0.0" not in running.client.get("/metrics").text)
        assert running.client.get("/readyz").json()["model"] == after
        moved.rename(store)
        mlflow.MlflowClient().set_registered_model_alias("clicks", "champion", first)
        until(lambda: running.client.get("/readyz").json()["model"] == before)


@pytest.mark.parametrize(
    ("uri", "problem"),
    [
        ("models:/clicks", "give models:/NAME@ALIAS, or models:/NAME/VERSION"),
        ("models:/nothing@champion", "MLflow at file:.*nothing"),
        ("models:/clicks@best", "MLflow at file:.*best"),
        ("models:/clicks/77", "MLflow at file:"),
    ],
)
def test_what_is_not_there_is_named(store: Path, folders: list[Path], uri: str, problem: str) -> None:
    registered(folders[0])
    with pytest.raises(DataError, match=problem) as error:
        RegisteredModel(uri).folder()
    assert "\n" not in str(error.value)


def test_other_models_are_refused(store: Path, tmp_path: Path) -> None:
    import mlflow

    class Other(mlflow.pyfunc.PythonModel):  # type: ignore[misc,name-defined]
        def predict(self, context: Any, model_input: Any, params: Any = None) -> Any:
            return model_input

    mlflow.pyfunc.log_model(name="other", python_model=Other(), registered_model_name="other")
    with pytest.raises(DataError, match="models:/other/1: is a model of python_function"):
        RegisteredModel("models:/other/1").folder()
    with pytest.raises(ModelError, match="there is no such model folder"):
        ctr.mlflow.log_model(tmp_path / "nothing")


def test_without_mlflow(monkeypatch: pytest.MonkeyPatch, folders: list[Path]) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(DataError, match="needs mlflow, which is not installed: pip install mlflow"):
        ctr.mlflow.log_model(folders[0])
