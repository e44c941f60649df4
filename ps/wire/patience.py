"""Retries of requests: which errors may pass, and the pauses between tries."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from time import monotonic, sleep
from typing import TypeVar

from redis.exceptions import AuthenticationError, NoPermissionError, RedisClusterException, RedisError

from ctr.errors import StoreError
from ctr.ps.wire.replies import ServerError

T = TypeVar("T")

PATIENCE_S = 30.0
"""How long a request is retried while a server is away."""

BROKEN = (RedisError, RedisClusterException, OSError)  # the second is not derived from the first
"""Errors of connections, and those of redis-py."""

TROUBLE = (ServerError, *BROKEN)
"""The same and error replies."""

_PAUSE_S = 0.1
_LONGEST_S = 1.0


class Patience:
    """Random pauses between tries, so that clients that failed together do not retry together."""

    def __init__(
        self, seconds: float, pause_s: float, *, longest: int = 1, counts_tries: bool = True
    ) -> None:
        """Retry for `seconds` after the first pause, of which only pauses count unless `counts_tries`.

        Where a server has so much to do that each try takes seconds, a transaction that others come before
        needs more than its time, but each time somebody else has written: all get on, if slowly.

        A pause lasts a random time of at most `pause_s`; this limit doubles with every try, up to `longest`
        times `pause_s`. So of many clients that get into each other's way, soon few try at a time.
        """
        self._seconds = seconds
        self._pause_s = pause_s
        self._longest = longest
        self._limit = 0.5
        """Of the last pause, in units of `pause_s`."""
        self._counts_tries = counts_tries
        self._deadline: float | None = None
        """On the clock or, if tries do not count, on that of pauses."""
        self._paused_s = 0.0

    def pause(self, gave_up: Callable[[], StoreError]) -> None:
        """Wait before the next try; raises the result of `gave_up` when the time is over."""
        now = monotonic() if self._counts_tries else self._paused_s
        if self._deadline is None:
            self._deadline = now + self._seconds
        elif now > self._deadline:
            raise gave_up()
        self._limit = min(2 * self._limit, self._longest)
        pause_s = random.random() * self._pause_s * self._limit
        sleep(pause_s)
        self._paused_s += pause_s


def patiently(
    attempt: Callable[[], T],
    refresh: Callable[[], None],
    url: object,
    seconds: float,
    gave_up: Callable[[Exception], StoreError],
    *,
    longest_s: float = _LONGEST_S,
) -> T:
    """Return the result of `attempt`; retries while its error may pass, with `refresh` before every retry.

    Pauses grow to `longest_s`, or to a second, so that a returning server is not flooded by all clients.
    After `seconds`, raises the result of `gave_up` for the last error; raises StoreError immediately for an
    error that will not pass.
    """
    patience = Patience(seconds, _PAUSE_S, longest=max(round(min(longest_s, _LONGEST_S) / _PAUSE_S), 1))
    while True:
        try:
            return attempt()
        except TROUBLE as error:
            require_passing(error, url)
            problem = error
        patience.pause(partial(gave_up, problem))
        with suppress(*BROKEN):  # the next attempt will fail, too
            refresh()


def require_passing(error: Exception, url: object = None) -> None:
    """Raise StoreError for an error that a retry will not cure."""
    where = "" if url is None else f"{url}: "
    if isinstance(error, AuthenticationError):
        raise StoreError(f"{where}user or password was refused ({error}).") from None
    if not isinstance(error, ServerError) or error.passing:
        return
    if error.code == "OOM":
        raise StoreError(
            f"{where}Redis has reached its memory limit ({error}), and nothing was written. Raise maxmemory, "
            "add nodes, or store less: a model of fewer bits, windows that expire sooner."
        ) from error
    raise StoreError(f"{where}Redis refused ({error}){rights_hint(error)}.") from error


def rights_hint(error: Exception) -> str:
    """A hint for messages, if the user may not use a command."""
    text = str(error)
    if isinstance(error, NoPermissionError) or "NOPERM" in text or "no permissions" in text:
        return "; docs/redis.md has a list of the commands that a user needs"
    return ""
