"""`Versions`: an application that passes each request to the application of one model version."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from math import inf
from random import randbytes, random
from time import monotonic, perf_counter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs
from zlib import crc32

from fastapi import FastAPI
from pydantic import ValidationError

from ctr.api.background import background
from ctr.api.operations.access import IS_ADMIN, Headers, respond
from ctr.api.operations.metrics import ServingMetrics
from ctr.api.operations.shadow import Shadow
from ctr.api.operations.sources import CANARY, SHADOW, ModelSource, summary_of
from ctr.api.schema import LabelChange, describe_versions
from ctr.errors import CtrError, first_problem
from ctr.model import Model

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope, Send

logger = logging.getLogger(__name__)

MODELS = "/v1/models"
_PREDICT = "/v1/predict"
MEMORY_EVERY_S = 10.0
RETRY_S, MOST_RETRY_S = 10.0, 600.0
"""The time until a failed version is tried again, as its files may have been unreadable for a moment. Each
failure doubles the time."""
SOONER = 5
"""The labels are read this many times as often while they cannot be read."""
_MOST_BODY = 4_096
KEY = b"ctr-request-key"
"""The header whose hash assigns a request to the canary; the default is the connection's address."""
VERSION = b"ctr-version"
"""The header by which a request selects a served version: its label or its id."""
_OPEN_INFERENCE = "/v2/models/ctr/versions/"
"""Paths of the Open Inference Protocol by which a request selects a served version: its id follows."""
MODEL = b"ctr-model"
"""The header of every response: the id of the version that answered."""


MakeApp = Callable[[Model, ServingMetrics, Callable[[Exception | None], None]], FastAPI]


@dataclass(slots=True)
class _Version:
    """One version that is served."""

    label: str
    model: Model
    app: FastAPI
    since: str
    lifespan: AsyncExitStack
    under_way: int = 0
    idle: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(frozen=True, slots=True)
class _Failure:
    """Why a version is not served."""

    reason: str
    wait_s: float
    retry_at: float
    """When it is tried again, by `monotonic`."""


class Versions:
    """Serves the versions that the labels of `source` point to, and follows changes of the labels.

    A version is loaded, warmed up and tried on an example before its first request. One that fails is not
    served, and tried again later. A request is answered by the version that it began with. While the source
    cannot be read, the served versions stay.
    """

    def __init__(
        self,
        source: ModelSource,
        first: Model,
        make_app: MakeApp,
        shares: Mapping[str, float] = MappingProxyType({}),
        *,
        warm_first: bool = False,
        poll_s: float | None = None,
        retry_s: float = RETRY_S,
    ) -> None:
        """`first`: the model of the source's main label. `make_app`: makes the application of one model.
        `shares`: the shares of requests that the version labelled canary answers, and that the version
        labelled shadow also predicts. `warm_first`: accept no connection before the first version is ready,
        as other processes accept them.
        """
        self.metrics = ServingMetrics(first.id)
        self.on_warm: Callable[[Exception | None], None] = lambda _: None
        """Called when the first model is ready and the labels were read (None), and with a failure that ends
        the server."""
        self._source, self._make_app = source, make_app
        self._own = self.metrics.counting(self._answer_itself, frozenset({MODELS}))
        self._first = first, make_app(first, self.metrics, self._first_is_warm)
        self._share, self._shadowed = shares.get(CANARY, 0.0), shares.get(SHADOW, 0.0)
        self._poll_s = source.poll_s if poll_s is None else poll_s
        self._warm_first = warm_first
        self._shadow, self._background = Shadow(self.metrics), background()
        self._served: dict[str, _Version] = {}
        self._main: _Version | None = None
        self._failed: dict[str, _Failure] = {}
        """By version."""
        self._retry_s = retry_s
        self._is_unreadable = False
        self._look_now = asyncio.Event()
        self._retiring: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ready: asyncio.Future[Exception | None]
        """Set when the first version is ready (None), or to its failure."""
        self._has_started = asyncio.Event()

    @property
    def main(self) -> str:
        """The served version of the main label, which may be an earlier one than the label's."""
        assert self._main is not None
        return self._main.model.id

    def look_soon(self) -> None:
        """Look at the labels at once, and try failed versions again; any thread may call it."""

        def look() -> None:
            self._failed.clear()
            self._look_now.set()

        if self._loop is not None:
            self._loop.call_soon_threadsafe(look)

    def _first_is_warm(self, failure: Exception | None) -> None:
        self._ready.set_result(failure)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        version = self._chosen(scope)
        if version is None or _is_about_versions(scope):
            await self._own(scope, receive, send)
            return
        header = (MODEL, version.model.id.encode())

        async def naming_version(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), header]
            await send(message)

        sending: Send = naming_version
        # Most requests take this shortcut past the application's layers, which take a quarter of the time.
        is_prediction = scope["path"] == _PREDICT and scope["method"] == "POST"
        app = version.app.state.shortcut if is_prediction else version.app
        if is_prediction and (shadow := self._drawn_shadow(version)) is not None:
            receive, sending = self._shadow.watching(shadow.app.state.service, scope, receive, sending)
        version.under_way += 1
        try:
            await app(scope, receive, sending)
        finally:
            version.under_way -= 1
            if version.under_way == 0:
                version.idle.set()

    async def _answer_itself(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request about versions, or one for a version that is not served."""
        if self._chosen(scope) is None:
            names = ", ".join(f"{label} ({each.model.id})" for label, each in self._served.items())
            detail = f"the version in the header ctr-version is not served; served are: {names}"
            await respond(send, 404, {"detail": detail})
            return
        if scope["path"] == MODELS:
            is_admin = bool(scope.get(IS_ADMIN))
            description = self.describe(is_admin=is_admin)
            if "all" in parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True):
                if not is_admin:
                    await _require_admin(send)
                    return
                try:
                    available = await asyncio.to_thread(self._source.available)
                except CtrError as error:
                    await respond(send, 503, {"detail": str(error)})
                    return
                if available is not None:
                    description["available"] = available
            await respond(send, 200, description)
            return
        await self._change_label(scope, receive, send)

    def answer_now(self, scope: Scope, body: bytes) -> tuple[Headers, bytes] | None:
        """Headers and body of the answer to JSON rows, if it takes next to no time; otherwise None."""
        if scope["path"] != _PREDICT or not self._is_plain(scope["headers"]):
            return None
        version = self._chosen(scope)
        if version is None:
            return None
        began = perf_counter()
        content = version.app.state.service.predict_now(body)
        if content is None:
            return None
        self.metrics.count(_PREDICT, "200", perf_counter() - began)
        if (shadow := self._drawn_shadow(version)) is not None:
            self._shadow.predict_later(shadow.app.state.service, body, content)
        return [(b"content-type", b"application/json"), (MODEL, version.model.id.encode())], content

    def _is_plain(self, headers: Headers) -> bool:
        """Whether a body is plain JSON, and the version does not depend on the address that a proxy names."""
        return not any(
            (name == b"content-type" and value != b"application/json")
            or name == b"content-encoding"
            or (name == b"x-forwarded-for" and self._share)
            for name, value in headers
        )

    def _drawn_shadow(self, version: _Version) -> _Version | None:
        """The version that also predicts a request, if it was drawn."""
        shadow = self._served.get(SHADOW) if self._shadowed else None
        return shadow if shadow is not version and random() < self._shadowed else None

    async def _change_label(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer `POST /v1/models/LABEL` with the body `{"version": ID}` or `{"rollback": true}`."""
        if scope["method"] != "POST":
            await respond(send, 405, {"detail": "POST a version to a label"})
        elif not scope.get(IS_ADMIN):
            await _require_admin(send)
        else:
            try:
                change = LabelChange.model_validate_json(await _body(receive))
                label = scope["path"].removeprefix(f"{MODELS}/")
                version = await asyncio.to_thread(self._source.change, label, change.version)
            except ValidationError as error:
                await respond(send, 422, {"detail": first_problem(error)})
            except CtrError as error:
                await respond(send, 409, {"detail": str(error)})
            else:
                logger.warning("label %s was changed to %s by request", label, version)
                self._look_now.set()
                await respond(send, 200, {"label": label, "version": version})

    def describe(self, *, is_admin: bool) -> dict[str, Any]:
        """The served and the failed versions; paths and reasons are for administrators only."""
        is_shared = CANARY in self._served and self._source.main != CANARY
        canary_share = self._share if is_shared else 0.0
        shares = {CANARY: canary_share, SHADOW: 0.0, self._source.main: 1.0 - canary_share}
        reasons = {version: failure.reason for version, failure in self._failed.items()}
        private = {"source": self._source.name, "reasons": reasons} if is_admin else {}
        return {
            **private,
            "served": [
                {
                    "label": each.label,
                    "version": each.model.id,
                    "since": each.since,
                    "created": each.model.manifest.get("created"),
                    "share": shares[each.label],
                    "metrics": summary_of(each.model.metrics),
                }
                for each in self._served.values()
            ],
            "failed": list(self._failed),
        }

    def _chosen(self, scope: Scope) -> _Version | None:
        """The version that answers a request; None if the request selects one that is not served."""
        selected = next((value for name, value in scope["headers"] if name == VERSION), None)
        if selected is not None:
            name, served = selected.decode("latin-1"), self._served.values()
            return next((each for each in served if name in (each.label, each.model.id)), None)
        if scope["path"].startswith(_OPEN_INFERENCE):
            id_ = scope["path"].removeprefix(_OPEN_INFERENCE).partition("/")[0]
            for each in self._served.values():
                if each.model.id == id_:
                    return each
        canary = self._served.get(CANARY)
        assert self._main is not None
        if canary is None or canary is self._main or not self._share:
            return self._main
        key = next((value for name, value in scope["headers"] if name == KEY), None)
        if key is None:
            client = scope.get("client")  # absent behind a Unix socket
            key = repr(client).encode() if client else randbytes(4)
        return canary if crc32(key) < self._share * 2**32 else self._main

    async def _live(self, receive: Receive, send: Send) -> None:
        """Handle the server's `lifespan` messages."""
        await receive()
        async with self._running():
            if self._warm_first:
                await self._has_started.wait()
            await send({"type": "lifespan.startup.complete"})
            await receive()
        await send({"type": "lifespan.shutdown.complete"})

    @asynccontextmanager
    async def _running(self) -> AsyncIterator[None]:
        self._loop = asyncio.get_running_loop()
        self._ready = self._loop.create_future()
        self._main = self._served[self._source.main] = await _start(self._source.main, *self._first)
        del self._first  # or the model would stay in memory when it is no longer served
        watching = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching
            self._shadow.close()
            self._background.shutdown(wait=False)
            for version in self._served.values():
                await version.lifespan.aclose()

    async def _watch(self) -> None:
        """Follow the labels; if that fails, end the server, which could never serve another version."""
        try:
            await self._follow()
        except Exception as failure:  # noqa: BLE001  (the server raises it)
            self.on_warm(failure)
        finally:
            self._has_started.set()

    async def _follow(self) -> None:
        failure, memory_read_at = await self._ready, -inf
        if failure is not None:
            failed = self._served.pop(self._source.main)
            self._retire(failed)
            self._note_failure(failed.model.id, failure)
        await self._look()  # a process that replaces another one starts with what the others serve
        if self._source.main in self._served:
            failure = None
        self.on_warm(failure)
        self._has_started.set()
        while failure is None:
            self.metrics.note_age()
            if monotonic() >= memory_read_at + MEMORY_EVERY_S:
                memory_read_at = monotonic()
                await asyncio.to_thread(self.metrics.note_memory)
            with suppress(TimeoutError):
                # All processes look at the same times, so that they change together.
                every_s = self._poll_s / (SOONER if self._is_unreadable else 1)
                async with asyncio.timeout(every_s - monotonic() % every_s):
                    await self._look_now.wait()
            self._look_now.clear()
            await self._look()

    async def _look(self) -> None:
        """Serve the versions that the labels point to now."""
        try:
            labels = await asyncio.to_thread(self._source.versions)
        except CtrError as error:
            self.metrics.unread.inc()
            if not self._is_unreadable:
                logger.error("%s The served versions stay.", error)
            self._is_unreadable = True
            return
        if self._is_unreadable:
            logger.warning("%s can be read again", self._source.name)
            self._failed.clear()  # they may only have been unreachable, too
        # After an outage, a version is late already: loading it does not give way to requests.
        executor = None if self._is_unreadable else self._background
        self._is_unreadable = False
        for label, versions in labels.items():
            await self._serve_first(label, versions, executor)
        for label in self._served.keys() - labels.keys():
            self._retire(self._served.pop(label))
        self.metrics.serve(each.model.id for each in self._served.values())

    async def _serve_first(self, label: str, versions: Sequence[str], executor: Executor | None) -> None:
        """Serve the first version that passes its trial; in all processes the same, whatever each served."""
        served = self._served.get(label)
        for version in versions:
            if served is not None and served.model.id == version:
                return  # though it may have failed under another label
            failure = self._failed.get(version)
            if failure is not None and monotonic() < failure.retry_at:
                continue
            if await self._change(label, version, executor):
                return

    async def _change(self, label: str, version: str, executor: Executor | None) -> bool:
        """Serve another version under a label, if it passes its trial; returns whether it does."""
        try:
            in_thread = partial(asyncio.get_running_loop().run_in_executor, executor)
            model = await in_thread(self._source.load, version)
            ready: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
            # In a thread, as it may ask Redis for windows.
            app = await in_thread(self._make_app, model, self.metrics, ready.set_result)
            started = await _start(label, model, app)
            if (failure := await ready) is not None:
                await started.lifespan.aclose()
                raise failure
        except Exception as error:  # noqa: BLE001  (the other versions are served in any case)
            self._note_failure(version, error)
            return False
        self._failed.pop(version, None)
        replaced = self._served.get(label)
        self._served[label] = started
        if label == self._source.main:
            self._main = started
        self.metrics.changes.inc()
        logger.warning("%s is now version %s", label, model.id)
        if replaced is not None:
            self._retire(replaced)
        return True

    def _note_failure(self, version: str, error: Exception) -> None:
        """Record why a version is not served, and when to try it again."""
        earlier = self._failed.get(version)
        wait_s = self._retry_s if earlier is None else min(2 * earlier.wait_s, MOST_RETRY_S)
        self._failed[version] = _Failure(str(error), wait_s, monotonic() + wait_s)
        self.metrics.failed_versions.inc()
        logger.error("version %s of %s is not served: %s", version, self._source.name, error)

    def _retire(self, version: _Version) -> None:
        """Free a version when its last request has ended."""

        async def end() -> None:
            while version.under_way:
                version.idle.clear()
                await version.idle.wait()
            await version.lifespan.aclose()

        task = asyncio.create_task(end())
        self._retiring.add(task)
        task.add_done_callback(self._retiring.discard)


def _is_about_versions(scope: Scope) -> bool:
    is_list = scope["path"] == MODELS and scope["method"] in ("GET", "HEAD")
    return is_list or scope["path"].startswith(f"{MODELS}/")


async def _start(label: str, model: Model, app: FastAPI) -> _Version:
    """Start the warm-up of a version."""
    describe_versions(app)
    lifespan = AsyncExitStack()
    await lifespan.enter_async_context(app.router.lifespan_context(app))
    return _Version(label, model, app, datetime.now(UTC).isoformat(timespec="seconds"), lifespan)


async def _require_admin(send: Send) -> None:
    detail = (
        "an administrator's token is required, one of those that the server was started with"
        " (--admin-tokens-file): send it as Authorization: Bearer TOKEN"
    )
    await respond(send, 401, {"detail": detail})


async def _body(receive: Receive) -> bytes:
    """The body of a small request; a longer one is cut off, and so is not valid JSON."""
    body = bytearray()
    while True:
        message = await receive()
        body += message.get("body", b"")[:_MOST_BODY]
        if not message.get("more_body") or len(body) > _MOST_BODY:
            return bytes(body[:_MOST_BODY])
