"""`Access`: who may ask for what, and a line in the log for each request."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from hmac import compare_digest
from pathlib import Path
from secrets import token_hex
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, Any

import orjson

from ctr.errors import CtrError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

IS_ADMIN = "ctr.admin"
"""The key of a request's scope that says whether it came with a token for administration."""
_OPEN = frozenset({"/healthz", "/readyz", "/metrics", "/", "/docs"})
_OPEN_FILES = re.compile(r"/(page|swagger-ui)/[a-z-]+\.(css|js)")
"""What a supervisor asks for, and a browser before its user has given a token."""
_LEAST_TOKEN = 16
_LOOK_S = 1.0
_MOST_ID = 128
_REFUSAL = {"detail": "a valid token is needed: send it as Authorization: Bearer TOKEN"}


class Tokens:
    """Tokens from a file, which is read anew when it has changed, and from the environment."""

    def __init__(self, file: Path | None, variable: str) -> None:
        """Raises CtrError for a file that cannot be read, and for tokens that can be guessed."""
        self._file = file
        self._given = os.environ.get(variable, "").replace(",", " ").split()
        self._state: tuple[int, ...] = ()
        self._looked = monotonic()
        self._tokens: list[bytes] = []
        self._read()
        self.wanted = file is not None or bool(self._given)
        """Whether requests need one."""

    def has(self, token: bytes | None) -> bool:
        """Whether it is one of them; takes as long for every token."""
        if monotonic() - self._looked > _LOOK_S:
            self._looked = monotonic()
            with suppress(CtrError):  # those of before stay
                self._read()
        found = False
        for each in self._tokens:
            found |= compare_digest(each, token or b"")
        return found

    def _read(self) -> None:
        lines: list[str] = []
        if self._file is not None:
            try:
                stat = self._file.stat()
                state = stat.st_ino, stat.st_mtime_ns, stat.st_size
                if state == self._state:
                    return
                lines = self._file.read_text(encoding="utf-8").splitlines()
                self._state = state
            except (OSError, UnicodeDecodeError) as error:
                raise CtrError(f"{self._file}: tokens cannot be read from it ({error}).") from None
        of_file = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
        for token in (*self._given, *of_file):
            if len(token) < _LEAST_TOKEN:
                place = self._file if token in of_file else "the environment"
                raise CtrError(
                    f"{place}: a token of {len(token)} characters can be guessed; take one of at least"
                    f" {_LEAST_TOKEN}, such as `openssl rand -hex 16` makes."
                )
        if self._file is not None and not of_file:
            raise CtrError(f"{self._file}: there is no token in it; write one a line.")
        self._tokens = [token.encode() for token in (*self._given, *of_file)]


class Access:
    """An application that only requests with a valid token reach, if there are tokens.

    Each answer has the request's `x-request-id`, or a new one.
    """

    def __init__(self, app: ASGIApp, tokens: Tokens, admin: Tokens, log: Path | None) -> None:
        """`log`: where each request is noted; `-`: on standard error."""
        self._app, self._tokens, self._admin = app, tokens, admin
        self._note: Callable[[dict[str, Any]], object] | None = None
        if log is not None:
            self._note = _Log(log).note

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(reversed(scope["headers"]))  # the first of each name
        token = _bearer(headers.get(b"authorization"))
        scope[IS_ADMIN] = self._admin.wanted and self._admin.has(token)
        request_id, status, size = _id_of(headers.get(b"x-request-id")), 500, 0
        began = perf_counter()
        answer: dict[bytes, bytes] = {}

        async def sending(message: Message) -> None:
            nonlocal status, size
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", request_id)]
                answer.update(message["headers"])
            else:
                size += len(message.get("body", b""))
            await send(message)

        try:
            if self._tokens.wanted and not (
                scope["path"] in _OPEN
                or scope[IS_ADMIN]
                or self._tokens.has(token)
                or _OPEN_FILES.fullmatch(scope["path"])
            ):
                await respond(sending, 401, _REFUSAL)
            else:
                await self._app(scope, receive, sending)
        finally:
            if self._note is not None:
                client = scope.get("client")
                self._note(
                    {
                        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
                        "id": request_id.decode(),
                        "traceparent": headers.get(b"traceparent", b"").decode("latin-1") or None,
                        "client": client[0] if client else None,
                        "method": scope["method"],
                        "path": scope["path"],
                        "status": status,
                        "ms": round(1e3 * (perf_counter() - began), 3),
                        "bytes": size,
                        "model": answer.get(b"ctr-model", b"").decode() or None,
                    }
                )


async def respond(send: Send, status: int, content: Mapping[str, Any]) -> None:
    """Answer with an object of JSON."""
    body = orjson.dumps(content)
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class _Log:
    """Lines of JSON, each written at once, so that several processes may share the file."""

    def __init__(self, path: Path) -> None:
        try:
            self._file = sys.stderr.fileno() if str(path) == "-" else os.open(path, _APPENDING, 0o640)
        except OSError as error:
            raise CtrError(f"{path}: the log cannot be written ({error.strerror}).") from None

    def note(self, entry: dict[str, Any]) -> None:
        with suppress(OSError):  # such as a full disk, which is no reason not to answer
            os.write(self._file, orjson.dumps(entry, option=orjson.OPT_APPEND_NEWLINE))


_APPENDING = os.O_WRONLY | os.O_CREAT | os.O_APPEND


def _bearer(header: bytes | None) -> bytes | None:
    kind, _, token = (header or b"").partition(b" ")
    return token.strip() if kind.lower() == b"bearer" else None


def _id_of(given: bytes | None) -> bytes:
    """What the client calls its request, if that is fit for a log."""
    if given and len(given) <= _MOST_ID and given.isascii() and given.decode().isprintable():
        return given
    return token_hex(8).encode()
