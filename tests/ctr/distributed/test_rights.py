"""A Redis user with the rights that docs/redis.md lists can do all that `ctr` does; what lacks is named."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import count
from pathlib import Path
from threading import Event

import pytest
import redis

from ctr.distributed.run import StoreSettings, train_distributed
from ctr.errors import StoreError
from ctr.ps import Filters, JobBoard, RedisStore, parse_redis_url
from ctr.ps.status import StoreObserver
from ctr.workers.description import JobDescription
from tests.command_line import Cli
from tests.ctr.distributed_jobs import describe, source_of
from tests.ps.redis_servers import StartRedis, needs_redis

pytestmark = needs_redis

_names = count()
LISTED = re.search(
    r"ACL SETUSER ctr on >password (~ctr:\* .*?)```",
    (Path(__file__).parents[3] / "docs" / "redis.md").read_text(),
    re.DOTALL,
)
FILTERS = Filters(cache=True, presence=True, defer=1e-5)

UrlOf = Callable[..., str]


@pytest.fixture
def url_of(redis_url: str) -> Iterator[UrlOf]:
    """The store of a user with the listed rights, but for what is taken away."""
    assert LISTED is not None
    with redis.Redis.from_url(redis_url) as client:
        users: list[str] = []

        def of(*changes: str) -> str:
            users.append(f"rights-{next(_names)}")
            client.execute_command("ACL", "SETUSER", users[-1], "on", ">pw", *LISTED[1].split(), *changes)
            return f"redis://{users[-1]}:pw@{redis_url.rpartition('@')[2]}"

        yield of
        client.acl_deluser(*users)
        client.flushdb()


def trained(job: JobDescription, url: str) -> None:
    """The job's model stays in the store."""
    found, _ = train_distributed(job, source_of(job), StoreSettings(url), start=None, stop=Event())
    assert found.result.examples == job.rows
    found.store.close()


def test_the_listed_rights_are_enough(cli: Cli, url_of: UrlOf, job_data: Path, tmp_path: Path) -> None:
    url = url_of()
    flags = {"consistency": "ssp", "filters": FILTERS}
    for settings in (flags, {"consistency": "bsp"}):
        trained(describe(job_data, workers=1, chunk=1_000, **settings), url)
        for words in (["status"], ["export", "--model", tmp_path / "model"], ["drop", "--yes"]):
            done = cli("ps", words[0], "--store", url, *words[1:])
            assert done.code == 0, done.err
            assert "permission" not in done.out + done.err
    assert "there is no model" in cli("ps", "status", "--store", url).err


@pytest.mark.parametrize(
    "lacking", ["info", "hset", "hgetall", "watch", "multi", "zadd", "bitfield", "getrange", "time"]
)
def test_a_right_that_lacks_is_named(url_of: UrlOf, job_data: Path, lacking: str) -> None:
    job = describe(job_data, workers=1, chunk=1_000, consistency="ssp", filters=FILTERS)
    with pytest.raises(StoreError, match=rf"'{lacking}'.*docs/redis.md has a list"):
        trained(job, url_of(f"-{lacking}"))


def test_the_listed_rights_are_enough_on_a_cluster(start_redis: StartRedis) -> None:
    assert LISTED is not None
    servers = start_redis(nodes=2)
    for server in servers.servers:
        server.call("ACL", "SETUSER", "limited", "on", ">pw", *LISTED[1].split())
    url = parse_redis_url(f"redis+cluster://limited:pw@{servers.url.rpartition('@')[2]}")
    store = RedisStore(url, bits=12, width=2)
    with closing(JobBoard(url)) as board:
        board.create("job", b"", shards=2)
        assert board.queue.claim(board.leases.register("here")) is not None
        assert StoreObserver(url).look().whole
    store.drop()
