"""`JsonRows`: JSON bodies as cells. `parse_rows` is the reference, and explains what is wrong with a body."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import orjson

from ctr.api.requests.body import Limits, RequestError, too_many
from ctr.api.requests.json_kernels import count_brackets, count_containers
from ctr.features import MoreFeaturesError, Transform
from ctr.features.lines import JsonRequests, RequestRows

ROW_DEPTH = 2
"""A row stands inside a list inside the request's object."""

PARSED_CELLS = 1_000
"""A body that needs a parser is parsed in the event loop up to this size: 25 rows of Criteo, 0.4 ms."""

UnknownFields = Literal["refuse", "ignore", "count"]
"""How to treat values whose field the spec does not name."""

_FORMS = (
    '{"rows": [{...}, ...]}, {"columns": {"name": [...], ...}},'
    ' or {"context": {...}, "candidates": [{...}, ...]}'
)


def require_brief(body: bytes, most: int | None) -> None:
    """Raise MoreFeaturesError if a body would take long to parse, unless `most` is None."""
    if most is not None and body.count(b":") + body.count(b",") > PARSED_CELLS:
        raise MoreFeaturesError


class JsonRows:
    """Reads the rows of JSON bodies for a transform. Any number of threads may use it."""

    def __init__(
        self,
        transform: Transform,
        limits: Limits,
        unknown: UnknownFields = "refuse",
        *,
        keeps_log: bool = False,
    ) -> None:
        """`keeps_log`: see `parse_rows`."""
        self._keeps_log = keeps_log
        self._transform = transform
        self._limits = limits
        self._lists = len(transform.spec.list_columns)
        self._refuses = unknown == "refuse"
        self._known = frozenset(transform.columns) | transform.ignored
        self._scanner = JsonRequests(transform, unknown=not self._refuses)

    def read(self, body: bytes, *, briefly: bool = False) -> RequestRows:
        """The rows of `body`, as cells of the transform's columns.

        Raises `RequestError` as `parse_rows` does, DataError as `Transform.cells_of` does, and, if `briefly`,
        MoreFeaturesError for a body that would take long to parse.
        """
        check_containers(body, self._limits, self._lists)
        rows = self._scanner.read(body, self._limits.rows)
        if rows is not None:
            return rows
        require_brief(body, 0 if briefly else None)
        return self.parse(body)

    def parse(self, body: bytes) -> RequestRows:
        """As `read`, through Python objects."""
        return self.cells_of(parse_rows(body, self._limits, self._lists, keeps_log=self._keeps_log))

    def cells_of(self, rows: list[dict[str, Any]]) -> RequestRows:
        """Parsed rows as cells."""
        unknown = 0
        if not self._refuses:
            known = [{name: row[name] for name in row.keys() & self._known} for row in rows]
            unknown = sum(map(len, rows)) - sum(map(len, known))
            rows = known
        return RequestRows(self._transform.cells_of(rows), unknown)


def check_containers(body: bytes, limits: Limits, lists: int) -> None:
    """Raise `RequestError` for too many rows, or too many lists in them.

    They are counted before any is created, as 3 bytes become an object of 72. `lists`: how many values of a
    row may be lists.
    """
    text = np.frombuffer(body, np.uint8)
    if text.size <= limits.rows or count_brackets(text) <= limits.rows:
        return
    rows_at_most, total = count_containers(text, ROW_DEPTH)
    if rows_at_most > limits.rows:
        raise too_many(rows_at_most, limits)
    if total - rows_at_most > (limits.rows * lists + ROW_DEPTH if lists else limits.rows):
        value = "text, a number or null" + (", or in some fields a list" if lists else "")
        raise RequestError(422, f"{total - rows_at_most:,} lists and objects in the rows; a value is {value}")


def parse_rows(
    body: bytes, limits: Limits, lists: int = 0, *, keeps_log: bool | None = None
) -> list[dict[str, Any]]:
    """The rows of the JSON request `body` as objects, whose content is not checked here.

    A request has rows, lists of values by column, or a context and candidates; a candidate takes the values
    that it lacks from the context. Raises `RequestError`: 422 for any other or malformed request, and for one
    that asks for its rows to be logged unless `keeps_log` (None: the endpoint never logs); 413 for more rows
    than `limits.rows`. `lists`: see `check_containers`.
    """
    check_containers(body, limits, lists)
    try:
        request = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise RequestError(422, f'the body is not JSON: {error}; send {{"rows": [{{...}}, ...]}}') from None
    if not isinstance(request, dict):
        raise RequestError(422, f'the body is {_kind(request)}; send an object: {{"rows": [{{...}}, ...]}}')
    if not isinstance(log := request.pop("log", False), bool):
        raise RequestError(422, f"'log' is {_kind(log)}; send true or false")
    if log and keeps_log is None:
        raise RequestError(422, "'log': this endpoint does not log rows; ask /v1/predict to")
    if log and not keeps_log:
        raise RequestError(422, "'log': this server has no feedback log; start it with --feedback-log")
    if "columns" in request:
        _check_keys(request, "columns")
        return _rows_of_columns(request["columns"], limits)
    if "context" in request or "candidates" in request:
        _check_keys(request, "context", "candidates")
        context = request["context"]
        if not isinstance(context, dict):
            raise RequestError(422, f"'context' is {_kind(context)}; send an object of values by field")
        return [context | row for row in _objects(request, "candidates", limits)]
    _check_keys(request, "rows")
    return _objects(request, "rows", limits)


def _check_keys(request: dict[str, Any], *keys: str) -> None:
    """Raise `RequestError` unless a request has exactly these keys."""
    wanted = " and ".join(map(repr, keys))
    unknown = [key for key in request if key not in keys]
    if unknown:
        only = "its only key is" if len(keys) == 1 else "its keys are"
        raise RequestError(
            422,
            f"unknown key {unknown[0]!r:.80} in the request; {only} {wanted}. Forms of a request: {_FORMS}",
        )
    for key in keys:
        if key not in request:
            raise RequestError(422, f"the key {key!r} is missing; send {_FORMS}")


def _objects(request: dict[str, Any], key: str, limits: Limits) -> list[dict[str, Any]]:
    rows = request[key]
    if not isinstance(rows, list):
        raise RequestError(422, f"{key!r} is {_kind(rows)}; send a list of objects, one per example")
    if len(rows) > limits.rows:
        raise too_many(len(rows), limits)
    for index, row in enumerate(rows):
        if not isinstance(row, dict):
            raise RequestError(422, f"{key}[{index}] is {_kind(row)}; send an object of values by field")
    return rows


def _rows_of_columns(columns: object, limits: Limits) -> list[dict[str, Any]]:
    if not isinstance(columns, dict):
        raise RequestError(422, f"'columns' is {_kind(columns)}; send an object of lists by field")
    sizes = {}
    for name, values in columns.items():
        if not isinstance(values, list):
            raise RequestError(
                422, f"columns[{name!r:.80}] is {_kind(values)}; send a list, one value per row"
            )
        sizes[name] = len(values)
    if not sizes:
        return []
    first, rows = next(iter(sizes.items()))
    for name, size in sizes.items():
        if size != rows:
            raise RequestError(
                422,
                f"columns[{name!r:.80}] has the length {size:,}, columns[{first!r:.80}] {rows:,}; send one"
                " value per row in each",
            )
    if rows > limits.rows:
        raise too_many(rows, limits)
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _kind(value: object) -> str:
    """The type of `value`, as JSON names it."""
    if value is None:
        return "null"
    kinds = {bool: "a boolean", int: "a number", float: "a number", str: "a string", list: "a list"}
    return kinds.get(type(value), "an object")
