"""`Access`: checks tokens, and logs a line for each request."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from hmac import compare_digest
from pathlib import Path
from secrets import token_hex
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, Any, Protocol

import orjson

from ctr.errors import CtrError

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope, Send

    from ctr.api.operations.metrics import ServingMetrics

logger = logging.getLogger(__name__)

Headers = list[tuple[bytes, bytes]]
IS_ADMIN = "ctr.admin"
"""The key of a request's scope: whether it came with an administrator's token."""
_OPEN = frozenset({"/healthz", "/readyz", "/metrics", "/", "/docs"})
_OPEN_FILES = re.compile(r"/(page|swagger-ui)/[a-z-]+\.(css|js)")
"""Paths for supervisors, and for a browser before its user has entered a token."""
_LEAST_TOKEN = 16
_RELOAD_S = 1.0
_MOST_ID = 128
_REFUSAL = {"detail": "a valid token is required: send it as Authorization: Bearer TOKEN"}


class Tokens:
    """Tokens from a file, which is reloaded when it changes, and from the environment."""

    def __init__(self, file: Path | None, variable: str) -> None:
        """Raises CtrError for a file that cannot be read, and for tokens that are too short."""
        self._file = file
        self._from_environment = os.environ.get(variable, "").replace(",", " ").split()
        self._file_state: tuple[int, ...] = ()
        self._problem = ""
        """Why the file was not read the last time."""
        self._checked_at = monotonic()
        self._tokens: list[bytes] = []
        self._read()
        self.required = file is not None or bool(self._from_environment)
        """Whether requests need a token."""

    def has(self, token: bytes | None) -> bool:
        """Whether `token` is one of them; takes equally long for every token."""
        if monotonic() - self._checked_at > _RELOAD_S:
            self._checked_at = monotonic()
            before, self._problem = self._problem, ""
            try:
                self._read()
            except CtrError as error:
                self._problem = str(error)
                if self._problem != before:
                    logger.error("%s Until then, the previous tokens remain valid.", error)
        is_valid = False
        for valid in self._tokens:
            is_valid |= compare_digest(valid, token or b"")
        return is_valid

    def _read(self) -> None:
        lines: list[str] = []
        state = self._file_state
        if self._file is not None:
            try:
                stat = self._file.stat()
                state = stat.st_ino, stat.st_mtime_ns, stat.st_size
                if state == self._file_state:
                    return
                lines = self._file.read_text(encoding="utf-8").splitlines()
            except (OSError, UnicodeDecodeError) as error:
                raise CtrError(
                    f"{self._file}: tokens cannot be read from it ({error}); write one per line."
                ) from None
        from_file = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
        tokens = [*self._from_environment, *from_file]
        for token in tokens:
            if len(token) < _LEAST_TOKEN:
                place = self._file if token in from_file else "the environment"
                raise CtrError(
                    f"{place}: a token of {len(token)} characters can be guessed; use one of at least"
                    f" {_LEAST_TOKEN}, for example from `openssl rand -hex 16`."
                )
        if self._file is not None and not from_file:
            raise CtrError(f"{self._file}: contains no token; write one per line.")
        self._tokens, self._file_state = [token.encode() for token in tokens], state


class _Application(Protocol):
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...

    def answer_now(self, scope: Scope, body: bytes) -> tuple[Headers, bytes] | None: ...


class Access:
    """An application that only requests with a valid token reach, if there are tokens.

    Each answer carries the request's `x-request-id`, or a new one.
    """

    def __init__(
        self,
        app: _Application,
        tokens: Tokens,
        admin: Tokens,
        log: Path | None,
        metrics: ServingMetrics | None = None,
    ) -> None:
        """`log`: the file to log requests to; `-`: standard error. `metrics`: count refused requests."""
        self._app, self._tokens, self._admin = app, tokens, admin
        self._log, self._metrics = None if log is None else _Log(log), metrics
        self._refused = _refused if metrics is None else metrics.counting(_refused, frozenset())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(reversed(scope["headers"]))  # the first of each name
        request_id, status, size = _id_of(headers.get(b"x-request-id")), 500, 0
        started = perf_counter()
        answer_headers: dict[bytes, bytes] = {}

        async def sending(message: Message) -> None:
            nonlocal status, size
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", request_id)]
                answer_headers.update(message["headers"])
            else:
                size += len(message.get("body", b""))
            await send(message)

        try:
            if self._admits(scope, headers):
                await self._app(scope, receive, sending)
            else:
                await self._refused(scope, receive, sending)
        finally:
            model = answer_headers.get(b"ctr-model")
            self._log_request(scope, headers, request_id, status, perf_counter() - started, size, model)

    def answer_now(self, scope: Scope, body: bytes) -> tuple[Headers, bytes] | None:
        """Headers and body of the answer to a request, if it takes next to no time; otherwise None."""
        headers = dict(reversed(scope["headers"]))
        if self._log is not None and b"x-forwarded-for" in headers:  # which uvicorn evaluates
            return None
        started = perf_counter()
        answer = self._app.answer_now(scope, body) if self._admits(scope, headers) else None
        if answer is None:
            return None
        named, content = answer
        request_id = _id_of(headers.get(b"x-request-id"))
        if self._log is not None:
            model = dict(named)[b"ctr-model"]
            self._log_request(scope, headers, request_id, 200, perf_counter() - started, len(content), model)
        return [*named, (b"x-request-id", request_id)], content

    def note_refusal(self, client: Any, status: int, size: int) -> tuple[bytes, bytes]:
        """Count and log an answer by the connection, to what may be no request; returns its id as a header.

        `client`: address and port, or None. `size`: bytes of the answer's body.
        """
        request_id = _id_of(None)
        if self._metrics is not None:
            self._metrics.count_refusal(str(status))
        self._log_request({"client": client}, {}, request_id, status, None, size, None)
        return b"x-request-id", request_id

    def _admits(self, scope: Scope, headers: Mapping[bytes, bytes]) -> bool:
        """Whether a request may pass. Its scope then says whether it is an administrator's."""
        token = _bearer(headers.get(b"authorization"))
        scope[IS_ADMIN] = self._admin.required and self._admin.has(token)
        return (
            not self._tokens.required
            or scope["path"] in _OPEN
            or scope[IS_ADMIN]
            or self._tokens.has(token)
            or _OPEN_FILES.fullmatch(scope["path"]) is not None
        )

    def _log_request(
        self,
        scope: Mapping[str, Any],
        headers: Mapping[bytes, bytes],
        request_id: bytes,
        status: int,
        seconds: float | None,
        size: int,
        model: bytes | None,
    ) -> None:
        if self._log is None:
            return
        client = scope.get("client")
        self._log.write(
            {
                "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
                "id": request_id.decode(),
                "traceparent": headers.get(b"traceparent", b"").decode("latin-1") or None,
                "client": client[0] if client else None,
                "method": scope.get("method"),
                "path": scope.get("path"),
                "status": status,
                "ms": None if seconds is None else round(1e3 * seconds, 3),
                "bytes": size,
                "model": None if model is None else model.decode(),
            }
        )


async def _refused(_scope: Scope, _receive: Receive, send: Send) -> None:
    await respond(send, 401, _REFUSAL)


async def respond(send: Send, status: int, content: Mapping[str, Any]) -> None:
    """Answer with an object of JSON."""
    body = orjson.dumps(content)
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class _Log:
    """Lines of JSON, each written by one call, so that several processes can share the file.

    The file is opened again within a second after it was moved or removed.
    """

    def __init__(self, path: Path) -> None:
        self._path = None if str(path) == "-" else path
        self._checked_at = monotonic()
        self._is_failing = False
        try:
            self._file = sys.stderr.fileno() if self._path is None else _open(path)
        except OSError as error:
            raise CtrError(f"{path}: the log cannot be written ({error.strerror}).") from None

    def write(self, entry: dict[str, Any]) -> None:
        if self._path is not None and monotonic() - self._checked_at > _RELOAD_S:
            self._checked_at = monotonic()
            self._reopen_if_moved(self._path)
        with suppress(OSError):  # a full disk must not keep the server from answering
            os.write(self._file, orjson.dumps(entry, option=orjson.OPT_APPEND_NEWLINE))

    def _reopen_if_moved(self, path: Path) -> None:
        with suppress(OSError):  # it was moved or removed
            if os.path.samestat(os.stat(path), os.fstat(self._file)):
                return
        try:
            file = _open(path)
        except OSError as error:
            if not self._is_failing:
                logger.error("%s: the access log cannot be opened again (%s)", path, error.strerror)
            self._is_failing = True
            return
        os.close(self._file)
        self._file, self._is_failing = file, False


def _open(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640)


def _bearer(header: bytes | None) -> bytes | None:
    kind, _, token = (header or b"").partition(b" ")
    return token.strip() if kind.lower() == b"bearer" else None


def _id_of(header: bytes | None) -> bytes:
    """The client's id of its request, if it can be logged; else a new one."""
    if header and len(header) <= _MOST_ID and header.isascii() and header.decode().isprintable():
        return header
    return token_hex(8).encode()
