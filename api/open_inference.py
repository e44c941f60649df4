"""`add_open_inference`: the endpoints of the Open Inference Protocol, version 2."""

from __future__ import annotations

import logging

import orjson
from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.routing import APIRoute

from ctr import __version__
from ctr.api.open_inference_schema import (
    REFUSALS,
    UNAVAILABLE,
    InferResponse,
    ModelMetadata,
    ModelReady,
    ServerLive,
    ServerMetadata,
    infer_body,
)
from ctr.api.requests import OUTPUT, RequestError, decompressed, is_gzip, read_infer
from ctr.api.service import Service, json_response
from ctr.errors import DataError
from ctr.model import Model

logger = logging.getLogger(__name__)

NAME = "ctr"
"""The model's name; its version is its id."""
_HEADER_BYTES = "Inference-Header-Content-Length"
"""The header with the number of JSON bytes at the start of the body."""
_MOST_DIGITS = 18
"""Of a length in a header; Python parses at most 4,300."""
_PREFIX, _MODEL = "/v2", f"/models/{NAME}"


def add_open_inference(app: FastAPI, service: Service) -> list[str]:
    """Health, metadata and inference below `/v2`, where errors are `{"error": ...}`; returns their paths.

    Endpoints about the model are below `/v2/models/ctr` and, undocumented, below its `/versions/<id>`.
    """
    router, model = APIRouter(prefix=_PREFIX, tags=["Open Inference Protocol"]), service.model
    _add_server(router, service)
    for place, in_schema in ((_MODEL, True), (f"{_MODEL}/versions/{model.id}", False)):
        _add_metadata(router, place, service, in_schema=in_schema)
        _add_ready(router, f"{place}/ready", "Tell whether the model is ready", service, in_schema=in_schema)
        _add_infer(router, f"{place}/infer", service, in_schema=in_schema)
    paths = [route.path for route in router.routes if isinstance(route, APIRoute) and route.include_in_schema]
    _add_unknown(router, model.id)
    app.include_router(router)
    return paths


def describe_infer(app: FastAPI, service: Service) -> None:
    """Add the body of a request to predict to the OpenAPI document."""
    operation = app.openapi()["paths"][f"{_PREFIX}{_MODEL}/infer"]["post"]
    operation |= infer_body(app, _HEADER_BYTES, _columns(service.model))


def _columns(model: Model) -> list[str]:
    """The inputs of the model."""
    return [name for name in model.transform.columns if name not in (model.spec.label, model.spec.weight)]


# The endpoints must not keep the model itself: see `Service.close`.
def _add_server(router: APIRouter, service: Service) -> None:
    @router.get("", summary="Describe the server", response_model=ServerMetadata)
    async def describe_server() -> Response:
        """Its name, version and extensions."""
        return json_response({"name": "ctr", "version": __version__, "extensions": ["binary_tensor_data"]})

    @router.get("/health/live", summary="Tell whether the process is alive", response_model=ServerLive)
    async def live() -> Response:
        """200 as long as the process answers at all."""
        return json_response({"live": True})

    _add_ready(router, "/health/ready", "Tell whether the server accepts requests", service, in_schema=True)


def _add_ready(router: APIRouter, path: str, summary: str, service: Service, *, in_schema: bool) -> None:
    @router.get(
        path,
        summary=summary,
        response_model=ModelReady,
        responses=UNAVAILABLE,
        include_in_schema=in_schema,
    )
    async def ready() -> Response:
        """200 once the model is loaded and warm."""
        try:
            service.check_ready()
            await service.check_windows()
        except RequestError as error:
            return _error(error.status, error.detail)
        return json_response({"ready": True, "name": NAME})


def _add_metadata(router: APIRouter, path: str, service: Service, *, in_schema: bool) -> None:
    model_id, metrics = service.model.id, service.metrics
    metadata = {
        "name": NAME,
        "platform": "ctr",
        "inputs": [{"name": name, "datatype": "BYTES", "shape": [-1]} for name in _columns(service.model)],
        "outputs": [{"name": OUTPUT, "datatype": "FP32", "shape": [-1]}],
    }

    @router.get(path, summary="Describe the model", response_model=ModelMetadata, include_in_schema=in_schema)
    async def describe_model() -> Response:
        """The versions that are served, inputs and output."""
        return json_response({**metadata, "versions": list(dict.fromkeys((model_id, *metrics.served)))})


def _add_infer(router: APIRouter, path: str, service: Service, *, in_schema: bool) -> None:
    model_id = service.model.id

    @router.post(
        path,
        summary="Predict click probabilities",
        response_model=InferResponse,
        responses=REFUSALS,
        include_in_schema=in_schema,
    )
    async def infer(request: Request) -> Response:
        """One probability per row. The inputs are the columns, as JSON or as bytes after the JSON."""

        def act(body: bytes, most: int | None) -> bytes:
            content = decompressed(body, service.limits.of_body) if is_compressed else body
            rows, id_ = read_infer(content, header_bytes)
            predictions = orjson.loads(service.predict(rows, most, returns_ids=False))["predictions"]
            output = {"name": OUTPUT, "datatype": "FP32", "shape": [len(predictions)], "data": predictions}
            head = {} if id_ is None else {"id": id_}
            return orjson.dumps({"model_name": NAME, "model_version": model_id, **head, "outputs": [output]})

        try:
            service.check_ready()
            header_bytes, is_compressed = _header_bytes(request), is_gzip(request)
            answer = await service.answer(request, act, service.limits.of_body, in_thread=is_compressed)
        except RequestError as error:
            return _error(error.status, error.detail)
        except DataError as error:
            return _error(422, str(error))
        except Exception:  # answered here, as in `Service.respond`
            logger.exception("a request failed")
            return _error(500, "the server failed on this request; its log has the reason")
        return Response(answer, media_type="application/json")


def _header_bytes(request: Request) -> int | None:
    """The number of JSON bytes at the start of the body; None: all."""
    size = request.headers.get(_HEADER_BYTES)
    if size is None:
        return None
    if not (size.isdecimal() and len(size) <= _MOST_DIGITS):
        raise RequestError(422, f"{_HEADER_BYTES} is {size!r:.80}: send a number")
    return int(size)


def _add_unknown(router: APIRouter, model_id: str) -> None:
    @router.api_route("/{path:path}", methods=["GET", "POST"], include_in_schema=False)
    async def unknown(path: str) -> Response:
        return _error(404, f"there is no {path!r:.80} here; the model is {NAME!r}, its version {model_id!r}")


def _error(status: int, text: str) -> Response:
    return json_response({"error": text}, status)
