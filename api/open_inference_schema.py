"""Requests and responses of the endpoints below `/v2`, for the OpenAPI document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from fastapi import FastAPI
from pydantic import BaseModel, Field

from ctr.api.requests import InferRequest

_SCHEMAS = "#/components/schemas/{model}"


class InferError(BaseModel):
    """Why a request was refused."""

    error: str = Field(description="What was wrong, where, the value it got, and the remedy.")


class ServerMetadata(BaseModel):
    """The server."""

    name: str
    version: str = Field(description="The version of ctr.")
    extensions: list[str]


class ServerLive(BaseModel):
    """The process is alive."""

    live: Literal[True]


class ModelReady(BaseModel):
    """The model is ready."""

    ready: Literal[True]
    name: str


class TensorMetadata(BaseModel):
    """An input or an output."""

    name: str
    datatype: str = Field(description="The preferred datatype; inputs may have any.")
    shape: list[int] = Field(description="-1: any number of rows.")


class ModelMetadata(BaseModel):
    """The model."""

    name: str
    versions: list[str] = Field(description="Ids of the served models; first, the one that answers.")
    platform: str
    inputs: list[TensorMetadata] = Field(description="The columns of a row.")
    outputs: list[TensorMetadata]


class OutputTensor(BaseModel):
    """Click probabilities."""

    name: str
    datatype: str
    shape: list[int]
    data: list[float] = Field(description="Between 0 and 1, one for each row.")


class InferResponse(BaseModel):
    """Predictions."""

    model_name: str
    model_version: str = Field(description="Id of the model that predicted.")
    id: str | None = Field(None, description="The id of the request; absent if it had none.")
    outputs: list[OutputTensor]


UNAVAILABLE: dict[int | str, dict[str, Any]] = {
    503: {"model": InferError, "description": "The model is warming up, or the server is busy"}
}
REFUSALS: dict[int | str, dict[str, Any]] = {
    408: {"model": InferError, "description": "The body took too long to arrive"},
    413: {"model": InferError, "description": "Too many rows, or too large a body"},
    415: {"model": InferError, "description": "A body encoded otherwise than by gzip"},
    422: {"model": InferError, "description": "Not a request of this protocol, or an invalid value"},
    500: {"model": InferError, "description": "The server failed"},
    **UNAVAILABLE,
}
"""Why a request to predict may be refused, by status."""


def infer_body(app: FastAPI, header: str, columns: Sequence[str]) -> dict[str, Any]:
    """The parameters and the body of a request to predict; their schemas are added to the document of `app`.

    `header`: the name of the header with the number of JSON bytes. `columns`: names of inputs.
    """
    schema = InferRequest.model_json_schema(ref_template=_SCHEMAS)
    schemas = schema.pop("$defs")
    schemas["InputTensor"]["properties"]["name"]["enum"] = list(columns)
    app.openapi()["components"]["schemas"] |= schemas | {InferRequest.__name__: schema}
    example = [{"name": name, "datatype": "BYTES", "shape": [1], "data": ["5"]} for name in columns[:1]]
    content = {
        "application/json": {
            "schema": {"$ref": _SCHEMAS.format(model=InferRequest.__name__)},
            "example": {"inputs": example},
        },
        "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
    }
    parameter = {
        "name": header,
        "in": "header",
        "required": False,
        "description": "Bytes of JSON at the start of the body, if binary tensors follow.",
        "schema": {"type": "integer", "minimum": 0},
    }
    return {"parameters": [parameter], "requestBody": {"required": True, "content": content}}
