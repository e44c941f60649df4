"""What the endpoints below `/v2` take and return, as OpenAPI describes it."""

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
    version: str = Field(description="Of ctr.")
    extensions: list[str]


class ServerLive(BaseModel):
    """The process lives."""

    live: Literal[True]


class ModelReady(BaseModel):
    """The model answers."""

    ready: Literal[True]
    name: str


class TensorMetadata(BaseModel):
    """An input or an output."""

    name: str
    datatype: str = Field(description="What it is best sent as; inputs may have any datatype.")
    shape: list[int] = Field(description="-1: any number of rows.")


class ModelMetadata(BaseModel):
    """The model."""

    name: str
    versions: list[str] = Field(description="Ids of models; this server has one.")
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
    id: str | None = Field(None, description="That of the request; absent if it had none.")
    outputs: list[OutputTensor]


UNAVAILABLE: dict[int | str, dict[str, Any]] = {
    503: {"model": InferError, "description": "The model is warming up, or the server is busy"}
}
REFUSALS: dict[int | str, dict[str, Any]] = {
    408: {"model": InferError, "description": "The body took too long to arrive"},
    413: {"model": InferError, "description": "Too many rows, or too large a body"},
    422: {"model": InferError, "description": "Not a request of the protocol, or a wrong value"},
    **UNAVAILABLE,
}
"""Why requests to predict may be refused, by status."""


def describe_infer(app: FastAPI, path: str, header: str, columns: Sequence[str]) -> None:
    """Put the body of a request to predict into the OpenAPI document.

    `header`: says how many bytes of the body are JSON. `columns`: names of inputs.
    """
    document = app.openapi()
    schema = InferRequest.model_json_schema(ref_template=_SCHEMAS)
    schemas = schema.pop("$defs")
    schemas["InputTensor"]["properties"]["name"]["enum"] = list(columns)
    document["components"]["schemas"] |= schemas | {InferRequest.__name__: schema}
    operation = document["paths"][path]["post"]
    operation["parameters"] = [
        {
            "name": header,
            "in": "header",
            "required": False,
            "description": "Bytes of JSON at the start of the body, if tensors follow as bytes.",
            "schema": {"type": "integer", "minimum": 0},
        }
    ]
    example = [{"name": name, "datatype": "BYTES", "shape": [1], "data": ["5"]} for name in columns[:1]]
    content = {
        "application/json": {
            "schema": {"$ref": _SCHEMAS.format(model=InferRequest.__name__)},
            "example": {"inputs": example},
        },
        "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
    }
    operation["requestBody"] = {"required": True, "content": content}
