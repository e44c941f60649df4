"""The OpenAPI document: true, checked by requests that are generated from it."""

from __future__ import annotations

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.specs.openapi.schemas import OpenApiSchema

from api.body import Limits
from features import FeatureSpec
from tests.api.running import Running


@pytest.fixture(scope="module")
def generated(running: Running) -> OpenApiSchema:
    # 413 for too many rows is a rejection too, which the check does not know by itself.
    rejections = {"negative_data_rejection": {"expected-statuses": [413, 415, 422]}}
    return schemathesis.openapi.from_url(
        f"{running.url}/openapi.json", config=schemathesis.Config.from_dict({"checks": rejections})
    )


@pytest.mark.hypothesis
# Not by `schemathesis.pytest.from_fixture`, which 4.32 of it breaks with pytest 9.2; this is all it adds.
@pytest.mark.parametrize(
    ("method", "path", "mode"),
    [
        ("POST", "/v1/predict", GenerationMode.POSITIVE),
        ("POST", "/v1/predict", GenerationMode.NEGATIVE),
        ("GET", "/v1/model", GenerationMode.POSITIVE),
        ("GET", "/healthz", GenerationMode.POSITIVE),
        ("GET", "/readyz", GenerationMode.POSITIVE),
    ],
)
def test_every_answer_is_as_documented(
    generated: OpenApiSchema, method: str, path: str, mode: GenerationMode
) -> None:
    @given(case=generated[path][method].as_strategy(generation_mode=mode))
    @settings(max_examples=25 if method == "POST" else 5, suppress_health_check=list(HealthCheck))
    def check(case: schemathesis.Case) -> None:
        case.call_and_validate()

    check()


def test_every_endpoint_is_described(client: httpx.Client) -> None:
    document = client.get("/openapi.json").json()
    assert list(document["paths"]) == ["/v1/predict", "/v1/model", "/healthz", "/readyz"]
    for operations in document["paths"].values():
        for operation in operations.values():
            assert operation["summary"]
            assert operation["description"]


def test_the_documented_example_works(client: httpx.Client) -> None:
    operation = client.get("/openapi.json").json()["paths"]["/v1/predict"]["post"]
    example = operation["requestBody"]["content"]["application/json"]["example"]
    assert example == {
        "rows": [{"age": 5, "price": 5, "city": "68fd1e64", "device": "68fd1e64", "note": "68fd1e64"}]
    }
    assert len(client.post("/v1/predict", json=example).json()["predictions"]) == 1


def test_the_schema_lists_the_fields_of_the_model(client: httpx.Client, spec: FeatureSpec) -> None:
    operation = client.get("/openapi.json").json()["paths"]["/v1/predict"]["post"]
    rows = operation["requestBody"]["content"]["application/json"]["schema"]["properties"]["rows"]
    assert rows["maxItems"] == Limits().rows
    assert set(rows["items"]["properties"]) == set(spec.source.columns)


def test_the_documentation_page_is_served(client: httpx.Client) -> None:
    assert client.get("/docs").status_code == 200
