"""Tests of the stream of examples: chunks are appended once, read in order, and kept until trained."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from itertools import count

import pytest

from ctr.errors import DataError, StoreError
from ctr.stream import LANES, ExampleStream
from ctr.stream.example_stream import _TRAINED, _UNTRAINED
from tests.ps.redis_servers import needs_redis

pytestmark = needs_redis
_names = count()


@pytest.fixture
def stream(redis_url: str) -> Iterator[ExampleStream]:
    with closing(ExampleStream(f"{redis_url}?stream=test-{next(_names)}")) as stream:
        yield stream


def fill(stream: ExampleStream, first: int, end: int) -> None:
    for number in range(first, end):
        assert stream.append(number, [b'{"row": %d}' % number], {"read": number})


def test_chunks_keep_their_order_and_the_writers_state(stream: ExampleStream) -> None:
    assert stream.last() == (0, {})
    fill(stream, 0, 2 * LANES + 3)
    assert stream.last() == (2 * LANES + 3, {"read": 2 * LANES + 2})
    for number in range(2):
        read = stream.read(dict.fromkeys(range(LANES), number))
        assert [read[lane].rows for lane in range(LANES)] == [
            b'{"row": %d}' % (number * LANES + lane) for lane in range(LANES)
        ]
    assert sorted(stream.read(dict.fromkeys(range(LANES), 2))) == [0, 1, 2]
    assert stream.read({0: 3}) == {}


def test_a_chunk_is_appended_once(stream: ExampleStream) -> None:
    fill(stream, 0, 5)
    assert stream.append(4, [b'{"row": "again"}'], {"read": 4})
    assert stream.read({4: 0})[4].rows == b'{"row": 4}'
    assert stream.read({4: 1}) == {}
    with pytest.raises(StoreError, match="do two processes write"):
        stream.append(4 + 2 * LANES, [b"{}"], {})


def test_a_full_lane_waits_for_training(stream: ExampleStream) -> None:
    for number in range(_UNTRAINED):
        assert stream.append(number * LANES, [b"{}"], {})
    assert not stream.append(_UNTRAINED * LANES, [b"{}"], {})
    stream.trained(0, _UNTRAINED)
    assert stream.positions() == [_UNTRAINED, *[0] * (LANES - 1)]
    assert stream.append(_UNTRAINED * LANES, [b"{}"], {})
    assert sorted(stream.read({0: _UNTRAINED})) == [0]


def test_chunks_that_are_gone_are_an_error_and_no_gap(stream: ExampleStream) -> None:
    for number in range(2 * _TRAINED):
        assert stream.append(number * LANES, [b"{}"], {})
    stream.trained(0, 2 * _TRAINED)
    assert stream.read({0: _TRAINED})[0].number == _TRAINED
    with pytest.raises(DataError, match=f"chunks 0 to {_TRAINED - 1} of lane 0 are gone"):
        stream.read({0: 0})


def test_chunks_that_a_failover_has_lost_are_appended_again(stream: ExampleStream) -> None:
    fill(stream, 0, 3 * LANES)
    lost = stream.read({5: 1})[5].rows, stream.read({5: 2})[5].rows
    with stream._connection.nodes.link(stream.url.hosts[0]) as link:
        link.ask(("DEL", stream._keys[5]))
    fill(stream, 3 * LANES, 4 * LANES)
    assert (stream.read({5: 1})[5].rows, stream.read({5: 2})[5].rows) == lost
    assert stream.last()[0] == 4 * LANES


def test_a_new_writer_refuses_a_stream_with_a_hole(stream: ExampleStream) -> None:
    fill(stream, 0, 2 * LANES)
    with stream._connection.nodes.link(stream.url.hosts[0]) as link:
        link.ask(("XDEL", stream._keys[5], "2-0"))
    with pytest.raises(StoreError, match="lost chunk 21"):
        stream.last()


def test_a_new_writer_ends_if_training_would_skip_its_chunks(stream: ExampleStream) -> None:
    fill(stream, 0, 3 * LANES)
    stream.trained(0, 3)
    with stream._connection.nodes.link(stream.url.hosts[0]) as link:
        link.ask(*[("DEL", key) for key in stream._keys])
    with (
        closing(ExampleStream(stream.url)) as writer,
        pytest.raises(StoreError, match=r"lane 0 .* ends with chunk -1, and training is at 3"),
    ):
        writer.append(writer.last()[0], [b"{}"], {})
    with pytest.raises(StoreError, match="Redis has lost chunks"):
        stream.require({0: 3, 1: 0})
    stream.require({0: 0})
