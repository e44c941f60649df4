"""The OpenAPI document: true, checked by requests that are generated from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx
import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings

from ctr.api.app import create_app
from ctr.api.operations import Access, RegistrySource, Tokens, Versions
from ctr.api.requests.body import Limits
from ctr.features import FeatureSpec, parse_spec
from ctr.model import LinearModel, Model
from ctr.registry import Registry
from tests.api.running import Running, run_server

if TYPE_CHECKING:  # not every test process need load it
    import schemathesis
    from schemathesis.specs.openapi.schemas import OpenApiSchema


def examples(in_gate: int) -> int:
    """How many examples to draw: in the gate, and more of them in `make fuzz`."""
    return in_gate if settings.default.derandomize else 5 * in_gate


@pytest.fixture(scope="module")
def generated(running: Running) -> OpenApiSchema:
    import schemathesis

    # 413 for too many rows is a rejection too, which the check does not know by itself.
    rejections = {"negative_data_rejection": {"expected-statuses": [413, 415, 422]}}
    return schemathesis.openapi.from_url(
        f"{running.url}/openapi.json", config=schemathesis.Config.from_dict({"checks": rejections})
    )


def has_one_length(body: object) -> bool:
    """Whether all columns of a request have as many values, which a schema cannot say."""
    columns = body.get("columns") if isinstance(body, dict) else None
    return not isinstance(columns, dict) or len({len(values) for values in columns.values()}) <= 1


def has_unused_fields(body: object) -> bool:
    """Whether a request has fields that no row takes its value from; these are not checked.

    They are columns without rows, and those of a context that every candidate replaces.
    """
    match body:
        case {"columns": dict(columns)}:
            return all(values == [] for values in columns.values())
        case {"context": dict(context), "candidates": list(candidates)}:
            fields = [each if isinstance(each, dict) else {} for each in candidates]
            return any(all(name in each for each in fields) for name in context)
    return False


@pytest.mark.hypothesis
@pytest.mark.xdist_group("openapi")  # one process loads it
# Not by `schemathesis.pytest.from_fixture`, which 4.32 of it breaks with pytest 9.2; this is all it adds.
@pytest.mark.parametrize(
    ("method", "path", "mode"),
    [
        ("POST", "/v1/predict", "positive"),
        ("POST", "/v1/predict", "negative"),
        ("POST", "/v1/explain", "positive"),
        ("POST", "/v1/explain", "negative"),
        ("GET", "/v1/model", "positive"),
        ("GET", "/healthz", "positive"),
        ("GET", "/readyz", "positive"),
        ("GET", "/v2", "positive"),
        ("GET", "/v2/health/live", "positive"),
        ("GET", "/v2/health/ready", "positive"),
        ("GET", "/v2/models/ctr", "positive"),
        ("GET", "/v2/models/ctr/ready", "positive"),
        ("POST", "/v2/models/ctr/infer", "negative"),
    ],
)
def test_every_answer_is_as_documented(generated: OpenApiSchema, method: str, path: str, mode: str) -> None:
    from schemathesis import GenerationMode

    @given(case=generated[path][method].as_strategy(generation_mode=GenerationMode(mode)))
    @settings(max_examples=examples(8 if method == "POST" else 3), suppress_health_check=list(HealthCheck))
    def check(case: schemathesis.Case) -> None:
        assume(mode == "positive" or not has_unused_fields(case.body))
        assume(mode == "negative" or has_one_length(case.body))
        case.call_and_validate()

    check()


@pytest.mark.hypothesis
@pytest.mark.xdist_group("openapi")
def test_inference_is_as_documented(running: Running) -> None:
    """Tensors whose shape or datatype is not that of their data are right by the schema."""
    import schemathesis
    from schemathesis import GenerationMode

    accepted = {"positive_data_acceptance": {"expected-statuses": [200, 422]}}
    document = schemathesis.openapi.from_url(
        f"{running.url}/openapi.json", config=schemathesis.Config.from_dict({"checks": accepted})
    )
    infer = document["/v2/models/ctr/infer"]["POST"]

    @given(case=infer.as_strategy(generation_mode=GenerationMode.POSITIVE))
    @settings(max_examples=examples(15), suppress_health_check=list(HealthCheck))
    def check(case: schemathesis.Case) -> None:
        case.call_and_validate()

    check()


@pytest.mark.slow  # while kernels have to be compiled
@pytest.mark.hypothesis
@pytest.mark.xdist_group("openapi")
def test_windows_are_as_documented() -> None:
    """Rows without a time or too late are right by the schema."""
    import schemathesis
    from schemathesis import GenerationMode

    spec = parse_spec(
        """
version: 1
source: {format: jsonl}
label: y
fields: [{name: site, type: category}]
windows:
  - {name: user, key: [user], time: t, format: unix, spans: [1m], expire: 1h, features: [count]}
""",
        "windows",
    )
    weights = LinearModel.of_weights(np.array([3], np.uint32), np.ones(1, np.float32))
    model = Model.of(spec, weights, {"optimizer": {"name": "ftrl"}})
    with run_server(create_app(model)) as running:
        checks = {
            "positive_data_acceptance": {"expected-statuses": [200, 422]},
            "negative_data_rejection": {"expected-statuses": [405, 413, 415, 422]},
        }
        document = schemathesis.openapi.from_url(
            f"{running.url}/openapi.json", config=schemathesis.Config.from_dict({"checks": checks})
        )
        for path in ("/v1/predict", "/v1/explain", "/v1/events/impressions", "/v1/events/clicks"):
            for mode in ("positive", "negative"):

                @given(case=document[path]["POST"].as_strategy(generation_mode=GenerationMode(mode)))
                @settings(max_examples=examples(4), suppress_health_check=list(HealthCheck))
                def check(case: schemathesis.Case) -> None:
                    assume(not has_unused_fields(case.body))
                    case.call_and_validate()

                check()


@pytest.mark.hypothesis
@pytest.mark.xdist_group("openapi")
def test_labels_are_as_documented(registry: Registry) -> None:
    """Whatever an administrator sends, and whoever has no token."""
    import schemathesis
    from schemathesis import GenerationMode

    source = RegistrySource(registry.place, ["stable"])
    first = source.load(source.versions()["stable"][0])
    versions = Versions(source, first, lambda m, metrics, warm: create_app(m, metrics=metrics, on_warm=warm))
    nobody = Tokens(None, "NONE")
    admin = Tokens(None, "NONE")
    admin.required, admin._tokens = True, [b"administrator-token"]
    with run_server(Access(versions, nobody, admin, None)) as running:
        # A version that is not there, and one with a rollback, are right by the schema.
        accepted = {"positive_data_acceptance": {"expected-statuses": [200, 401, 409, 422]}}
        document = schemathesis.openapi.from_url(
            f"{running.url}/openapi.json", config=schemathesis.Config.from_dict({"checks": accepted})
        )
        with_token = {"authorization": "Bearer administrator-token"}

        def check(method: str, path: str, mode: str, head: dict[str, str]) -> None:
            @given(case=document[path][method].as_strategy(generation_mode=GenerationMode(mode)))
            @settings(max_examples=examples(4), suppress_health_check=list(HealthCheck))
            def answered(case: schemathesis.Case) -> None:
                answer = case.call(headers=head)
                case.validate_response(answer)
                assert answer.status_code in (200, 401, 409, 422)

            answered()

        check("GET", "/v1/models", "positive", {})
        for mode in ("positive", "negative"):
            for head in ({}, with_token):
                check("POST", "/v1/models/{label}", mode, head)
        assert registry.version_of("stable") == first.id


def test_every_endpoint_is_described(client: httpx.Client) -> None:
    document = client.get("/openapi.json").json()
    assert list(document["paths"]) == [
        "/v1/predict",
        "/v1/predict/arrow",
        "/v1/explain",
        "/v1/model",
        "/healthz",
        "/readyz",
        "/v2",
        "/v2/health/live",
        "/v2/health/ready",
        "/v2/models/ctr",
        "/v2/models/ctr/ready",
        "/v2/models/ctr/infer",
    ]
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


def test_the_documented_inference_works(client: httpx.Client) -> None:
    document = client.get("/openapi.json").json()
    operation = document["paths"]["/v2/models/ctr/infer"]["post"]
    example = operation["requestBody"]["content"]["application/json"]["example"]
    assert example == {"inputs": [{"name": "age", "datatype": "BYTES", "shape": [1], "data": ["5"]}]}
    answer = client.post("/v2/models/ctr/infer", json=example).json()
    assert len(answer["outputs"][0]["data"]) == 1
    (name,) = {each["name"] for each in answer["outputs"]}
    schemas = document["components"]["schemas"]
    assert schemas["RequestedOutput"]["properties"]["name"]["enum"] == [name]
    described = client.get("/v2/models/ctr").json()["inputs"]
    assert schemas["InputTensor"]["properties"]["name"]["enum"] == [each["name"] for each in described]


def test_the_schema_lists_the_fields_of_the_model(client: httpx.Client, spec: FeatureSpec) -> None:
    operation = client.get("/openapi.json").json()["paths"]["/v1/predict"]["post"]
    rows = operation["requestBody"]["content"]["application/json"]["schema"]["oneOf"][0]["properties"]["rows"]
    assert rows["maxItems"] == Limits().rows
    assert set(rows["items"]["properties"]) == set(spec.source.columns)


def test_the_documentation_page_is_served(client: httpx.Client) -> None:
    assert client.get("/docs").status_code == 200
