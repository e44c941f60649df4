"""`Shortcut`: a fast path for predictions that bypasses the router."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import Request

from ctr.api.operations import route_path
from ctr.api.requests import RequestError
from ctr.api.service import Service, problem
from ctr.errors import DataError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send


class Shortcut:
    """Answers predictions from JSON, and passes everything else to the application.

    The router, dependencies and exit stacks of FastAPI take longer than predicting a row. The application has
    the same path for other methods, and for the OpenAPI document.
    """

    def __init__(self, app: ASGIApp, service: Service, path: str) -> None:
        self._app = app
        self._service = service
        self._path = path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or route_path(scope) != self._path or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        try:
            response = await self._service.predict_json(Request(scope, receive))
        except RequestError as error:
            response = problem(error.status, error.detail)
        except DataError as error:
            response = problem(422, str(error))
        await response(scope, receive, send)
