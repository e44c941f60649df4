"""Any reply over a link to a real server; and what is tried again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pytest
from redis.exceptions import ConnectionError as BrokenConnection

from ctr.errors import StoreError
from ctr.ps.wire import Connection, Link, ServerError, command, connect, parse_redis_url
from ctr.ps.wire.patience import patiently
from tests.ps.breakable_redis import BreakableRedis
from tests.ps.redis_servers import needs_redis


@pytest.fixture
def link(redis_url: str) -> Iterator[Link]:
    url = parse_redis_url(redis_url)
    with closing(connect(url, 5.0)) as nodes, nodes.link(url.hosts[0]) as link:
        yield link


@needs_redis
def test_any_reply(link: Link) -> None:
    commands = [
        (b"SET", b"reply", b"a\r\n\0"),
        (b"GET", b"reply"),
        (b"GET", b"no such key"),
        (b"INCRBY", b"count", b"-7"),
        (b"ECHO", b"x" * 1_000_000),
        (b"MGET", b"reply", b"no such key"),
        (b"KEYS", b"nothing*"),
        (b"COMMAND", b"INFO", b"nonsense"),
        (b"DEL", b"reply", b"count"),
    ]
    link.send(*(command(*words) for words in commands))
    answers = [link.replies.reply() for _ in commands]
    assert answers[:7] == [b"OK", b"a\r\n\0", None, -7, b"x" * 1_000_000, [b"a\r\n\0", None], []]
    assert answers[7:] == [[None], 2]


@needs_redis
def test_a_string_is_read_into_an_array(link: Link) -> None:
    strings = [b"", b"short", bytes(range(256)) * 12_000, b"x"]  # one is longer than what is received at once
    link.send(*(command(b"ECHO", each) for each in strings), command(b"GET", b"no such key"))
    out = np.full(4_000_000, 7, np.uint8)
    for each in strings:
        assert link.replies.bulk_into(out) == len(each)
        assert out[: len(each)].tobytes() == each
        assert (out[len(each) :] == 7).all()
        out[: len(each)] = 7
    assert link.replies.bulk_into(out[:0]) == 0
    link.send(command(b"NONSENSE"), command(b"ECHO", b"too long"))
    with pytest.raises(ServerError, match="NONSENSE"):
        link.replies.bulk_into(out)
    with pytest.raises(BrokenConnection, match="8 bytes"):
        link.replies.bulk_into(out[:7])


@needs_redis
def test_errors_among_replies(link: Link) -> None:
    commands = [(b"MULTI",), (b"SET", b"word", b"a"), (b"INCR", b"word"), (b"DEL", b"word"), (b"EXEC",)]
    link.send(*(command(*words) for words in commands))
    *_, answers = [link.replies.reply() for _ in commands]
    assert (answers[0], answers[2]) == (b"OK", 1)
    assert isinstance(answers[1], ServerError)
    link.send(command(b"PING"), command(b"NONSENSE"), command(b"PING"), command(b"ECHO", b"last"))
    replies, found = link.replies, []
    with pytest.raises(ServerError, match="NONSENSE"):
        replies.all_of(replies.status, replies.status, lambda: found.append(replies.status()))
    assert found == [b"PONG"]  # what follows an error is read from its beginning
    assert replies.reply() == b"last"


def test_only_what_may_pass_is_tried_again() -> None:
    troubles = [BrokenConnection("gone"), ServerError("MOVED 1 a:1"), OSError("away")]
    refreshed: list[None] = []

    def attempt() -> str:
        if troubles:
            raise troubles.pop()
        return "done"

    def refresh() -> None:
        refreshed.append(None)
        raise BrokenConnection("still away")

    def gave_up(problem: Exception) -> StoreError:
        return StoreError(f"gave up after {problem}")

    assert patiently(attempt, refresh, "redis://a", 30.0, gave_up) == "done"
    assert len(refreshed) == 3
    troubles.append(ServerError("OOM command not allowed"))
    with pytest.raises(StoreError, match=r"redis://a: .* memory limit"):
        patiently(attempt, refresh, "redis://a", 30.0, gave_up)
    troubles.extend([OSError("away")] * 2)
    with pytest.raises(StoreError, match="gave up after away"):
        patiently(attempt, refresh, "redis://a", 0.0, gave_up)


@needs_redis
def test_a_cluster_is_not_asked_what_commands_there_are(
    shared_cluster: BreakableRedis, cluster_url: str
) -> None:
    def asked() -> int:
        stats = [server.call("INFO", "commandstats") for server in shared_cluster.servers]
        return sum(each.get("cmdstat_command", {"calls": 0})["calls"] for each in stats)

    url = parse_redis_url(cluster_url)
    before = asked()
    with closing(Connection(connect(url, 5.0), patience_s=5.0)) as connection:
        assert connection.ask(("SET", "{second}", 1), ("GET", "{second}")) == [b"OK", b"1"]
    assert asked() == before


@needs_redis
def test_a_connection_looks_nothing_up_among_installed_packages(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = parse_redis_url(redis_url)
    monkeypatch.delattr("importlib.metadata.version")
    with closing(connect(url, 5.0)) as nodes, nodes.link(url.hosts[0]) as link:
        link.send(command(b"ECHO", b"here"))
        assert link.replies.reply() == b"here"
