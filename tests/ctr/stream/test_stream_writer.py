"""Events on their way to Redis: each once, and nobody waits for a Redis that is away."""

from __future__ import annotations

from contextlib import closing
from threading import Event
from time import monotonic, sleep

import orjson
import pytest

from ctr.errors import StoreError
from ctr.ps import parse_redis_url
from ctr.stream import ExampleStream, now, open_writers
from ctr.stream.event_log import CLICKS, IMPRESSIONS
from ctr.stream.event_stream import START, EventReader
from tests.ps.cut_lines import cut_line
from tests.ps.redis_servers import StartRedis, eventually, needs_redis, timing_sensitive

pytestmark = needs_redis


def events_of(url: str) -> dict[str, list[str]]:
    """The ids of the events of each kind, in the order of arrival."""
    ids: dict[str, list[str]] = {IMPRESSIONS: [], CLICKS: []}
    with closing(EventReader(parse_redis_url(url), dict.fromkeys(ids, START))) as reader:
        while (arrivals := reader.read()).is_behind:
            for entry in arrivals.entries:
                ids[entry.kind] += [orjson.loads(line)["id"] for line in entry.lines]
        assert arrivals.kept_s == 60 or not ids[IMPRESSIONS]
    return ids


@pytest.mark.parametrize("server", ["redis_url", "cluster_url"])
def test_events_arrive_once_and_in_order(server: str, request: pytest.FixtureRequest) -> None:
    url = f"{request.getfixturevalue(server)}?stream=written"
    impressions, clicks = open_writers(url, kept_s=60)
    ids = [each for size in (1, 300, 0, 2) for each in impressions.write_new([{"row": {}}] * size)]
    impressions.close()
    clicks.write([{"id": each, "time": now()} for each in ids[:300]])
    clicks.close()
    assert events_of(url) == {IMPRESSIONS: ids, CLICKS: ids[:300]}


def test_what_is_old_is_trimmed(redis_url: str) -> None:
    impressions, _ = open_writers(f"{redis_url}?stream=trimmed", kept_s=1)
    url = parse_redis_url(redis_url)
    with closing(impressions), url.client(url.hosts[0], 10.0) as client:
        for _ in range(500):
            impressions.write_new([{"row": {}}])
        eventually(lambda: client.xlen("ctr:{events:trimmed}:impressions") == 500)
        sleep(2.5)
        impressions.write_new([{"row": {}}])
        eventually(lambda: client.xlen("ctr:{events:trimmed}:impressions") <= 101)  # whole nodes of a stream


@timing_sensitive
def test_nobody_waits_for_a_redis_that_is_away(start_redis: StartRedis) -> None:
    """Rows wait for it, up to a limit, and arrive once; clicks are refused soon."""
    servers = start_redis()
    url = f"{servers.url}?stream=away"
    impressions, clicks = open_writers(url, kept_s=60)
    ids = impressions.write_new([{"row": {}}])
    eventually(lambda: events_of(url)[IMPRESSIONS] == ids)
    servers.servers[0].freeze()
    began = monotonic()
    ids += impressions.write_new([{"row": {}}])
    large = {"row": {"text": "x" * (1 << 20)}}
    ids += [each for _ in range(63) for each in impressions.write_new([large])]
    with pytest.raises(OSError, match="redis://"):
        impressions.write_new([large])
    assert monotonic() - began < 2
    sleep(3)  # so that it was sent, and no answer came
    for longest_s in (8, 0.1):
        began = monotonic()
        with pytest.raises(OSError, match=r"Redis|reached"):
            clicks.write([{"id": ids[0], "time": now()}])
        assert monotonic() - began < longest_s
    servers.servers[0].thaw()
    impressions.close()
    assert events_of(url)[IMPRESSIONS] == ids
    sleep(1)
    clicks.write([{"id": ids[0], "time": now()}])
    clicks.close()
    assert events_of(url)[CLICKS][-1] == ids[0]


@timing_sensitive
def test_rows_that_follow_a_lost_answer_are_stored(
    start_redis: StartRedis, caplog: pytest.LogCaptureFixture
) -> None:
    """Redis has appended the first row, which is then sent again while another one waits."""
    servers = start_redis()
    (server,), url = servers.servers, f"{servers.url}?stream=lost"
    is_frozen = Event()

    def freeze(data: bytes) -> None:
        if b"EXEC" in data and not is_frozen.is_set():
            server.freeze()
            is_frozen.set()

    with cut_line(url, on_data=freeze) as line:
        impressions, _ = open_writers(line.url, kept_s=60)
        ids = impressions.write_new([{"row": {}}])
        assert is_frozen.wait(30)
        ids += impressions.write_new([{"row": {}}])
        eventually(lambda: "rows that were served wait for Redis" in caplog.text)
        server.thaw()
        impressions.close()
    assert events_of(url)[IMPRESSIONS] == ids


@timing_sensitive
def test_a_redis_without_room_takes_everything_later(start_redis: StartRedis) -> None:
    servers = start_redis(config={"maxmemory-policy": "noeviction"})
    parsed, url = parse_redis_url(servers.url), f"{servers.url}?stream=full"
    impressions, clicks = open_writers(url, kept_s=60)
    with closing(ExampleStream(url)) as examples, parsed.client(parsed.hosts[0], 10.0) as client:
        ids = impressions.write_new([{"row": {}}])
        eventually(lambda: events_of(url)[IMPRESSIONS] == ids)
        client.config_set("maxmemory", 1)
        ids += impressions.write_new([{"row": {}}])
        with pytest.raises(OSError, match=r"memory limit.*nothing was written"):
            clicks.write([{"id": ids[0], "time": now()}])
        with pytest.raises(StoreError, match=r"memory limit.*nothing was written"):
            examples.append(0, [b"{}"], {})
        client.config_set("maxmemory", 0)
        sleep(1)  # clicks are not tried sooner
        clicks.write([{"id": ids[0], "time": now()}])
        assert examples.append(0, [b"{}"], {})
        eventually(lambda: events_of(url) == {IMPRESSIONS: ids, CLICKS: ids[:1]})
    impressions.close()
    clicks.close()
