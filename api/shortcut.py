"""`Shortcut`: a fast path for predictions that bypasses the router."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from fastapi import Request

from ctr.api.requests import RequestError, too_slow
from ctr.api.service import Service, problem
from ctr.errors import DataError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send


class Shortcut:
    """Answers predictions from JSON, and passes everything else to the application.

    The router, dependencies and exit stacks of FastAPI take longer than predicting a row; so does creating a
    request object, which small requests avoid. The application has the same path for other methods, and for
    the OpenAPI document.
    """

    def __init__(self, app: ASGIApp, service: Service, path: str) -> None:
        self._app = app
        self._service = service
        self._path = path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != self._path or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        if _is_plain(scope):
            try:
                async with asyncio.timeout(self._service.limits.body_s):
                    message = await receive()
            except TimeoutError:
                late = too_slow(self._service.limits.body_s)
                await problem(late.status, late.detail)(scope, receive, send)
                return
            if message["type"] == "http.request" and not message.get("more_body"):
                content = self._service.predict_now(message["body"])
                if content is not None:
                    length = b"%d" % len(content)
                    headers = [(b"content-type", b"application/json"), (b"content-length", length)]
                    await send({"type": "http.response.start", "status": 200, "headers": headers})
                    await send({"type": "http.response.body", "body": content})
                    return
            receive = _again(message, receive)
        try:
            response = await self._service.predict_json(Request(scope, receive))
        except RequestError as error:
            response = problem(error.status, error.detail)
        except DataError as error:
            response = problem(422, str(error))
        await response(scope, receive, send)


def _is_plain(scope: Scope) -> bool:
    """Whether a request has no query, and its body is JSON of a known, small size."""
    if scope["query_string"]:
        return False
    is_json = is_small = False
    for name, value in scope["headers"]:
        if name == b"content-type":
            is_json = value == b"application/json"
        elif name == b"content-length":
            is_small = len(value) < _SMALL_DIGITS
        elif name == b"content-encoding":
            return False
    return is_json and is_small


_SMALL_DIGITS = 5  # so up to 9,999 bytes


def _again(first: Message, receive: Receive) -> Receive:
    """`receive`, which first returns a message that was already received."""
    waiting = [first]

    async def receiving() -> Message:
        return waiting.pop() if waiting else await receive()

    return receiving
