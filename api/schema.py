"""Requests and responses for the OpenAPI document; the fields of a row come from the model's spec."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Self

from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, Field, model_validator

from ctr.api.answers import DETAILS
from ctr.api.requests import ARROW
from ctr.features import FeatureSpec
from ctr.features.spec import UNIX, UNIX_MS, CategoryField, NumberField, TimeField, column_of, columns_of

NOT_NOW = "The model is warming up, the server is busy, or Redis, which holds the windows, is unavailable"
"""Why an answer may have the status 503."""

EXAMPLE_NUMBER = 5
EXAMPLE_CATEGORY = "68fd1e64"
EXAMPLE_LIST = ["red", "shoes"]
EXAMPLE_FIELDS = 4
"""The documented example has this many fields of each type; a request may omit the others."""

_NUMBER_TEXT = {
    "type": "string",
    "pattern": r"^[ \t]*([+-]?([0-9]{1,200}\.?[0-9]{0,200}|\.[0-9]{1,200})([eE][+-]?[0-9]{1,2})?)?[ \t]*$",
}
# 64 bits, signed or unsigned. These bounds are exact as floats; 2**64 - 1 is not.
_WHOLE = {"type": "integer", "minimum": -(2**63), "exclusiveMaximum": 2**64}
_BOOLEAN = {"type": "boolean"}
_MISSING = {"type": "null"}

_NUMBER = {
    "description": "A number, or its text; true and false are 1 and 0.",
    "anyOf": [{"type": "number"}, _NUMBER_TEXT, _BOOLEAN, _MISSING],
}
_CATEGORY: dict[str, Any] = {
    "description": "A category: text, or a whole number, taken as its digits; true and false are 1 and 0.",
    "anyOf": [{"type": "string"}, _WHOLE, _BOOLEAN, _MISSING],
}
_LIST = {
    "description": "Several categories: a list, or text in the format of the training data.",
    "anyOf": [{"type": "array", "items": {"anyOf": _CATEGORY["anyOf"]}}, *_CATEGORY["anyOf"]],
}
_BOTH = {
    "description": "A number that is also a category: a whole number, or its text in the training data.",
    "anyOf": [_WHOLE, _NUMBER_TEXT, _BOOLEAN, _MISSING],
}
_TIME = {
    "description": "A time in the format of the training data; a row without one has no window features.",
    "anyOf": [{"type": "string"}, _WHOLE, _MISSING],
}
_UNIX_TIME = {
    "description": "A time: seconds or milliseconds since 1970, as in the training data.",
    "anyOf": [{"type": "number"}, {"type": "string"}, _MISSING],
}
_WINDOW_TIME = {
    "description": "A time in the format of the training data; read if the row has the key of a window.",
    "anyOf": [{"type": "string"}, {"type": "number"}, _BOOLEAN, _MISSING],
}
_LOG = {
    "type": "boolean",
    "description": "Whether to store the rows for `/v1/feedback`; the answer then has their ids.",
}
_OWN_FEATURES = {"description": "The features of a row, as in a line of the format."}
_UNUSED: dict[str, Any] = {"description": "A column of the raw data that the model ignores."}


class FeatureContribution(BaseModel):
    """What one feature adds to the log-odds of a row."""

    field: str = Field(description="Name of the field or cross; `(bias)` for the bias.")
    slot: int = Field(description="The slot of the feature's weight.")
    contribution: float = Field(description="Weight times value.")


class Predictions(BaseModel):
    """Click probabilities, one per row of the request, in its order."""

    model_config = ConfigDict(
        json_schema_extra={"example": {"predictions": [0.0317], "model": "5e0f1c2a9b47"}}
    )

    predictions: list[float] = Field(description="Probability of a click, between 0 and 1, for each row.")
    model: str = Field(description="Id of the model that predicted.")
    ids: list[str] | None = Field(
        None, description="Ids of stored rows: report a click on a row to `/v1/feedback` by its id."
    )
    margins: list[float] | None = Field(
        None, description="With `include=margins`: the log-odds of a click for each row, after calibration."
    )
    unseen: list[float] | None = Field(
        None,
        description="With `include=unseen`: the share of each row's features for which the model has no"
        " weight, because they were absent from its training data or had no effect.",
    )
    contributions: list[list[FeatureContribution]] | None = Field(
        None,
        description="With `include=contributions`: for each row, what its features add to the log-odds before"
        " calibration.",
    )


class TextContribution(FeatureContribution):
    """The same, with the feature itself."""

    text: str = Field(description="The field's value in the row; empty for a cross.")
    feature: str = Field(description="The feature made of the value.")
    value: float = Field(description="The feature's value; 1 for a category.")
    weight: float = Field(description="The feature's weight in the model; 0 if it has none.")


class RowExplanation(BaseModel):
    """A row's prediction, and its contributions."""

    log_odds: float = Field(description="The sum of the contributions, before calibration.")
    prediction: float = Field(description="Probability of a click.")
    contributions: list[TextContribution] = Field(description="The largest first, whatever their sign.")


class Explanations(BaseModel):
    """Explanations, one per row of the request, in its order."""

    explanations: list[RowExplanation]
    model: str = Field(description="Id of the model that predicted.")


class EventCount(BaseModel):
    """How many events were accepted."""

    taken: int = Field(
        description="Number of rows that now count; the others have no key, no time or no row."
    )


class Problem(BaseModel):
    """Why a request was refused."""

    detail: str = Field(description="What was wrong, where, the value it got, and the remedy.")


INCLUDE = {
    "parameters": [
        {
            "name": "include",
            "in": "query",
            "required": False,
            "description": "Details to add to the predictions.",
            "style": "form",
            "explode": False,
            "schema": {"type": "array", "minItems": 1, "items": {"type": "string", "enum": list(DETAILS)}},
        }
    ]
}
"""The query parameter `include`, for a route's `openapi_extra`."""

REFUSALS: dict[int | str, dict[str, Any]] = {
    413: {"model": Problem, "description": "Too many rows, or too large a body"},
    422: {"model": Problem, "description": "Malformed JSON or rows, or rows that come too late"},
    503: {"model": Problem, "description": NOT_NOW},
}
"""Why requests with rows may be refused, by status."""


class Clicks(BaseModel):
    """Rows that were clicked."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": {"clicks": []}})

    clicks: list[Annotated[str, Field(pattern=r"^[0-9a-f]{14}-[0-9a-f]{8}-[0-9a-f]{1,12}$")]] = Field(
        description="Their ids, from answers to predictions."
    )


CLICKS = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": Clicks.model_json_schema()}},
    }
}
"""The body of a request with clicks, for a route's `openapi_extra`."""


class LabelChange(BaseModel):
    """Where a label should point: to a version, or back to the previous one."""

    model_config = ConfigDict(extra="forbid", strict=True)

    version: Annotated[str, Field(max_length=64)] | None = Field(
        None, description="Its id, or a label of it."
    )
    rollback: bool = Field(False, description="True: the previous version of the label.")

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.version is None) != self.rollback:
            raise ValueError('give {"version": ID} or {"rollback": true}')
        return self


class LabelChanged(BaseModel):
    """The version that a label now points to."""

    label: str
    version: str


class Served(BaseModel):
    """A version that is served."""

    label: str
    version: str = Field(description="Id of the model.")
    since: str = Field(description="When it was first served here.")
    created: str | None = Field(description="When the model was created.")
    share: float = Field(description="Share of the requests, 0 to 1.")
    metrics: dict[str, float | None] = Field(
        description="Metrics on its hold-out, measured when it was trained."
    )


class Models(BaseModel):
    """What is served, by label."""

    served: list[Served]
    failed: list[str] = Field(description="Versions that failed and are not served.")


class Alive(BaseModel):
    """The process is alive."""

    status: str = Field(description="Always `alive`.")


class Ready(BaseModel):
    """The model is ready."""

    status: str = Field(description="Always `ready`.")
    model: str = Field(description="Id of the model that predicts.")
    age_s: float | None = Field(
        default=None,
        description="Live weights: for this many seconds, pushes may not have arrived, or nobody trained. "
        "A version that is served until there is a job: since it was created.",
    )


def example_row(spec: FeatureSpec, most: int = EXAMPLE_FIELDS) -> dict[str, int | str | list[str]]:
    """A row that a model of `spec` accepts now, with the first `most` fields of each type."""
    numbers = [column_of(field) for field in spec.fields if isinstance(field, NumberField)]
    categories = [column_of(field) for field in spec.fields if isinstance(field, CategoryField)]
    row: dict[str, int | str | list[str]] = dict.fromkeys(categories[:most], EXAMPLE_CATEGORY)
    row |= dict.fromkeys(sorted(spec.list_columns)[:most], EXAMPLE_LIST)
    for window in spec.windows:
        row |= {name: EXAMPLE_CATEGORY for name in window.key if name not in row}
        row[window.time] = _example_time(window.format)
    times = [field for field in spec.fields if isinstance(field, TimeField)]
    row |= {column: _example_time(field.format) for field in times[:most] for column in columns_of(field)}
    # Last, because a column that is read both as category and number must hold a number.
    return row | dict.fromkeys(numbers[:most], EXAMPLE_NUMBER)


def _example_time(time_format: str | None) -> int | str:
    now = datetime.now(UTC).replace(microsecond=0)
    if time_format in (UNIX, UNIX_MS):
        return int(now.timestamp()) * (1 if time_format == UNIX else 1_000)
    return now.strftime(time_format) if time_format else now.isoformat()


def describe_rows(
    app: FastAPI, spec: FeatureSpec, max_rows: int, path: str, *, others: bool = False, log: bool = False
) -> None:
    """Add the schema of a request to `path` to the OpenAPI document.

    A route's `openapi_extra` would turn the bounds of whole numbers into floats, which are not exact.
    `others`: rows may have fields that the spec does not name. `log`: a request may ask for its rows to be
    stored.
    """
    content = {
        "schema": request_schema(spec, max_rows, others=others, log=log),
        "example": {"rows": [example_row(spec)]},
    }
    operation = app.openapi()["paths"][path]["post"]
    operation["requestBody"] = {"required": True, "content": {"application/json": content}}


def describe_arrow(app: FastAPI, path: str) -> None:
    """Add the Arrow types of requests and responses to the OpenAPI document."""
    content = {kind: {"schema": {"type": "string", "format": "binary"}} for kind in ARROW}
    operation = app.openapi()["paths"][path]["post"]
    operation["requestBody"] = {"required": True, "content": content}
    operation["responses"]["200"]["content"] = {ARROW[0]: content[ARROW[0]]}


def describe_versions(app: FastAPI) -> None:
    """Add the endpoints of `Versions`, which stands in front of the application, to the OpenAPI document."""
    document = app.openapi()
    for model in (Served, Models, LabelChange, LabelChanged, Problem):
        schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
        schema.pop("$defs", None)
        document.setdefault("components", {}).setdefault("schemas", {})[model.__name__] = schema

    def answer(model: type[BaseModel], description: str) -> dict[str, Any]:
        schema = {"$ref": f"#/components/schemas/{model.__name__}"}
        return {"description": description, "content": {"application/json": {"schema": schema}}}

    document["paths"]["/v1/models"] = {
        "get": {
            "summary": "List the served versions",
            "description": "By label. An administrator's token adds their source and why others failed;"
            " `?all` adds the other versions of the registry.",
            "operationId": "versions",
            "parameters": [
                {"name": "all", "in": "query", "schema": {"type": "string"}, "allowEmptyValue": True}
            ],
            "responses": {
                "200": answer(Models, "What is served"),
                "401": answer(Problem, "An administrator's token is required for `all`"),
                "503": answer(Problem, "The registry cannot be read"),
            },
        }
    }
    document["paths"]["/v1/models/{label}"] = {
        "post": {
            "summary": "Point a label to another version",
            "description": "For administrators: promotes a version, or rolls back to the previous one. The"
            " version is served once it has passed a trial.",
            "operationId": "change_label",
            "parameters": [{"name": "label", "in": "path", "required": True, "schema": {"type": "string"}}],
            "requestBody": {
                "required": True,
                "content": {"application/json": {"schema": {"$ref": "#/components/schemas/LabelChange"}}},
            },
            "responses": {
                "200": answer(LabelChanged, "Changed"),
                "401": answer(Problem, "An administrator's token is required"),
                "409": answer(Problem, "No such version, or the registry cannot be changed"),
                "422": answer(Problem, "A malformed body"),
            },
        }
    }


def request_schema(
    spec: FeatureSpec, max_rows: int, *, others: bool = False, log: bool = False
) -> dict[str, Any]:
    """The JSON schema of a prediction request to a model of `spec`; `others`, `log`: see `describe_rows`."""
    columns = {
        column: _UNUSED
        for column in (*spec.source.columns, *spec.source.ignore, spec.label, spec.weight)
        if column
    }
    columns |= dict.fromkeys(spec.list_columns, _LIST)
    times = [field for field in spec.fields if isinstance(field, TimeField)]
    for time in sorted(
        times, key=lambda time: not time.numeric
    ):  # a column of two formats takes what both accept
        columns |= dict.fromkeys(columns_of(time), _UNIX_TIME if time.numeric else _TIME)
    columns |= {column_of(field): _CATEGORY for field in spec.fields if isinstance(field, CategoryField)}
    for window in spec.windows:
        columns |= {name: columns.get(name, _CATEGORY) for name in window.key}
        columns.setdefault(window.time, _WINDOW_TIME)
    for field in spec.fields:
        if isinstance(field, NumberField):
            column = column_of(field)
            columns[column] = _BOTH if columns.get(column) in (_CATEGORY, _BOTH) else _NUMBER
    if not spec.fields:
        columns |= dict.fromkeys(spec.columns, _OWN_FEATURES)
    row = {
        "type": "object",
        "additionalProperties": others,
        "description": "One example: values by field. An absent, null or empty field counts as missing.",
        "properties": columns,
    }
    lists = {
        name: {"type": "array", "maxItems": max_rows, "items": schema} for name, schema in columns.items()
    }
    several = {"type": "array", "maxItems": max_rows, "items": row}
    forms: dict[str, dict[str, Any]] = {
        "rows": {
            "rows": {
                **several,
                "description": "The examples to predict; an empty list has an empty answer.",
            }
        },
        "columns": {
            "columns": {
                "type": "object",
                "additionalProperties": others,
                "description": "The examples as lists of values by field, all of one length.",
                "properties": lists,
            }
        },
        "candidates": {
            "context": {**row, "description": "Values that all candidates share."},
            "candidates": {
                **several,
                "description": "Each is an example; values that it lacks come from the context.",
            },
        },
    }
    return {
        "title": "Rows",
        "type": "object",
        "oneOf": [
            {
                "type": "object",
                "required": list(properties),
                "additionalProperties": False,
                "properties": {**properties, **({"log": _LOG} if log else {})},
            }
            for properties in forms.values()
        ],
    }
