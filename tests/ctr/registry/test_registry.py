"""Registries of models on a disk and behind a URI: versions that never change, labels that do."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import ctr
from ctr.errors import ModelError
from ctr.features.dataset.cache import CACHE_DIR
from ctr.features.inputs.remote import _s3
from ctr.model import load_model
from ctr.registry import Registry, parse_place
from tests.features.inputs.s3_server import S3Server, start_s3

pytestmark = pytest.mark.xdist_group("s3")

SPEC = "{version: 1, source: {format: jsonl}, label: y, fields: [{name: site, type: category}]}"


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with start_s3() as server:
        server.put("models")
        yield server


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three models."""
    folder = tmp_path_factory.mktemp("models")
    rows = {"site": ["a", "b", "b", "c"] * 50, "y": [0, 1, 0, 1] * 50}
    for alpha in (1, 2, 3):
        ctr.train(rows, SPEC, alpha=alpha / 10, model=folder / str(alpha))
    return [folder / str(alpha) for alpha in (1, 2, 3)]


@pytest.fixture(params=["disk", "s3"])
def place(
    request: pytest.FixtureRequest, server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv(CACHE_DIR, str(tmp_path / "cache"))
    _s3.cache_clear()
    yield str(tmp_path / "registry") if request.param == "disk" else f"s3://models/{tmp_path.name}"
    _s3.cache_clear()


def ids_of(models: list[Path]) -> list[str]:
    return [load_model(model).id for model in models]


def test_versions_and_labels(place: str, models: list[Path]) -> None:
    registry, ids = Registry(place), ids_of(models)
    registry.init()
    assert registry.versions() == []
    assert registry.labels() == {}
    assert registry.publish(models[0], ["stable"]) == ids[0]
    assert registry.publish(models[1], ["canary"]) == ids[1]
    assert registry.publish(models[1]) == ids[1], "it is there already"
    assert {each.id: each.labels for each in registry.versions()} == {
        ids[0]: ("stable",),
        ids[1]: ("canary",),
    }
    registry.label("stable", "canary")
    registry.label("stable", ids[1][:4])
    assert registry.version_of("stable") == ids[1]
    assert registry.labels()["stable"].before == [ids[0]], "labelled once"
    rows = [{"site": "a"}, {"site": "c"}]
    np.testing.assert_array_equal(registry.load(ids[1]).predict(rows), load_model(models[1]).predict(rows))
    assert registry.rollback("stable") == ids[0]
    with pytest.raises(ModelError, match="has no earlier version; label another"):
        registry.rollback("stable")
    with pytest.raises(ModelError, match="has the label stable; point that to another"):
        registry.remove("stable")
    registry.publish(models[2], ["stable"])
    assert registry.remove(ids[0]) == ids[0]
    assert {each.id for each in registry.versions()} == set(ids[1:])
    with pytest.raises(ModelError, match="has no earlier version"):
        registry.rollback("stable")  # to one that was removed
    with pytest.raises(ModelError, match=f"there is no version {ids[0]}; was it removed"):
        registry.load(ids[0])


def test_what_is_wrong_is_said(place: str, models: list[Path], tmp_path: Path) -> None:
    registry = Registry(place)
    with pytest.raises(ModelError, match=r"there is no label stable \(labels: none\)"):
        registry.version_of("stable")
    with pytest.raises(ModelError, match="there is no label stable"):
        registry.rollback("stable")
    for wrong in ("stable", ""):
        with pytest.raises(ModelError, match=f"{wrong}: there is no such version; `ctr models list`"):
            registry.label("new", wrong)
    for wrong in ("", "a b", "../x", "0ab", "abcdef12"):
        with pytest.raises(ModelError, match="is not a label"):
            registry.publish(models[0], [wrong])
    assert registry.versions() == []
    registry.init()
    torn = tmp_path / "torn"
    shutil.copytree(models[0], torn)
    (torn / "weights.safetensors").write_bytes(b"")
    with pytest.raises(ModelError, match=r"weights\.safetensors"):
        registry.publish(torn)
    assert registry.versions() == []
    registry.publish(models[0], ["stable"])
    registry._storage.write("labels.json", b"{")
    with pytest.raises(ModelError, match=r"labels\.json: is damaged \(Invalid JSON"):
        registry.labels()
    with pytest.raises(ModelError, match=r"labels\.json"):
        registry.publish(models[1], ["stable"])


def test_two_at_once(tmp_path: Path, models: list[Path]) -> None:
    ids = ids_of(models)
    Registry(tmp_path / "registry").init()

    def publish(k: int) -> None:
        Registry(tmp_path / "registry").publish(models[k], [f"label-{k}", "stable"])

    with ThreadPoolExecutor(3) as threads:
        list(threads.map(publish, range(3)))
    labels = Registry(tmp_path / "registry").labels()
    assert [labels[f"label-{k}"].version for k in range(3)] == ids
    assert {labels["stable"].version, *labels["stable"].before} == set(ids)


def test_a_version_that_is_torn_is_not_loaded(tmp_path: Path, models: list[Path]) -> None:
    registry, (version, *_) = Registry(tmp_path / "registry"), ids_of(models)
    registry.init()
    registry.publish(models[0])
    path = tmp_path / "registry/versions" / version / "weights.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(ModelError, match="is not the file that was saved"):
        registry.load(version)


@pytest.mark.parametrize("content", [None, "[]"], ids=["unreadable", "other JSON"])
def test_a_damaged_manifest_leaves_the_other_versions_alone(
    tmp_path: Path, models: list[Path], content: str | None
) -> None:
    registry = Registry(tmp_path / "registry")
    registry.init()
    good, bad = (registry.publish(model) for model in models[:2])
    manifest = Path(registry.place, "versions", bad, "manifest.json")
    manifest.unlink()
    if content is None:
        manifest.mkdir()  # cannot be read
    else:
        manifest.write_text(content)
    assert [(each.id, each.created == "") for each in registry.versions()] == [(good, False), (bad, True)]
    assert registry.load(good).id == good
    with pytest.raises(ModelError, match=f"the manifest.json of version {bad} is damaged"):
        registry.load(bad)


def test_a_disk_that_refuses(tmp_path: Path, models: list[Path]) -> None:
    registry = Registry(tmp_path / "file")
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelError, match="file: is not a registry"):
        registry.publish(models[0])
    with pytest.raises(ModelError, match="the registry cannot be written"):
        registry.init()


def test_nothing_is_written_into_the_mount_point_of_what_is_away(tmp_path: Path, models: list[Path]) -> None:
    mount_point = tmp_path / "mount"
    mount_point.mkdir()
    for place, problem in (
        (mount_point, "is not a registry"),
        (mount_point / "registry", "there is no registry, and .*/mount is empty"),
        (mount_point / "team/registry", "there is no folder .*/mount/team"),
    ):
        registry = Registry(place)
        with pytest.raises(ModelError, match=rf"{problem}\..* `ctr models init --registry {place}`"):
            registry.publish(models[0], ["stable"])
        for change in (
            lambda registry=registry: registry.rollback("stable"),
            lambda registry=registry: registry.label("stable", "abcdef"),
            lambda registry=registry: registry.remove("abcdef"),
        ):
            with pytest.raises(ModelError, match="there is no"):
                change()
        assert list(mount_point.iterdir()) == []
    registry = Registry(mount_point / "team/registry")
    registry.init()
    version = registry.publish(models[0], ["stable"])
    registry.init()
    assert registry.version_of("stable") == version


def test_a_folder_of_something_else_is_no_registry(models: list[Path]) -> None:
    files = sorted(models[0].iterdir())
    for change in (Registry(models[0]).init, lambda: Registry(models[0]).publish(models[1])):
        with pytest.raises(
            ModelError, match=r"is not a registry, and holds .*; give an empty or a new folder"
        ):
            change()
    assert sorted(models[0].iterdir()) == files


def test_the_first_version_starts_a_registry_beside_other_files(tmp_path: Path, models: list[Path]) -> None:
    (tmp_path / "days.csv").write_text("")
    version = Registry(tmp_path / "registry").publish(models[0], ["stable"])
    assert Registry(tmp_path / "registry").version_of("stable") == version


def test_places() -> None:
    assert parse_place("models") == ("models", [])
    assert parse_place("s3://user@host/models") == ("s3://user@host/models", [])
    assert parse_place("s3://bucket/models@stable,canary") == ("s3://bucket/models", ["stable", "canary"])
    with pytest.raises(ModelError, match="'' is not a label"):
        parse_place("models@")


def test_published_by_training(tmp_path: Path) -> None:
    rows = {"site": ["a", "b", "b", "c"] * 50, "y": [0, 1, 0, 1] * 50}
    registry = tmp_path / "registry"
    with pytest.raises(ModelError, match="there is no registry"):
        ctr.train(rows, SPEC, model=tmp_path / "model", publish=f"{registry}@stable")
    assert list(tmp_path.iterdir()) == [], "said before training"
    Registry(registry).init()
    model = ctr.train(rows, SPEC, model=tmp_path / "model", publish=f"{registry}@stable")
    assert Registry(registry).version_of("stable") == model.id
    assert json.loads((registry / "versions" / model.id / "manifest.json").read_text())["id"] == model.id
    with pytest.raises(ctr.errors.SettingError, match="publish needs the folder of the model: give model"):
        ctr.train(rows, SPEC, publish=f"{registry}@stable")
    (registry / "labels.json").write_text("no")
    with pytest.raises(ModelError, match=r"labels\.json"):
        ctr.train(rows, SPEC, model=tmp_path / "other", publish=f"{registry}@stable")
    assert not (tmp_path / "other").exists(), "said before training"
