"""Versions that are served while another takes their place: under load, as canary, sound or not."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import random
import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pytest
import tritonclient.http as triton

from ctr.api import AsyncClient, Client
from ctr.api.app import create_app
from ctr.api.operations.sources import FolderSource, ModelSource, RegistrySource
from ctr.api.operations.versions import Versions
from ctr.errors import CtrError
from ctr.features import sha256_of
from ctr.model import Model, load_model
from ctr.model.examples import Examples
from ctr.registry import Registry
from tests.api.running import Running, run_server
from tests.api.test_server import server_process
from tests.command_line import Cli
from tests.serving.changes import replace_file

ROWS = [{"city": "Köln", "age": 3}, {"city": "東京"}]


def versions_of(
    source: ModelSource,
    shares: Mapping[str, float] = MappingProxyType({}),
    retry_s: float = 0.1,
    poll_s: float = 0.02,
) -> Versions:
    first = source.load(source.versions()[source.main][0])

    def make_app(model: Model, metrics: Any, on_warm: Any) -> Any:
        return create_app(model, metrics=metrics, on_warm=on_warm)

    return Versions(source, first, make_app, shares, poll_s=poll_s, retry_s=retry_s)


@pytest.fixture
def served(registry: Registry) -> Iterator[Running]:
    with run_server(versions_of(RegistrySource(registry.place, ["stable"]))) as running:
        yield running


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.005)


def answered(client: httpx.Client, **headers: str | bytes) -> str:
    """The version that answers, whose predictions are its own."""
    response = client.post("/v1/predict", json={"rows": ROWS}, headers=headers)
    assert response.status_code == 200
    assert response.headers["ctr-model"] == response.json()["model"]
    return str(response.json()["model"])


def test_another_version_takes_the_place_under_load(
    registry: Registry, served: Running, models: list[Path]
) -> None:
    """No request fails, each is answered by one version, whole."""
    expected = {}
    for model in map(load_model, models):
        expected[model.id] = model.predict(ROWS).tolist()
    stop, seen, failures = threading.Event(), Counter[str](), []

    def ask() -> None:
        with httpx.Client(base_url=served.url, verify=False) as client:
            while not stop.is_set():
                try:
                    answer = client.post("/v1/predict", json={"rows": ROWS}).raise_for_status()
                    body = answer.json()
                    assert body["predictions"] == pytest.approx(expected[body["model"]], abs=1e-7)
                    assert answer.headers["ctr-model"] == body["model"]
                    seen[body["model"]] += 1
                except Exception as failure:  # noqa: BLE001
                    failures.append(failure)
                    return

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for path in [*models[1:], models[0], *models[1:]]:
        version = registry.publish(path, ["stable"])
        until(lambda version=version: answered(served.client) == version)
    registry.rollback("stable")
    until(lambda: answered(served.client) == load_model(models[1]).id)
    stop.set()
    for thread in threads:
        thread.join()
    assert failures == []
    assert seen.keys() == expected.keys()
    (of_stable,) = served.client.get("/v1/models").json()["served"]
    assert (of_stable["label"], of_stable["version"]) == ("stable", load_model(models[1]).id)
    metrics = served.client.get("/metrics").text
    assert "ctr_version_changes_total 6.0" in metrics
    assert metrics.count("ctr_model{id=") == 1


def test_a_version_that_fails_is_not_served(
    registry: Registry, served: Running, models: list[Path], caplog: pytest.LogCaptureFixture
) -> None:
    stable = answered(served.client)
    version = registry.publish(models[1])
    path = Path(registry.place, "versions", version, "weights.safetensors")
    sound = path.read_bytes()
    path.write_bytes(sound[:-1] + b"x")
    registry.label("stable", version)
    until(lambda: version in served.client.get("/v1/models").json()["failed"])
    assert answered(served.client) == stable
    assert "weights.safetensors is not the file that was saved" in caplog.text
    assert registry.place not in served.client.get("/v1/models").text, "paths are for administrators"
    assert "ctr_failed_versions_total 0.0" not in served.client.get("/metrics").text
    assert served.client.get("/readyz").json()["model"] == stable
    registry.publish(models[2], ["stable"])
    until(lambda: answered(served.client) == load_model(models[2]).id)
    path.write_bytes(sound)
    registry.label("stable", version)
    until(lambda: answered(served.client) == version)  # it is tried again
    assert served.client.get("/v1/models").json()["failed"] == []


def test_a_version_that_fails_under_one_label_stays_under_another(
    registry: Registry, models: list[Path]
) -> None:
    version = registry.publish(models[1], ["stable"])
    source = RegistrySource(registry.place, ["stable", "canary"])
    with run_server(versions_of(source, retry_s=3600)) as running:
        weights = Path(registry.place, "versions", version, "weights.safetensors")
        replace_file(weights, weights.read_bytes()[:-1])
        registry.label("canary", version)
        until(lambda: version in running.client.get("/v1/models").json()["failed"])
        time.sleep(0.1)  # the labels are read a few times
        assert answered(running.client) == version


def test_a_registry_that_is_away(
    registry: Registry, served: Running, models: list[Path], caplog: pytest.LogCaptureFixture
) -> None:
    stable = answered(served.client)
    place = Path(registry.place)
    place.rename(place.with_name("away"))
    until(lambda: "ctr_unread_labels_total 0.0" not in served.client.get("/metrics").text)
    assert answered(served.client) == stable
    assert "can be read again" not in caplog.text
    place.with_name("away").rename(place)
    registry.publish(models[1], ["stable"])
    until(lambda: answered(served.client) == load_model(models[1]).id)
    assert caplog.text.count(f"{place} can be read again") == 1


def test_a_version_that_was_away_is_tried_as_soon_as_it_is_back(
    registry: Registry, models: list[Path]
) -> None:
    """Its files were gone before the labels were, so it failed, and would wait to be tried again."""
    versions = versions_of(RegistrySource(registry.place, ["stable"]), retry_s=3600)
    place = Path(registry.place)
    with run_server(versions) as running:
        version = registry.publish(models[1])
        (place / "versions").rename(place / "away")
        labels, changed = place / "labels.json", place / "changed.json"
        changed.write_text(labels.read_text().replace(load_model(models[0]).id, version))
        changed.replace(labels)  # at once: half of it could not be read
        until(lambda: version in running.client.get("/v1/models").json()["failed"])
        place.rename(place.with_name("away"))
        until(lambda: "ctr_unread_labels_total 0.0" not in running.client.get("/metrics").text)
        (place.with_name("away") / "away").rename(place.with_name("away") / "versions")
        place.with_name("away").rename(place)
        until(lambda: answered(running.client) == version)


@pytest.mark.parametrize("name", ["weights.safetensors", "manifest.json"])
def test_a_server_starts_with_the_version_before_a_torn_one(
    registry: Registry, models: list[Path], name: str
) -> None:
    version = registry.publish(models[1], ["stable"])
    torn = Path(registry.place, "versions", version, name)
    replace_file(torn, torn.read_bytes()[:-9])
    with server_process("--registry", registry.place) as (process, line):
        assert httpx.get(f"{line.split()[-1]}/readyz").json()["model"] == load_model(models[0]).id
        assert f"version {version} of {registry.place} is not served" in process.said
        assert name in process.said


def test_a_server_starts_with_the_version_before_one_that_predicts_otherwise(
    registry: Registry, models: list[Path], caplog: pytest.LogCaptureFixture
) -> None:
    version = registry.publish(models[1], ["stable"])

    class Otherwise(RegistrySource):
        def load(self, name: str) -> Model:
            model = super().load(name)
            return replace(model, examples=Examples(ROWS, [0.5, 0.5])) if name == version else model

    with run_server(versions_of(Otherwise(registry.place, ["stable"]))) as running:
        assert answered(running.client) == load_model(models[0]).id
        assert running.client.get("/v1/models").json()["failed"] == [version]
    assert f"version {version} of {registry.place} is not served" in caplog.text


def test_the_command_names_the_version_that_is_served_instead_of_one_that_failed(
    registry: Registry, models: list[Path], tmp_path: Path
) -> None:
    wrong = tmp_path / "wrong"
    shutil.copytree(models[1], wrong)
    (wrong / "examples.json").write_bytes(Examples(ROWS, []).content(np.array([0.5, 0.5], np.float32)))
    manifest = json.loads((wrong / "manifest.json").read_text())
    manifest["sha256"]["examples.json"] = sha256_of(wrong / "examples.json")
    (wrong / "manifest.json").write_text(json.dumps(manifest))
    version = registry.publish(wrong, ["stable"])
    with server_process("--registry", registry.place, "--workers", 2) as (process, line):
        assert line.startswith(f"serving model {load_model(models[0]).id} on http")
        assert f"version {version} of {registry.place} is not served" in process.said


def test_a_canary_gets_its_share_by_key(registry: Registry, models: list[Path]) -> None:
    versions = versions_of(RegistrySource(registry.place, ["stable", "canary"]), {"canary": 0.25})
    stable, canary = load_model(models[0]).id, load_model(models[1]).id
    draw = random.Random(3)
    keys = [f"{draw.getrandbits(64):x}" for _ in range(400)]
    with run_server(versions) as running:
        assert {answered(running.client, **{"ctr-request-key": key}) for key in keys[:50]} == {stable}
        registry.publish(models[1], ["canary"])
        until(lambda: len(running.client.get("/v1/models").json()["served"]) == 2)
        shares = {each["label"]: each["share"] for each in running.client.get("/v1/models").json()["served"]}
        assert shares == {"stable": 0.75, "canary": 0.25}
        got = [answered(running.client, **{"ctr-request-key": key}) for key in keys]
        assert got == [answered(running.client, **{"ctr-request-key": key}) for key in keys]
        assert 0.18 < got.count(canary) / len(got) < 0.32
        assert set(got) == {stable, canary}
        registry.label("stable", canary)
        until(lambda: {answered(running.client, **{"ctr-request-key": key}) for key in keys[:50]} == {canary})


def test_triton_s_client_addresses_each_served_version(registry: Registry, models: list[Path]) -> None:
    registry.publish(models[1], ["shadow"])
    source = RegistrySource(registry.place, ["stable", "shadow"])
    stable, shadow = map(load_model, models[:2])
    city = triton.InferInput("city", [1], "BYTES")
    city.set_data_from_numpy(np.array(["Köln"], object))
    with run_server(versions_of(source, {"shadow": 0.5})) as running:
        until(lambda: len(running.client.get("/v1/models").json()["served"]) == 2)
        with triton.InferenceServerClient(running.url.removeprefix("http://")) as client:
            assert client.get_model_metadata("ctr")["versions"] == [stable.id, shadow.id]
            for model in (stable, shadow):
                assert model.id in client.get_model_metadata("ctr", model.id)["versions"]
                answer = client.infer("ctr", [city], model_version=model.id)
                np.testing.assert_array_equal(
                    answer.as_numpy("prediction"), model.predict([{"city": "Köln"}])
                )
        registry.label("shadow", stable.id)
        until(lambda: running.client.get("/v2/models/ctr").json()["versions"] == [stable.id])


def test_a_client_stays_with_a_version(registry: Registry, models: list[Path]) -> None:
    registry.publish(models[1], ["canary"])
    versions = versions_of(RegistrySource(registry.place, ["stable", "canary"]), {"canary": 0.5})
    expected = {(model := load_model(path)).id: model.predict(ROWS) for path in models[:2]}
    stable, canary = expected
    keys, table = ["Köln", *map(str, range(20))], pa.Table.from_pylist(ROWS)
    with run_server(versions) as running:
        until(lambda: len(running.client.get("/v1/models").json()["served"]) == 2)
        by_key = {key: answered(running.client, **{"ctr-request-key": key.encode()}) for key in keys}
        assert {*by_key.values()} == {stable, canary}
        with Client(running.url, batch_rows=1) as client:
            for key, version in by_key.items():
                np.testing.assert_array_equal(client.predict(ROWS, key=key), expected[version])
                np.testing.assert_array_equal(client.predict(table, key=key), expected[version])
        with Client(running.url, version="canary") as client:
            assert client.model()["id"] == canary
            np.testing.assert_array_equal(client.predict(ROWS), expected[canary])
        with Client(running.url, version=stable) as client:
            np.testing.assert_array_equal(client.predict(table), expected[stable])
        with Client(running.url, version="other") as client, pytest.raises(CtrError, match="is not served"):
            client.predict(ROWS)

        async def ask() -> None:
            async with AsyncClient(running.url) as client:
                for key, version in by_key.items():
                    np.testing.assert_array_equal(await client.predict(ROWS, key=key), expected[version])

        asyncio.run(ask())


def test_a_canary_that_is_served_alone_gets_all_requests(registry: Registry, models: list[Path]) -> None:
    registry.publish(models[1], ["canary"])
    with run_server(versions_of(RegistrySource(registry.place, ["canary"]), {"canary": 0.25})) as running:
        (served,) = running.client.get("/v1/models").json()["served"]
    assert (served["label"], served["share"]) == ("canary", 1.0)


def test_a_folder_that_training_replaces(tmp_path: Path, models: list[Path]) -> None:
    folder = tmp_path / "model"
    shutil.copytree(models[0], folder)
    with run_server(versions_of(FolderSource(folder))) as running:
        assert answered(running.client) == load_model(models[0]).id
        shutil.copytree(models[1], tmp_path / "next")
        folder.rename(tmp_path / "old")
        (tmp_path / "next").rename(folder)
        until(lambda: answered(running.client) == load_model(models[1]).id)


def test_the_command(registry: Registry, models: list[Path], cli: Cli) -> None:
    with server_process("--registry", registry.place) as (process, line):
        url = line.split()[-1]
        assert line == f"serving model {load_model(models[0]).id} on {url}\n"
        registry.publish(models[1], ["stable"])
        process.popen.send_signal(signal.SIGHUP)  # it looks at once
        with httpx.Client(base_url=url, verify=False) as client:
            until(lambda: answered(client) == load_model(models[1]).id)
        maps = Path(f"/proc/{process.popen.pid}/maps")
        until(lambda: maps.read_text().count(f"{registry.place}/versions") == 1)  # the first one is gone
        process.popen.send_signal(signal.SIGTERM)
        assert process.end()[0] == 0
    for words, problem in (
        ((), "give one: the folder of a model with --model"),
        (("--model", models[0], "--registry", "x"), "give one: the folder of a model with --model"),
        (("--model", models[0], "--canary", "5%"), "--canary is a share for a version of a registry"),
        (("--registry", "x", "--canary", "five"), "'five' is no share of the requests"),
        (
            ("--registry", "x", "--label", "canary", "--canary", "5%"),
            "--canary is a share beside another label",
        ),
        (("--model", models[0], "--label", "best"), "--label is for versions of a registry: give --registry"),
        (("--model", registry.place), "is a registry, not a model; give it with --registry"),
        (("--model", models[0], "--feedback-log", "x", "--feedback-keep", "1h"), "is for a log in Redis"),
        (("--model", models[0], "--tokens-file", "x", "--admin-tokens-file", "x"), "are the same file"),
        (("--registry", registry.place, "--label", "best"), "there is no label best (labels: stable)"),
    ):
        ended = cli("serve", "--port", 0, *words)
        assert ended.code in (1, 2)
        assert problem in ended.err


def test_memory_of_versions_is_given_back(registry: Registry, served: Running, models: list[Path]) -> None:
    def memory() -> float:
        return float(np.loadtxt("/proc/self/statm", usecols=1))

    swaps = [registry.publish(path) for path in models]
    for number in range(12):
        if number == 4:
            before = memory()
        registry.label("stable", swaps[number % 3])
        until(lambda number=number: answered(served.client) == swaps[number % 3])
    assert memory() - before < 5_000, "pages of 4 KiB"

    def mapped() -> int:
        """Models are mapped files, which take no memory while others map them, too."""
        gc.collect()
        return Path("/proc/self/maps").read_text().count(f"{registry.place}/versions")

    until(lambda: mapped() == 1)


def test_a_label_has_to_be_there_at_the_start(registry: Registry) -> None:
    with pytest.raises(CtrError, match="there is no label best"):
        versions_of(RegistrySource(registry.place, ["best"]))


def test_a_registry_has_to_be_there_at_the_start(tmp_path: Path, models: list[Path]) -> None:
    for place in (models[0], tmp_path / "none"):
        with pytest.raises(CtrError, match=f"{place}: there is no registry; `ctr models init"):
            versions_of(RegistrySource(str(place), ["stable"]))


def test_a_registry_that_is_away_is_looked_for_more_often(registry: Registry) -> None:
    """So that the version that it comes back with is served soon."""
    versions = versions_of(RegistrySource(registry.place, ["stable"]), poll_s=1)
    place = Path(registry.place)

    def unread(client: httpx.Client) -> float:
        return float(client.get("/metrics").text.split("\nctr_unread_labels_total ")[1].split()[0])

    with run_server(versions) as running:
        place.rename(place.with_name("away"))
        until(lambda: unread(running.client) >= 1)
        began = time.monotonic()
        until(lambda: unread(running.client) >= 11)
        assert time.monotonic() - began < 8


def test_a_version_after_an_outage_does_not_give_way_to_requests(
    registry: Registry, models: list[Path]
) -> None:
    niceness = []

    class Watched(RegistrySource):
        def load(self, version: str) -> Model:
            niceness.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
            return super().load(version)

    place = Path(registry.place)
    with run_server(versions_of(Watched(registry.place, ["stable"]))) as running:
        version = registry.publish(models[1], ["stable"])
        until(lambda: answered(running.client) == version)
        place.rename(place.with_name("away"))
        until(lambda: "ctr_unread_labels_total 0.0" not in running.client.get("/metrics").text)
        Registry(place.with_name("away")).rollback("stable")
        place.with_name("away").rename(place)
        until(lambda: answered(running.client) == load_model(models[0]).id)
    of_first, of_second, of_late = niceness
    assert of_second > of_late == of_first
