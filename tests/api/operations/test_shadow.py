"""A version that predicts what others answer, and shares of unseen values: what `/metrics` tells of them."""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest

from ctr.api.app import create_app
from ctr.api.operations import drift
from ctr.api.operations.sources import RegistrySource
from ctr.api.operations.versions import Versions
from ctr.model import Model, load_model
from ctr.registry import Registry
from tests.api.operations.test_metrics import value
from tests.api.operations.test_versions import ROWS, answered, until, versions_of
from tests.api.running import Running, run_server


@pytest.fixture
def shadowed(registry: Registry, models: list[Path]) -> Iterator[tuple[Running, Versions]]:
    versions = versions_of(RegistrySource(registry.place, ["stable", "shadow"]), {"shadow": 1.0})
    registry.publish(models[1], ["shadow"])
    with run_server(versions) as running:
        until(lambda: len(running.client.get("/v1/models").json()["served"]) == 2)
        yield running, versions


def test_differences_are_measured(shadowed: tuple[Running, Versions], models: list[Path]) -> None:
    client = shadowed[0].client
    stable, shadow = map(load_model, models[:2])
    assert {answered(client) for _ in range(20)} == {stable.id}
    until(lambda: value(client.get("/metrics").text, "ctr_shadow_difference_count") == 40)
    text = client.get("/metrics").text
    by_stable, by_shadow = stable.predict(ROWS), shadow.predict(ROWS)
    difference = 20 * float(np.abs(by_stable - by_shadow).sum())
    assert difference > 0
    assert value(text, "ctr_shadow_difference_sum") == pytest.approx(difference, rel=1e-5)
    sums = {by: value(text, f'ctr_shadow_predictions_total{{by="{by}"}}') for by in ("served", "shadow")}
    assert sums == pytest.approx(
        {"served": 20 * float(by_stable.sum()), "shadow": 20 * float(by_shadow.sum())}, rel=1e-5
    )
    assert {each["label"]: each["share"] for each in client.get("/v1/models").json()["served"]} == {
        "stable": 1.0,
        "shadow": 0.0,
    }


def test_what_a_shadow_cannot_predict_is_answered_all_the_same(
    shadowed: tuple[Running, Versions], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    client = shadowed[0].client
    body, head = json.dumps({"rows": ROWS}).encode(), {"content-type": "application/json"}
    packed = client.post(
        "/v1/predict", content=gzip.compress(body), headers={**head, "content-encoding": "gzip"}
    )
    assert packed.status_code == 200
    assert client.post("/v1/predict", content=b"no JSON", headers=head).status_code == 422
    monkeypatch.setattr("ctr.api.service.probabilities_of", lambda _: 1 / 0)
    for _ in range(3):
        answered(client)
    left_out = 'ctr_shadow_left_out_total{why="failed"}'
    until(lambda: left_out in client.get("/metrics").text)
    until(lambda: value(client.get("/metrics").text, left_out) == 3)
    text = client.get("/metrics").text
    assert value(text, 'ctr_shadow_left_out_total{why="compressed"}') == 1
    assert value(text, "ctr_shadow_difference_count") == 0
    assert caplog.text.count("the shadow version failed on a request") == 1


def test_unseen_values_are_counted_by_field(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drift, "EVERY_S", 0.0)
    model.manifest["unseen"] = {"city": 0.25}
    with run_server(create_app(model)) as running:
        del model.manifest["unseen"]
        for city in ("Köln", "Atlantis", "Utopia", ""):
            rows = [{"city": city, "age": 3}, {"city": "Nowhere"}]  # the first of each request is looked at
            running.client.post("/v1/predict", json={"rows": rows}).raise_for_status()
        text = running.client.get("/metrics").text

    def of(name: str, field: str) -> float:
        return value(text, f'ctr_field_{name}{{field="{field}"}}')

    assert of("features_total", "city") == 3
    assert of("unseen_total", "city") == 2
    assert of("features_total", "age") == 4
    assert of("unseen_total", "age") == 0
    assert of("unseen_expected", "city") == 0.25


def test_looking_at_rows_is_bounded(client: httpx.Client) -> None:
    series = 'ctr_field_features_total{field="city"}'
    text = client.get("/metrics").text
    before = value(text, series) if series in text else 0.0
    began = time.monotonic()
    for _ in range(100):
        client.post("/v1/predict", json={"rows": [{"city": "Köln"}]}).raise_for_status()
    most = (time.monotonic() - began) / drift.EVERY_S + 2
    assert 1 <= value(client.get("/metrics").text, series) - before <= most


def test_a_version_that_predicts_its_examples_otherwise_is_not_served(
    registry: Registry, models: list[Path], tmp_path: Path
) -> None:
    """As a library of another version may have it, of which no digest tells."""
    model = load_model(models[1])
    assert model.examples is not None
    broken = tmp_path / "broken"
    model.save(broken)
    path = broken / "examples.json"
    entries = json.loads(path.read_bytes())
    entries["predictions"][4] = 0.75
    path.write_text(json.dumps(entries))
    from ctr.features import sha256_of

    manifest = json.loads((broken / "manifest.json").read_bytes())
    manifest["sha256"]["examples.json"] = sha256_of(path)
    (broken / "manifest.json").write_text(json.dumps(manifest))
    with run_server(versions_of(RegistrySource(registry.place, ["stable"]))) as running:
        version = registry.publish(broken, ["stable"])
        until(lambda: version in running.client.get("/v1/models").json()["failed"])
        assert answered(running.client) == load_model(models[0]).id
