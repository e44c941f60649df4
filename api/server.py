"""`serve`: answers prediction requests until it is stopped, in one process or several."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import resource
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI

from ctr.api.app import create_app
from ctr.api.connections import (
    BACKLOG,
    MOST_HEADER_BYTES,
    close,
    connection_class,
    has_input,
    let_in,
    let_no_more_in,
    listen,
    listen_together,
    listen_unix,
    url_of,
)
from ctr.api.feedback import FeedbackLog
from ctr.api.operations import (
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
    run_processes,
)
from ctr.api.requests import Limits
from ctr.errors import CtrError, ModelError
from ctr.features.spec import Window
from ctr.features.windows import Windows
from ctr.model import Model
from ctr.registry import Registry
from ctr.settings import ServeJob
from ctr.stream import require_log

logger = logging.getLogger(__name__)

KEEP_ALIVE_S = 75
"""An idle connection is closed after this. The pools of common clients and proxies keep one for at most 60 s,
so they close first, and no request is sent on a connection that is being closed."""

SET_UP_S = 0.2
"""After a signal to stop, connections that clients have begun have this long to be set up."""

DRAIN_S = 10.0
"""After a signal to stop, running requests have this long to finish."""

SWITCH_S = 0.0005
"""A thread that runs Python lets others run after this long. By default, a request that comes while a thread
reads changes of weights, or predicts many rows, waits for 5 ms."""

OTHER_DESCRIPTORS = 64
"""Reserved for files, and for connections that were accepted and not yet counted."""

_HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def serve(job: ServeJob) -> None:
    """Answer requests until SIGINT or SIGTERM, then return.

    When the model is ready, one line on standard output gives the URL. SIGHUP makes the server look for
    another version at once, and read the files of TLS again. It finishes running requests before it returns,
    unless there is a second SIGINT.

    Raises `ModelError` if the model cannot be loaded, `CtrError` if the address is not available or a file of
    `job` cannot be read, and `StoreError` if Redis cannot be reached or has the windows of another spec.
    """
    sys.setswitchinterval(SWITCH_S)
    serving = _Serving(job)
    try:
        if job.workers == 1:
            serving.work(0, serving.announce)
        else:
            # Closed here as well, so that connections that nobody accepts any more are refused at once.
            run_processes(job.workers, serving.work, serving.announce, serving.close)
    finally:
        serving.close()


class _Serving:
    """What is set up once, before the processes of a server are forked."""

    def __init__(self, job: ServeJob) -> None:
        self._job = job
        self._source = _source_of(job)
        self._tokens = Tokens(job.tokens_file, "CTR_SERVE_TOKENS")
        self._admin_tokens = Tokens(job.admin_tokens_file, "CTR_SERVE_ADMIN_TOKENS")
        if job.feedback_log is not None:
            require_log(job.feedback_log)
        self._apps = _Applications(job)
        first = _first_whole(self._source).indexed(self._apps.index_folder)
        self._models = [first]
        if job.workers > 1 and first.windows is not None and job.windows is None:
            raise CtrError(
                f"{self._source.name}: the model has windows, and each of {job.workers} processes would know "
                "only a part; give --windows URL, or one process"
            )
        self._listeners = _listeners_of(job)
        self._url = url_of(self._listeners[0], secure=job.tls_cert is not None)
        self._is_announced = False

    def announce(self, line: str) -> None:
        """Say that requests are answered."""
        self._is_announced = True
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()

    def close(self) -> None:
        """Close the sockets."""
        for listener in self._listeners:
            close(listener)

    def work(self, number: int, on_ready: Callable[[str], None]) -> None:
        """Answer requests as the process with this number."""
        job, apps = self._job, self._apps
        if job.feedback_log is not None:
            apps.feedback = FeedbackLog(job.feedback_log, job.log_impressions, job.feedback_keep)
        shares = {CANARY: job.canary, SHADOW: job.shadow}
        versions = Versions(self._source, self._first_model(), apps.make, shares, warm_first=job.workers > 1)
        app = Access(versions, self._tokens, self._admin_tokens, job.access_log, versions.metrics)
        server = server_of(
            app,
            tls=(job.tls_cert, job.tls_key),
            drain_s=job.drain_s,
            limit=connection_limit(job.limit_connections),
        )
        server.is_alone = job.workers == 1
        own = self._listeners[number % len(self._listeners)]
        for listener in self._listeners:
            if listener is not own:
                listener.close()
        try:
            _answer(
                server,
                versions,
                own,
                lambda: on_ready(f"serving model {versions.main} on {self._url}{apps.windows_note}"),
            )
        finally:
            if apps.feedback is not None:
                apps.feedback.close()

    def _first_model(self) -> Model:
        # Each process has its own list: in it, the model must not stay when it is no longer served.
        model = self._models.pop()
        is_replacement = self._is_announced  # of another process, and the job of the first model may be over
        return _latest(self._source, model) if is_replacement and self._job.store is not None else model


def _first_whole(source: ModelSource) -> Model:
    """The version to serve or, if its files are damaged, the first of the earlier ones that can be loaded."""
    failures = []
    for version in source.versions()[source.main]:
        try:
            return source.load(version)
        except ModelError as error:
            failures.append(error)
    raise failures[0]


def _latest(source: ModelSource, model: Model) -> Model:
    """The latest version, or this model if that cannot be had."""
    with suppress(CtrError):
        version = source.versions()[source.main][0]
        if version != model.id:
            return source.load(version)
    return model


def _source_of(job: ServeJob) -> ModelSource:
    if job.store is not None:
        is_alone = job.model is None and job.registry is None
        published = None if is_alone else _source_of(job.model_copy(update={"store": None}))
        return StoreSource(job.store, published, _shared_folder())
    if job.registry is not None:
        others = [label for label, share in ((CANARY, job.canary), (SHADOW, job.shadow)) if share]
        return RegistrySource(job.registry, list(dict.fromkeys([job.label, *others])))
    assert job.model is not None
    place = str(job.model)
    if place.startswith("models:"):
        return MlflowSource(place)
    with suppress(ModelError):
        Registry(place).require()
        raise CtrError(f"{place}: is a registry, not a model; give it with --registry.")
    return FolderSource(job.model)


def _listeners_of(job: ServeJob) -> list[socket.socket]:
    """One socket for all processes, or one for each."""
    if job.socket is not None:
        return [listen_unix(job.socket)]
    if job.workers == 1:
        return [listen(job.host, job.port)]
    return listen_together(job.host, job.port, job.workers)


def _answer(
    server: _Server, versions: Versions, listener: socket.socket, on_ready: Callable[[], None]
) -> None:
    """Answer requests until SIGINT or SIGTERM. Raises the failure of the first version."""
    failures: list[Exception] = []

    def on_warm(failure: Exception | None) -> None:
        if failure is None:
            on_ready()
        else:
            failures.append(failure)
            server.should_exit = True

    def on_hangup() -> None:
        server.reload_tls()
        versions.look_soon()

    versions.on_warm = on_warm
    with _signals_end_quietly(server, on_hangup):
        server.run(sockets=[listener])
    if failures:
        raise failures[0]


def _shared_folder() -> Path | None:
    """The folder that several processes share."""
    folder = os.environ.get(SHARED_FOLDER)
    return None if folder is None else Path(folder)


class _Applications:
    """Makes the applications of models, whose windows are in Redis or in this process.

    A version whose windows know no rows continues with those of an earlier version in this process.
    """

    def __init__(self, job: ServeJob) -> None:
        self._job = job
        self.index_folder = _shared_folder()
        """Where models keep their index, so that several processes share it."""
        self.feedback: FeedbackLog | None = None
        """Of this process."""
        self._counts: dict[tuple[int, tuple[Window, ...]], Windows] = {}
        """The latest windows in this process, by seed and settings."""
        self.windows_note = ""
        """For the line on standard output."""
        self._redis = None
        if job.windows is not None:
            from ctr.ps import parse_redis_url, require_store_url

            require_store_url(job.windows)
            self._redis = parse_redis_url(job.windows)

    def make(
        self, model: Model, metrics: ServingMetrics, on_warm: Callable[[Exception | None], None]
    ) -> FastAPI:
        """See `MakeApp`."""
        windows = None
        model = model.indexed(self.index_folder)
        if self._redis is not None:
            from ctr.api.shared_windows import SharedWindows

            if model.windows is None:
                raise CtrError(f"{model.id}: the model has no windows to keep in Redis; leave --windows out")
            windows = SharedWindows(self._redis, model.spec, model.windows)
            origin = "as the model has them" if windows.created else "as they are there"
            self.windows_note = f", windows in {windows.url} ({origin})"
            model = model.with_shared(windows)
        elif model.windows is not None:
            kind = model.spec.seed, model.spec.windows
            if model.windows.keys or kind not in self._counts:
                self._counts[kind] = model.windows
            else:  # a version without counts, as training from a stream makes
                model = model.with_shared(self._counts[kind])
        return create_app(
            model,
            limits=Limits(**self._job.limits),
            windows=windows,
            max_age_s=self._job.max_age,
            unknown_fields=self._job.unknown_fields,
            feedback=self.feedback,
            metrics=metrics,
            on_warm=on_warm,
        )


def server_of(
    app: Any,
    tls: tuple[Path | None, Path | None] = (None, None),
    drain_s: float = DRAIN_S,
    **connection: Any,
) -> _Server:
    """A server for the ASGI application `app`; `connection`: keyword arguments of `Bounded`.

    `tls`: the files of its certificates and their key. `drain_s`: see `DRAIN_S`. Raises CtrError for files
    that cannot be read as such.
    """
    context = _tls_context(*tls)
    protocol: Any = partial(connection_class(), tls=context, **connection)
    config = uvicorn.Config(
        app,
        http=protocol,
        h11_max_incomplete_event_size=MOST_HEADER_BYTES,
        ws="none",
        backlog=1,
        log_level="error",  # no line for every client that does not speak HTTP
        access_log=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=math.ceil(drain_s),
    )
    server = _Server(config)
    if context is not None:
        server.reload_tls = partial(_reload, context, *tls)
    return server


def _reload(context: ssl.SSLContext, certificates: Path | None, key: Path | None) -> None:
    """Read the files of TLS again, for new connections."""
    assert certificates is not None
    try:
        _tls_context(certificates, key)  # first, as a failure would leave half of them in the context
        context.load_cert_chain(certificates, key)
    except (CtrError, OSError) as error:
        logger.error("%s Until then, the previous certificates are used.", error)


def _tls_context(certificates: Path | None, key: Path | None) -> ssl.SSLContext | None:
    if certificates is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)

    def no_passphrase() -> str:  # by default, OpenSSL would ask for it on the terminal
        raise CtrError(
            f"{key or certificates}: the private key is encrypted; give one without a passphrase, for example"
            " from `openssl pkey`."
        )

    try:
        context.load_cert_chain(certificates, key, no_passphrase)
    except OSError as error:  # ssl.SSLError is one
        raise CtrError(
            f"{certificates}: certificates and key cannot be read ({error}); give PEM files, and the key of"
            " the first certificate, by --tls-key or in the same file."
        ) from None
    return context


class _Server(uvicorn.Server):
    is_alone = True
    """Whether no other process has its listener, too."""
    reload_tls: Callable[[], None] = staticmethod(lambda: None)
    """Reads the files of TLS again."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        # asyncio accepts as many connections as its backlog before it handles any, which could exceed the
        # number of descriptors. So it accepts one at a time; the system's backlog is set afterwards.
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(BACKLOG)
            let_in(listener)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # Clients whose connections are in the system's queue may have sent their requests.
        listeners, now = sockets or (), asyncio.get_running_loop().time
        for listener in listeners:
            let_no_more_in(listener)
            if listener.family == socket.AF_UNIX and self.is_alone:
                Path(listener.getsockname()).unlink(missing_ok=True)
        set_up, end = now() + SET_UP_S, now() + (self.config.timeout_graceful_shutdown or 0)
        while not self.force_exit and (now() < set_up or (now() < end and any(map(has_input, listeners)))):
            await asyncio.sleep(0.01)
        await super().shutdown(sockets)


def connection_limit(most: int) -> int:
    """The number of connections this process can have, up to `most`; raises its limit of descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = most + OTHER_DESCRIPTORS
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    else:
        soft = wanted
    return max(1, min(most, soft - OTHER_DESCRIPTORS))


@contextmanager
def _signals_end_quietly(server: uvicorn.Server, on_hangup: Callable[[], None]) -> Iterator[None]:
    """Let SIGINT and SIGTERM end the server without ending the process.

    uvicorn shuts down gracefully on either, then sends the signal again to the previous handler. By default,
    that raises `KeyboardInterrupt`, or ends the process with a status of failure. SIGHUP, as when a terminal
    closes, does not end the server, and calls `on_hangup`.
    """

    def handle(number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            on_hangup()
        else:  # before uvicorn handles it, or once more in the end
            server.should_exit = True

    handlers = {number: signal.signal(number, handle) for number in _HANDLED}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
