"""What `/metrics` tells, also of several versions."""

from __future__ import annotations

import re

import httpx
import pytest

from ctr.api.operations import ServingMetrics
from ctr.model.model import Model
from tests.api.running import Running


def value(text: str, name: str) -> float:
    (found,) = re.findall(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
    return float(found)


def test_predictions_and_rows(running: Running, client: httpx.Client, model: Model) -> None:
    before = client.get("/metrics").text
    rows = [{"city": "Köln", "age": str(age)} for age in range(20)]
    for count in (1, 20, 7):
        client.post("/v1/predict", json={"rows": rows[:count]}).raise_for_status()
    after = client.get("/metrics").text

    def more(name: str) -> float:
        return value(after, name) - value(before, name)

    of_model = f'{{id="{model.id}"}}'
    assert more("ctr_rows_total") == 28
    assert more("ctr_request_rows_count") == 3
    assert more(f"ctr_prediction_count{of_model}") == 1 + 7 + 7, "of some rows of each request"
    noted = [*model.predict(rows[:1]), *model.predict(rows)[::3], *model.predict(rows[:7])]
    assert more(f"ctr_prediction_sum{of_model}") == pytest.approx(sum(map(float, noted)), rel=1e-6)
    assert value(after, f"ctr_model_created_seconds{of_model}") > 1.7e9
    assert value(after, "process_resident_memory_bytes") > 1e7


def test_requests_of_the_open_inference_protocol_are_counted_by_path(client: httpx.Client) -> None:
    name = 'ctr_requests_total{path="/v2/models/ctr/infer",status="422"}'
    client.post("/v2/models/ctr/infer", json={})
    before = value(client.get("/metrics").text, name)
    client.post("/v2/models/ctr/infer", json={})
    assert value(client.get("/metrics").text, name) == before + 1


def test_versions_that_are_gone_are_not_told() -> None:
    metrics = ServingMetrics("first")
    metrics.predicted_by("first", "2026-01-01T00:00:00+00:00")
    metrics.predicted_by("second", "unknown")
    metrics.serve(["second"])
    text = metrics.text().decode()
    assert '"first"' not in text
    assert 'ctr_model{id="second"} 1.0' in text
    metrics.serve([])
    assert '"second"' not in metrics.text().decode()
