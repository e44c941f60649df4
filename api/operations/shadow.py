"""`Shadow`: predicts answered requests again with another version, to compare the two."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from threading import BoundedSemaphore
from typing import TYPE_CHECKING, Protocol

from ctr.api.operations.metrics import ServingMetrics

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope, Send

logger = logging.getLogger(__name__)

MOST_WAITING = 16
"""The most requests that wait for the shadow version; others are left out."""


class Comparing(Protocol):
    """The service of a version."""

    def compare(self, body: bytes, answer: bytes) -> None:
        """Predict the rows of a request that another version has answered, and record how the two differ."""


class Shadow:
    """One thread that predicts after the requests were answered."""

    def __init__(self, metrics: ServingMetrics) -> None:
        self._metrics = metrics
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="shadow")
        self._places = BoundedSemaphore(MOST_WAITING)
        self._is_failing = False

    def watching(
        self, service: Comparing, scope: Scope, receive: Receive, send: Send
    ) -> tuple[Receive, Send]:
        """`receive` and `send` of a request whose rows `service` predicts once it was answered."""
        if any(name == b"content-encoding" for name, _ in scope["headers"]):
            self._leave_out("compressed")
            return receive, send
        body, answer, answered = bytearray(), bytearray(), False

        async def receiving() -> Message:
            message = await receive()
            body.extend(message.get("body", b""))
            return message

        async def sending(message: Message) -> None:
            nonlocal answered
            await send(message)
            if message["type"] == "http.response.start":
                answered = message["status"] == 200
            elif answered:
                answer.extend(message.get("body", b""))
                if not message.get("more_body"):
                    self.predict_later(service, bytes(body), bytes(answer))

        return receiving, sending

    def predict_later(self, service: Comparing, body: bytes, answer: bytes) -> None:
        """Let `service` predict the rows of a request that was answered."""
        if not self._places.acquire(blocking=False):
            self._leave_out("busy")
            return
        self._thread.submit(self._predict, service, body, answer)

    def _predict(self, service: Comparing, body: bytes, answer: bytes) -> None:
        try:
            service.compare(body, answer)
            self._is_failing = False
        except Exception as error:  # noqa: BLE001  (the request was answered in any case)
            self._leave_out("failed")
            if not self._is_failing:
                logger.error("the shadow version failed on a request: %s", error)
            self._is_failing = True
        finally:
            self._places.release()

    def _leave_out(self, why: str) -> None:
        self._metrics.shadow.left_out.labels(why).inc()

    def close(self) -> None:
        """Finish the waiting requests, then end."""
        self._thread.shutdown()
