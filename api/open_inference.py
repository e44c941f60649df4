"""`add_open_inference`: the endpoints of the Open Inference Protocol, version 2."""

from __future__ import annotations

from typing import Any

import orjson
from fastapi import APIRouter, FastAPI, Request, Response

from ctr import __version__
from ctr.api.requests import OUTPUT, RequestError, read_body, read_infer
from ctr.api.service import Service
from ctr.errors import DataError, StoreError

NAME = "ctr"
"""Of the model; its version is its id."""
_HEADER_BYTES = "inference-header-content-length"
_MOST_DIGITS = 18
"""Of a length in a header; Python reads no more than 4,300."""
_MODEL = f"/models/{NAME}"


def add_open_inference(app: FastAPI, service: Service) -> None:
    """Health, metadata and inference below `/v2`; errors are `{"error": ...}` there."""
    router, model = APIRouter(prefix="/v2", include_in_schema=False), service.model
    model_id = model.id  # endpoints must not keep the model: see `Service.close`
    version = f"{_MODEL}/versions/{model_id}"
    columns = [name for name in model.transform.columns if name not in (model.spec.label, model.spec.weight)]
    metadata = {
        "name": NAME,
        "versions": [model.id],
        "platform": "ctr",
        "inputs": [{"name": name, "datatype": "BYTES", "shape": [-1]} for name in columns],
        "outputs": [{"name": OUTPUT, "datatype": "FP32", "shape": [-1]}],
    }

    async def describe_server() -> Response:
        return _json({"name": "ctr", "version": __version__, "extensions": ["binary_tensor_data"]})

    async def live() -> Response:
        return _json({"live": True})

    async def ready() -> Response:
        try:
            service.check_ready()
            await service.check_windows()
        except RequestError as error:
            return _error(error.status, error.detail)
        return _json({"ready": True, "name": NAME})

    async def describe_model() -> Response:
        return _json(metadata)

    async def infer(request: Request) -> Response:
        try:
            service.check_ready()
            size = request.headers.get(_HEADER_BYTES)
            if size is not None and not (size.isdecimal() and len(size) <= _MOST_DIGITS):
                raise RequestError(422, f"Inference-Header-Content-Length is {size!r:.80}: send a number")
            body = await read_body(request, service.limits.of_body, service.limits.body_s)
            rows, id_ = read_infer(body, None if size is None else int(size))
            answer = orjson.loads(await service.answer(rows))
        except RequestError as error:
            return _error(error.status, error.detail)
        except DataError as error:
            return _error(422, str(error))
        except StoreError as error:
            return _error(503, str(error))
        predictions = answer["predictions"]
        output = {"name": OUTPUT, "datatype": "FP32", "shape": [len(predictions)], "data": predictions}
        head = {} if id_ is None else {"id": id_}
        return _json({"model_name": NAME, "model_version": model_id, **head, "outputs": [output]})

    async def unknown(path: str) -> Response:
        return _error(404, f"there is no {path!r:.80} here; the model is {NAME!r}, its version {model_id!r}")

    router.add_api_route("", describe_server)
    router.add_api_route("/health/live", live)
    router.add_api_route("/health/ready", ready)
    for place in (_MODEL, version):
        router.add_api_route(place, describe_model)
        router.add_api_route(f"{place}/ready", ready)
        router.add_api_route(f"{place}/infer", infer, methods=["POST"])
    router.add_api_route("/{path:path}", unknown, methods=["GET", "POST"])
    app.include_router(router)


def _json(content: dict[str, Any], status: int = 200) -> Response:
    return Response(orjson.dumps(content), status, media_type="application/json")


def _error(status: int, text: str) -> Response:
    return _json({"error": text}, status)
