"""`open_writers`: the one function that knows where events can be stored."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ctr.stream.event_log import CLICKS, IMPRESSIONS, EventWriter

if TYPE_CHECKING:
    from ctr.stream.stream_writer import StreamWriter

# The Redis client is loaded only for URLs.


def is_stream(log: str | Path) -> bool:
    """Whether `log` is a stream in Redis, not a folder."""
    return "://" in str(log)


def open_writers(
    log: str | Path, kept_s: float
) -> tuple[EventWriter | StreamWriter, EventWriter | StreamWriter]:
    """Writers of impressions and of clicks to `log`: a folder, or the URL of a stream in Redis.

    `kept_s`: how many seconds a stream keeps them. Raises DataError if a folder is not writable, and
    StoreError for a wrong URL. An unreachable Redis is noticed only on the first write.
    """
    if not is_stream(log):
        return EventWriter(Path(log), IMPRESSIONS), EventWriter(Path(log), CLICKS)
    from ctr.ps import parse_redis_url
    from ctr.stream.stream_writer import StreamWriter

    url = parse_redis_url(str(log))
    return StreamWriter(url, IMPRESSIONS, kept_s), StreamWriter(url, CLICKS, kept_s)


def require_log(log: str | Path) -> None:
    """Raise StoreError if `log` is a stream in a Redis that cannot be reached."""
    if is_stream(log):
        from ctr.ps import parse_redis_url
        from ctr.ps.wire import connect

        connect(parse_redis_url(str(log)), timeout_s=5.0).close()
