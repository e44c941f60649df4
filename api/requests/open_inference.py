"""`read_infer`: requests of the Open Inference Protocol, version 2, as bodies of `/v1/predict`."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ctr.api.requests.body import RequestError
from ctr.errors import first_problem

_TYPES: dict[str, str] = {
    "BOOL": "?",
    **{f"INT{bits}": f"<i{bits // 8}" for bits in (8, 16, 32, 64)},
    **{f"UINT{bits}": f"<u{bits // 8}" for bits in (8, 16, 32, 64)},
    **{f"FP{bits}": f"<f{bits // 8}" for bits in (16, 32, 64)},
}
"""NumPy types by the protocol's names; the protocol also has BYTES."""
_BYTES = "BYTES"
OUTPUT = "prediction"


class InputTensor(BaseModel):
    """The values of one column."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str
    shape: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1, max_length=2)] = Field(
        description="`[rows]` or `[rows, 1]`."
    )
    datatype: str = Field(description=f"`{_BYTES}` for text.", json_schema_extra={"enum": [_BYTES, *_TYPES]})
    parameters: dict[str, Any] = Field({}, description="`binary_data_size`: the size of its binary data.")
    data: list[Any] | None = Field(None, description="One value for each row; absent if it is binary.")


class RequestedOutput(BaseModel):
    """An output that the client wants."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str = Field(json_schema_extra={"enum": [OUTPUT]})
    parameters: dict[str, Any] = {}


class InferRequest(BaseModel):
    """Rows to predict, as tensors by column."""

    model_config = ConfigDict(extra="forbid", strict=True)

    id: str | None = Field(None, description="Returned in the answer.")
    parameters: dict[str, Any] = {}
    inputs: Annotated[list[InputTensor], Field(min_length=1)] = Field(
        description="All with the same number of rows. A column that is left out is missing in all rows."
    )
    outputs: list[RequestedOutput] | None = None


def read_infer(body: bytes, header_bytes: int | None) -> tuple[bytes, str | None]:
    """The body of `/v1/predict` that has the inputs as columns, and the request's id.

    `header_bytes`: the number of JSON bytes, if binary tensors follow; None: all. Raises `RequestError` (422)
    for requests that violate the protocol.
    """
    size = len(body) if header_bytes is None else header_bytes
    if not 0 <= size <= len(body):
        raise RequestError(
            422, f"Inference-Header-Content-Length is {size}, and the body has {len(body)} bytes"
        )
    try:
        request = InferRequest.model_validate(orjson.loads(body[:size]))
    except orjson.JSONDecodeError as error:
        raise RequestError(422, f"the body is not JSON: {error}") from None
    except ValidationError as error:
        raise RequestError(422, first_problem(error)) from None
    for output in request.outputs or ():
        if output.name != OUTPUT:
            raise RequestError(422, f"there is no output {output.name!r:.80}; there is {OUTPUT!r}")
    columns: dict[str, list[Any]] = {}
    for tensor in request.inputs:
        binary_size = tensor.parameters.get("binary_data_size")
        content = None
        if binary_size is not None:
            if type(binary_size) is not int or not 0 <= binary_size <= len(body) - size:
                raise RequestError(422, f"input {tensor.name!r:.80}: its binary data is not in the body")
            content, size = body[size : size + binary_size], size + binary_size
        if tensor.name in columns:
            raise RequestError(422, f"input {tensor.name!r:.80} occurs twice")
        columns[tensor.name] = _values(tensor, content)
    if size < len(body):
        raise RequestError(422, f"{len(body) - size} bytes are left after the inputs")
    try:
        return orjson.dumps({"columns": columns}), request.id
    except orjson.JSONEncodeError:  # orjson writes fewer levels than it reads
        raise RequestError(
            422, "the data of an input is nested too deeply; send a value for each row"
        ) from None


def _values(tensor: InputTensor, content: bytes | None) -> list[Any]:
    """One value per row."""
    name, rows = tensor.name, tensor.shape[0]
    if tensor.shape[1:] not in ([], [1]):
        raise RequestError(
            422, f"input {name!r:.80}: its shape is {tensor.shape}; send a value for each row: [n]"
        )
    if tensor.datatype not in _TYPES and tensor.datatype != _BYTES:
        raise RequestError(422, f"input {name!r:.80}: there is no datatype {tensor.datatype!r:.80}")
    if (content is None) == (tensor.data is None):
        raise RequestError(422, f"input {name!r:.80}: send its data as JSON, or as bytes after it")
    if content is None:
        values = [
            item[0] if isinstance(item, list) and len(item) == 1 else item for item in tensor.data or ()
        ]
        if tensor.datatype != _BYTES:
            _check_types(tensor, values)
    elif tensor.datatype == _BYTES:
        values = _texts(name, content)
    else:
        kind = np.dtype(_TYPES[tensor.datatype])
        if len(content) % kind.itemsize:
            raise RequestError(422, f"input {name!r:.80}: its {len(content)} bytes are no {tensor.datatype}")
        numbers = np.frombuffer(content, kind)
        if kind.kind == "f" and np.isinf(numbers).any():  # which JSON would have as null: a missing value
            raise RequestError(422, f"input {name!r:.80}: has an infinite number; send finite ones, or NaN")
        if kind.kind == "f" and kind.itemsize < 8:  # 0.1 for the float32 0.10000000149, as in Arrow
            numbers = numbers.astype(np.float32).astype(str).astype(np.float64)
        values = numbers.tolist()
    if len(values) != rows:
        raise RequestError(422, f"input {name!r:.80}: {len(values)} values, and its shape says {rows}")
    return values


def _check_types(tensor: InputTensor, values: list[Any]) -> None:
    """Raise `RequestError` for a value of JSON without the tensor's type; null is a missing value."""
    kind = np.dtype(_TYPES[tensor.datatype])
    types: set[type] = {bool}
    least, most = 0.0, 1.0
    if kind.kind == "f":
        types, most = {int, float}, float(np.finfo(kind).max)
        least = -most
    elif kind.kind != "b":
        types, least, most = {int}, int(np.iinfo(kind).min), int(np.iinfo(kind).max)
    for value in values:
        if value is not None and not (type(value) in types and least <= value <= most):
            raise RequestError(
                422, f"input {tensor.name!r:.80}: {value!r:.80} does not have the type {tensor.datatype}"
            )


def _texts(name: str, content: bytes) -> list[str]:
    """Texts that each follow their length, in four bytes."""
    texts, at = [], 0
    while at < len(content):
        begin = at + 4
        at = begin + int.from_bytes(content[at:begin], "little")
        if at > len(content):
            raise RequestError(422, f"input {name!r:.80}: its binary data is truncated")
        try:
            texts.append(content[begin:at].decode())
        except UnicodeDecodeError:
            raise RequestError(422, f"input {name!r:.80}: value {len(texts)} is not UTF-8 text") from None
    return texts
