"""Served rows and clicks: logged by servers, and joined to rows for training."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ctr.lazy import lazy_package
from ctr.stream.event_log import CLICKS, IMPRESSIONS, now, time_of
from ctr.stream.join import JoinResult, JoinSettings, Late, join
from ctr.stream.opening import is_stream, open_writers, require_log

if TYPE_CHECKING:
    from ctr.stream.event_stream import Gap
    from ctr.stream.example_stream import LANES, ExampleStream, StreamChunk
    from ctr.stream.stream_join import StreamJoinResult, join_stream
    from ctr.stream.stream_source import StreamExamples, StreamSource

__getattr__ = lazy_package(__name__, __file__)  # the Redis client is loaded on first use of a stream
