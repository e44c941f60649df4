"""`add_page`: a page for people with the served model, its metrics, and a form to try it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
from fastapi import FastAPI
from fastapi.responses import HTMLResponse, PlainTextResponse, Response

from ctr.api.schema import example_row
from ctr.features import FeatureSpec
from ctr.features.spec import NumberField, columns_of
from ctr.model import Model

if TYPE_CHECKING:
    from jinja2 import Environment

_FOLDER = Path(__file__).parent
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:;"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {"content-security-policy": _POLICY, "cache-control": "no-cache", "referrer-policy": "no-referrer"}
_DOCS_HEADERS = {**_HEADERS, "content-security-policy": f"{_POLICY}; style-src-attr 'unsafe-inline'"}
"""Swagger UI sets the style of elements."""
_NO_PAGE = "The page needs Jinja2: pip install 'ctr[serve]'. The service itself does not; see /docs.\n"
_METRICS = {
    "logloss": "Log loss",
    "normalized_entropy": "Normalized entropy",
    "auc": "AUC",
    "calibration": "Calibration",
}
_MEASURED = {"holdout": "hold-out", "progressive": "progressive validation", "training": "training rows"}
_SIZE = 100.0
"""The size of a chart, in its own units."""


def application_class() -> Callable[..., FastAPI]:
    """The application class; with fastapi-offline, its `/docs` needs no internet."""
    if find_spec("fastapi_offline") is None:
        return FastAPI
    from fastapi_offline import FastAPIOffline

    def make(**arguments: Any) -> FastAPI:
        # Its own page could not ask for a token.
        app: FastAPI = FastAPIOffline(docs_url=None, static_url="/swagger-ui", **arguments)
        _add_file(app, "/docs", "docs.html", "text/html", _DOCS_HEADERS)
        _add_file(app, "/page/docs.css", "docs.css", "text/css", _HEADERS)
        _add_file(app, "/page/docs.js", "docs.js", "text/javascript", _HEADERS)
        return app

    return make


def _add_file(app: FastAPI, path: str, name: str, media_type: str, headers: Mapping[str, str]) -> None:
    content = (_FOLDER / name).read_bytes()

    @app.get(path, include_in_schema=False)
    async def file() -> Response:
        return Response(content, media_type=media_type, headers=dict(headers))


def add_page(app: FastAPI, model: Callable[[], Model]) -> None:
    """Add the page at `/`, its script and style, and the part about the model."""
    if find_spec("jinja2") is None:

        @app.get("/", include_in_schema=False)
        async def no_page() -> Response:
            return PlainTextResponse(_NO_PAGE)

        return
    _add_file(app, "/", "page.html", "text/html", _HEADERS)
    _add_file(app, "/page/style.css", "style.css", "text/css", _HEADERS)
    _add_file(app, "/page/script.js", "script.js", "text/javascript", _HEADERS)

    @app.get("/page/model", include_in_schema=False)
    async def page_model() -> Response:
        template = _templates().get_template("model.html.jinja")
        return HTMLResponse(template.render(**_facts(model())), headers=_HEADERS)


@lru_cache(1)
def _templates() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _facts(model: Model) -> dict[str, Any]:
    """The variables of the template."""
    measured = next((name for name in _MEASURED if name in model.metrics), None)
    summary = {} if measured is None else model.metrics[measured]
    optimizer = dict(model.manifest.get("optimizer", {}))
    settings = [f"{name}={value}" for name, value in optimizer.items() if name not in ("name", "passes")]
    examples = [*model.examples.rows] if model.examples is not None else [example_row(model.spec)]
    return {
        "id": model.id,
        "created": _moment(str(model.manifest.get("created", ""))),
        "measured": None if measured is None else _MEASURED[measured],
        "examples_measured": summary.get("examples"),
        "metrics": {words: summary.get(name) for name, words in _METRICS.items()},
        "facts": {
            "Slots": f"2^{model.spec.bits}",
            **_weights(model),
            "Fields and crosses": f"{len(model.spec.names):,}",
            "Optimizer": " ".join([str(optimizer.get("name", "")), *settings]),
            "Calibrated": model.manifest["calibrated"]["method"] if "calibrated" in model.manifest else "no",
        },
        "reliability": _reliability(summary.get("reliability", ())),
        "inputs": _inputs(model.spec),
        "rows": orjson.dumps([_texts(row) for row in examples]).decode(),
        "windows": bool(model.spec.windows),
    }


def _weights(model: Model) -> dict[str, str]:
    if model.linear.live is not None:
        return {"Weights": f"live, from {model.manifest['live']['store']}"}
    rows = model.manifest.get("training", {}).get("rows") or 0
    return {"Weights that are not zero": f"{model.linear.weights.size:,}", "Rows of training": f"{rows:,}"}


def _moment(created: str) -> str:
    try:
        return datetime.fromisoformat(created).astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")
    except ValueError:
        return "unknown"


def _reliability(bins: Any) -> dict[str, Any] | None:
    """The points of the reliability curve, in the units of the chart; None without any."""
    if not bins:
        return None
    most = max(each[key] or 0.0 for each in bins for key in ("mean_prediction", "observed_rate", "high"))

    def place(value: float) -> float:
        return float(round(_SIZE * value / most, 2))

    return {
        "most": most,
        "points": [
            {
                "x": place(each["mean_prediction"]),
                "y": round(_SIZE - place(each["observed_rate"]), 2),
                # Older manifests have no intervals.
                "ends": None
                if each["low"] is None or each["high"] is None
                else [round(_SIZE - place(each[key]), 2) for key in ("low", "high")],
                "words": f"predicted {each['mean_prediction']:.4f}, clicked {each['observed_rate']:.4f}"
                f" ({each['examples']:,} rows)",
            }
            for each in bins
        ],
    }


def _inputs(spec: FeatureSpec) -> list[dict[str, str]]:
    """The columns of a row, and the kind of value each accepts."""
    numbers = {
        column for field in spec.all_fields if isinstance(field, NumberField) for column in columns_of(field)
    }
    return [
        {
            "name": name,
            "kind": "list" if name in spec.list_columns else "number" if name in numbers else "text",
        }
        for name in spec.columns
    ] or [{"name": "features", "kind": "text"}]


def _texts(row: Any) -> dict[str, str]:
    """The values of a row as the form shows them; lists are JSON."""
    return {
        str(name): orjson.dumps(value).decode() if isinstance(value, list | tuple) else str(value)
        for name, value in row.items()
    }
