"""The Open Inference Protocol, with an independent client and by hand."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import orjson
import pytest
import tritonclient.http as triton
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ctr.api.app import create_app
from ctr.api.requests import Limits, read_infer
from ctr.api.service import INLINE_BYTES
from ctr.model.model import Model
from tests.api.running import Running, run_server
from tests.api.test_app import Wrapped
from tests.api.test_connection import LARGE

ROWS = [{"city": "Köln", "age": "3", "price": 0.5}, {"city": "", "age": "17", "price": -2.0}]


def tensor(name: str, datatype: str, data: list[Any], **more: Any) -> dict[str, Any]:
    return {"name": name, "shape": [len(data)], "datatype": datatype, "data": data, **more}


INPUTS = [
    tensor("city", "BYTES", ["Köln", ""]),
    tensor("age", "BYTES", ["3", "17"]),
    tensor("price", "FP64", [0.5, -2.0]),
]


@pytest.mark.parametrize("binary", [False, True])
def test_triton_s_client(running: Running, model: Model, binary: bool) -> None:
    with triton.InferenceServerClient(running.url.removeprefix("http://")) as client:
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready("ctr")
        assert client.is_model_ready("ctr", model.id)
        assert not client.is_model_ready("other")
        metadata = client.get_model_metadata("ctr")
        assert metadata["versions"] == [model.id]
        assert {"name": "city", "datatype": "BYTES", "shape": [-1]} in metadata["inputs"]
        assert client.get_server_metadata()["name"] == "ctr"
        inputs = []
        for name, kind, array in (
            ("city", "BYTES", np.array(["Köln", ""], object)),
            ("age", "INT32", np.array([3, 17], np.int32)),
            ("price", "FP32", np.array([[0.5], [-2.0]], np.float32)),
        ):
            inputs.append(triton.InferInput(name, array.shape, kind))
            inputs[-1].set_data_from_numpy(array, binary_data=binary)
        wanted = [triton.InferRequestedOutput("prediction", binary_data=binary)]
        answer = client.infer("ctr", inputs, request_id="mine", outputs=wanted, model_version=model.id)
        assert answer.get_response()["id"] == "mine"
        assert answer.get_response()["model_version"] == model.id
        np.testing.assert_array_equal(answer.as_numpy("prediction"), model.predict(ROWS))


@pytest.mark.parametrize("binary", [False, True])
def test_a_compressed_body(running: Running, model: Model, binary: bool) -> None:
    city = triton.InferInput("city", [2], "BYTES")
    city.set_data_from_numpy(np.array(["Köln", ""], object), binary_data=binary)
    with triton.InferenceServerClient(running.url.removeprefix("http://")) as client:
        answer = client.infer("ctr", [city], request_compression_algorithm="gzip")
        np.testing.assert_array_equal(
            answer.as_numpy("prediction"), model.predict([{"city": "Köln"}, {"city": ""}])
        )
        with pytest.raises(triton.InferenceServerException, match=r"\[415\] .* 'deflate'; send it with gzip"):
            client.infer("ctr", [city], request_compression_algorithm="deflate")


def test_by_hand(client: httpx.Client, model: Model) -> None:
    answer = client.post("/v2/models/ctr/infer", json={"inputs": INPUTS}).json()
    assert "id" not in answer
    (output,) = answer["outputs"]
    assert (output["name"], output["datatype"], output["shape"]) == ("prediction", "FP32", [2])
    np.testing.assert_array_equal(np.array(output["data"], np.float32), model.predict(ROWS))
    assert client.get("/v2/health/live").json() == {"live": True}


@pytest.mark.parametrize(
    ("request_", "problem"),
    [
        (b"{", "is not JSON"),
        ({}, "inputs: Field required"),
        ({"inputs": []}, "inputs"),
        (
            {"inputs": INPUTS, "outputs": [{"name": "score"}]},
            "there is no output 'score'; there is 'prediction'",
        ),
        ({"inputs": [tensor("nothing", "BYTES", ["x"])]}, "nothing"),
        ({"inputs": [INPUTS[0], INPUTS[0]]}, "input 'city' occurs twice"),
        ({"inputs": [tensor("city", "TEXT", ["x"])]}, "there is no datatype 'TEXT'"),
        ({"inputs": [{**INPUTS[0], "shape": [3]}]}, "2 values, and its shape says 3"),
        ({"inputs": [{**INPUTS[0], "shape": [1, 2]}]}, "its shape is [1, 2]; send a value for each row"),
        ({"inputs": [INPUTS[0], tensor("age", "BYTES", ["1"])]}, ""),
        ({"inputs": [tensor("price", "FP64", ["many"])]}, "'price': 'many' does not have the type FP64"),
        ({"inputs": [tensor("age", "INT8", [None, 300])]}, "300 does not have the type INT8"),
        ({"inputs": [tensor("age", "UINT64", [-1])]}, "-1 does not have the type UINT64"),
        ({"inputs": [tensor("age", "INT32", [1.5])]}, "1.5 does not have the type INT32"),
        ({"inputs": [tensor("age", "INT32", [True])]}, "True does not have the type INT32"),
        ({"inputs": [tensor("age", "BOOL", [2])]}, "2 does not have the type BOOL"),
        ({"inputs": [tensor("price", "FP32", [1e39])]}, "1e+39 does not have the type FP32"),
        (
            {"inputs": [{"name": "city", "shape": [1], "datatype": "BYTES"}]},
            "send its data as JSON, or as bytes",
        ),
        (
            b'{"inputs": [{"name": "city", "shape": [1], "datatype": "BYTES", "data": [%s%s]}]}'
            % (b"[" * 300, b"]" * 300),
            "nested too deeply",
        ),
        ({"inputs": [{**INPUTS[0], "x" * 100_000: 1}]}, "inputs.0.xxx"),
    ],
)
def test_errors_are_the_protocols(client: httpx.Client, request_: Any, problem: str) -> None:
    body = request_ if isinstance(request_, bytes) else orjson.dumps(request_)
    refused = client.post("/v2/models/ctr/infer", content=body)
    assert refused.status_code == 422
    assert list(refused.json()) == ["error"]
    assert problem in refused.json()["error"]
    assert len(refused.text) < 500


ANY_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=3),
    lambda each: st.lists(each, max_size=3) | st.dictionaries(st.text(max_size=3), each, max_size=2),
    max_leaves=5,
)
TENSORS = st.fixed_dictionaries(
    {
        "name": st.sampled_from(["city", "age", "price", "nothing"]) | ANY_JSON,
        "shape": st.just([1]) | st.just([1, 1]) | ANY_JSON,
        "datatype": st.sampled_from(["BYTES", "FP32", "FP16", "INT64", "BOOL"]) | ANY_JSON,
    },
    optional={
        "data": st.lists(ANY_JSON, min_size=1, max_size=1) | ANY_JSON,
        "parameters": st.fixed_dictionaries({"binary_data_size": st.integers(-1, 9) | ANY_JSON}) | ANY_JSON,
    },
)


@pytest.mark.hypothesis
@given(
    inputs=st.lists(TENSORS, max_size=2) | ANY_JSON,
    others=st.fixed_dictionaries({}, optional=dict.fromkeys(("id", "parameters", "outputs", "x"), ANY_JSON)),
    tail=st.binary(max_size=9),
    cut=st.integers(-2, 2) | st.just(0),
)
@settings(max_examples=200, suppress_health_check=list(HealthCheck))
def test_any_request_has_an_answer(
    client: httpx.Client, inputs: Any, others: dict[str, Any], tail: bytes, cut: int
) -> None:
    head = json.dumps({"inputs": inputs, **others}).encode()  # which writes halves of surrogates, too
    headers = {"inference-header-content-length": str(len(head) + cut)}
    answer = client.post("/v2/models/ctr/infer", content=head + tail, headers=headers)
    assert answer.status_code in (200, 422), answer.text
    assert ("outputs" if answer.status_code == 200 else "error") in answer.json()


def test_binary_data_that_is_none(client: httpx.Client) -> None:
    def ask(head: dict[str, Any], tail: bytes, size: str | None = None) -> httpx.Response:
        text = orjson.dumps(head)
        headers = {"inference-header-content-length": size or str(len(text))}
        return client.post("/v2/models/ctr/infer", content=text + tail, headers=headers)

    def of(datatype: str, size: Any) -> dict[str, Any]:
        one = {"name": "city", "shape": [1], "datatype": datatype, "parameters": {"binary_data_size": size}}
        return {"inputs": [one]}

    assert ask(of("BYTES", 5), b"\1\0\0\0x").status_code == 200
    for answer, problem in (
        (ask(of("BYTES", 9), b"\1\0\0\0x"), "its binary data is not in the body"),
        (ask(of("BYTES", "x"), b"\1\0\0\0x"), "its binary data is not in the body"),
        (ask(of("BYTES", 5), b"\1\0\0\0xy"), "1 bytes are left"),
        (ask(of("BYTES", 5), b"\2\0\0\0x"), "its binary data is truncated"),
        (ask(of("BYTES", 5), b"\1\0\0\0\xff"), "value 0 is not UTF-8"),
        (ask(of("INT64", 5), b"12345"), "its 5 bytes are no INT64"),
        (ask(of("FP16", 2), b"\0\x7c"), "has an infinite number"),
        (ask(of("BYTES", 0), b"", "9" * 5_000), "send a number"),
        (ask(of("BYTES", 0), b"", "many"), "Inference-Header-Content-Length is 'many'"),
        (ask(of("BYTES", 0), b"", "100000"), "Inference-Header-Content-Length is 100000"),
    ):
        assert answer.status_code == 422
        assert problem in answer.json()["error"]


def test_short_floats_have_the_decimals_that_training_data_has() -> None:
    """As those of Arrow: 0.1 would be another bucket than 0.10000000149."""
    values = np.array([0.1, np.nan, 3e38, -5], np.float32)
    price = {"name": "price", "shape": [4], "datatype": "FP32", "parameters": {"binary_data_size": 16}}
    head = orjson.dumps({"inputs": [price]})
    body, _ = read_infer(head + values.tobytes(), len(head))
    assert orjson.loads(body) == {"columns": {"price": [0.1, None, 3e38, -5.0]}}


def test_a_large_body_waits_its_turn_before_it_is_parsed(model: Model) -> None:
    slow = Wrapped(model)
    slow.gate.set()
    limits = Limits(large_bodies=1, body_s=1)
    with ThreadPoolExecutor(1) as pool, run_server(create_app(slow, limits=limits)) as running:
        slow.gate.clear()
        slow.entered.clear()
        under_way = pool.submit(running.client.post, "/v1/predict", content=LARGE)
        assert slow.entered.wait(10)
        response = httpx.post(f"{running.url}/v2/models/ctr/infer", content=b"{".ljust(INLINE_BYTES + 1))
        assert response.status_code == 503
        assert "large requests" in response.json()["error"]
        slow.gate.set()
        assert under_way.result().status_code == 200


def test_what_is_not_there(client: httpx.Client, model: Model) -> None:
    for path in ("/v2/models/other", "/v2/models/ctr/versions/1/infer", "/v2/nothing"):
        missing = client.post(path) if path.endswith("infer") else client.get(path)
        assert missing.status_code == 404
        assert model.id in missing.json()["error"]
