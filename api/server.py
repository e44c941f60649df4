"""`serve`: one process that answers prediction requests until it is told to stop."""

from __future__ import annotations

import math
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI

from ctr.api.app import create_app
from ctr.api.connection import Bounded, H11Connection
from ctr.api.feedback import FeedbackLog
from ctr.api.operations import (
    BACKLOG,
    CANARY,
    SHADOW,
    SHARED_FOLDER,
    Access,
    FolderSource,
    MlflowSource,
    ModelSource,
    RegistrySource,
    ServingMetrics,
    StoreSource,
    Tokens,
    Versions,
    listen,
    listen_together,
    listen_unix,
    run_processes,
    url_of,
)
from ctr.api.requests import Limits, UnknownFields
from ctr.errors import CtrError
from ctr.model import Model
from ctr.settings import ServeJob
from ctr.stream import require_log

KEEP_ALIVE_S = 75
"""An idle connection is closed after this. Longer than the pools of common clients and proxies keep one
(up to 60 s), so that they close first and no request meets a connection that is just being closed."""

DRAIN_S = 10.0
"""After a signal to stop, requests under way have this long to finish."""

OTHER_DESCRIPTORS = 64
"""Kept free for files, and for connections that were accepted and are not yet counted."""

_HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def serve(job: ServeJob) -> None:
    """Answer requests until SIGINT or SIGTERM, then return.

    Port 0 takes a free one. When the model is ready to predict, one line on standard output says where it
    listens. SIGHUP makes it look at once whether there is another version. Requests under way are finished
    before it returns; a second SIGINT does not wait for them. `ModelError` when the model cannot be loaded,
    `CtrError` when the address cannot be had or a file of `job` cannot be read, `StoreError` when Redis
    cannot be reached or has other windows.
    """
    source = _source_of(job)
    tokens = Tokens(job.tokens_file, "CTR_SERVE_TOKENS")
    admin_tokens = Tokens(job.admin_tokens_file, "CTR_SERVE_ADMIN_TOKENS")
    if job.feedback_log is not None:
        require_log(job.feedback_log)
    shared = _SharedBy(job.windows, job.unknown_fields, Limits(**job.limits), job.max_age)
    model = shared.indexed(source.load(source.versions()[source.main]))
    if job.workers > 1 and model.windows is not None and job.windows is None:
        raise CtrError(
            f"{source.name}: the model has windows, which {job.workers} processes would each know a part of;"
            " give --windows URL, or one process"
        )
    listeners = _listeners_of(job)

    def say() -> None:
        url = url_of(listeners[0], secure=job.tls_cert is not None)
        sys.stdout.write(f"serving model {model.id} on {url}{shared.line}\n")
        sys.stdout.flush()

    def latest() -> Model:
        """What a process begins with that takes another's place: the first may be of a job that is over."""
        with suppress(CtrError):
            version = source.versions()[source.main]
            if version != model.id:
                return shared.indexed(source.load(version))
        return model

    def work(number: int, on_ready: Callable[[], None]) -> None:
        if job.feedback_log is not None:
            shared.feedback = FeedbackLog(job.feedback_log, job.log_impressions, job.feedback_keep)
        shares = {CANARY: job.canary, SHADOW: job.shadow}
        first = latest() if job.workers > 1 else model
        versions = Versions(source, first, shared.app_of, shares, warm_first=job.workers > 1)
        app = Access(versions, tokens, admin_tokens, job.access_log)
        server = server_of(
            app,
            tls=(job.tls_cert, job.tls_key),
            drain_s=job.drain_s,
            limit=connection_limit(job.limit_connections),
        )
        mine = listeners[number % len(listeners)]
        if job.workers > 1:
            for other in listeners:
                if other is not mine:
                    other.close()
        try:
            _answer(server, versions, mine, on_ready)
        finally:
            if shared.feedback is not None:
                shared.feedback.close()

    def close() -> None:
        for each in listeners:
            each.close()

    try:
        if job.workers == 1:
            work(0, say)
        else:
            # Closed here, too, so that a connection that nobody accepts any more is refused at once.
            run_processes(job.workers, work, say, close)
    finally:
        close()
        if job.socket is not None:
            job.socket.unlink(missing_ok=True)


def _source_of(job: ServeJob) -> ModelSource:
    if job.store is not None:
        is_alone = job.model is None and job.registry is None
        published = None if is_alone else _source_of(job.model_copy(update={"store": None}))
        return StoreSource(job.store, published)
    if job.registry is not None:
        others = [label for label, share in ((CANARY, job.canary), (SHADOW, job.shadow)) if share]
        return RegistrySource(job.registry, list(dict.fromkeys([job.label, *others])))
    assert job.model is not None
    place = str(job.model)
    return MlflowSource(place) if place.startswith("models:") else FolderSource(job.model)


def _listeners_of(job: ServeJob) -> list[socket.socket]:
    """One for all processes, or one for each."""
    if job.socket is not None:
        return [listen_unix(job.socket)]
    if job.workers == 1:
        return [listen(job.host, job.port)]
    return listen_together(job.host, job.port, job.workers)


def _answer(
    server: uvicorn.Server, versions: Versions, listener: socket.socket, on_ready: Callable[[], None]
) -> None:
    """Answer requests until SIGINT or SIGTERM. Raises what is wrong with the first version."""
    failures: list[Exception] = []

    def on_warm(failure: Exception | None) -> None:
        if failure is None:
            on_ready()
        else:
            failures.append(failure)
            server.should_exit = True

    versions.on_warm = on_warm
    with _signals_end_quietly(versions.look_soon):
        server.run(sockets=[listener])
    if failures:
        raise failures[0]


class _SharedBy:
    """Makes the applications of models whose windows are at a URL, or in this process."""

    def __init__(
        self, url: str | None, unknown_fields: UnknownFields, limits: Limits, max_age_s: float | None
    ) -> None:
        self._unknown_fields, self._limits, self._max_age_s = unknown_fields, limits, max_age_s
        shared = os.environ.get(SHARED_FOLDER)
        self._folder = None if shared is None else Path(shared)
        self._redis = None
        if url is not None:
            from ctr.ps import parse_redis_url

            self._redis = parse_redis_url(url)
        self.feedback: FeedbackLog | None = None
        """Of this process."""
        self.line = ""
        """What there is to say of the windows."""

    def indexed(self, model: Model) -> Model:
        """The model with its index, which several processes share."""
        return model.indexed(self._folder)

    def app_of(
        self, model: Model, metrics: ServingMetrics, on_warm: Callable[[Exception | None], None]
    ) -> FastAPI:
        """See `MakeApp`."""
        make = partial(
            create_app,
            limits=self._limits,
            max_age_s=self._max_age_s,
            unknown_fields=self._unknown_fields,
            feedback=self.feedback,
            metrics=metrics,
            on_warm=on_warm,
        )
        model = self.indexed(model)
        if self._redis is None:
            return make(model)
        from ctr.api.shared_windows import SharedWindows

        if model.windows is None:
            raise CtrError(f"{model.id}: the model has no windows to keep in Redis; leave --windows out")
        shared = SharedWindows(self._redis, model.spec, model.windows)
        made = "as the model has them" if shared.created else "as they are there"
        self.line = f", windows in {shared.url} ({made})"
        return make(model.with_shared(shared), windows=shared)


def server_of(
    app: Any,
    tls: tuple[Path | None, Path | None] = (None, None),
    drain_s: float = DRAIN_S,
    **connection: Any,
) -> uvicorn.Server:
    """A server for the ASGI application `app`; `connection` are the keyword arguments of `Connection`.

    `tls`: the files of its certificates and their key. `drain_s`: see `DRAIN_S`. Raises CtrError for files
    that are no such.
    """
    protocol: Any = partial(connection_class(), **connection)
    config = uvicorn.Config(
        app,
        http=protocol,
        ws="none",
        backlog=1,
        log_level="error",  # not a line for every client that talks no HTTP
        access_log=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=math.ceil(drain_s),
        ssl_certfile=tls[0],
        ssl_keyfile=tls[1],
    )
    try:
        config.load()
    except OSError as error:  # ssl.SSLError is one
        raise CtrError(f"{tls[0]}: certificates and key cannot be read ({error}).") from None
    return _Server(config)


def connection_class() -> type[Bounded]:
    """The faster one where httptools is installed."""
    if find_spec("httptools") is None:
        return H11Connection
    from ctr.api.httptools_connection import HttpToolsConnection

    return HttpToolsConnection


class _Server(uvicorn.Server):
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        # asyncio accepts as many connections as its backlog says before it looks at any, which could be more
        # than there are descriptors. So it accepts one at a time; the system's own backlog is set afterwards.
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(BACKLOG)


def connection_limit(most: int) -> int:
    """How many connections this process can have, at most `most`; raises its limit of descriptors for it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = most + OTHER_DESCRIPTORS
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    else:
        soft = wanted
    return max(1, min(most, soft - OTHER_DESCRIPTORS))


@contextmanager
def _signals_end_quietly(on_hangup: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Let SIGINT and SIGTERM end the server without ending the process.

    uvicorn shuts down gracefully on either, then sends the signal once more to whoever handled it before.
    By default that would be a `KeyboardInterrupt`, or death by SIGTERM with a status that says failure.
    SIGHUP, which a server outlives when its terminal closes, calls `on_hangup`.
    """

    def ignore(number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            on_hangup()

    before = {number: signal.signal(number, ignore) for number in _HANDLED}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
