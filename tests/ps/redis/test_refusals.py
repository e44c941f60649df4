"""What a store says when it cannot be opened, or is refused."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
import redis

from ctr.errors import StoreError
from ctr.ps import Store, Token
from ctr.ps.status import StoreObserver
from ctr.ps.wire.replies import ServerError
from ctr.ps.wire.url import parse_redis_url
from tests.ps.breakable_redis import BreakableRedis
from tests.ps.redis.stores import SLOTS, deltas, opened
from tests.ps.redis_servers import needs_redis

pytestmark = needs_redis


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ("MOVED 42 10.0.0.7:6379", "MOVED"),
        ("EXECABORT Transaction discarded because of previous errors.", "EXECABORT"),
        ("EXECABORT Transaction discarded because of: OOM command not allowed", "OOM"),
        ("ERR", "ERR"),
    ],
)
def test_the_code_of_an_error(said: str, code: str) -> None:
    assert ServerError(said).code == code


class TestRefusals:
    """A clear error before, or instead of, damage."""

    def test_wrong_password(self, server: BreakableRedis) -> None:
        url = re.sub(":[^:@]*@", ":wrong-secret@", server.url)
        with pytest.raises(StoreError, match="refused") as refusal:
            opened(url)
        assert "wrong-secret" not in str(refusal.value)

    def test_nobody_there(self) -> None:
        with pytest.raises(StoreError, match="reached"):
            opened("redis://127.0.0.1:1/0")

    def test_tls_towards_a_plain_server(self, server: BreakableRedis) -> None:
        with pytest.raises(StoreError, match="scheme"):
            opened(server.url.replace("redis://", "rediss://"), timeout_s=1.0)

    def test_a_model_of_that_name_is_there(self, server: BreakableRedis) -> None:
        store = opened(server.url, model="taken")
        with pytest.raises(StoreError, match="already"):
            opened(server.url, model="taken")
        store.drop()

    @pytest.mark.parametrize(
        ("options", "named"),
        [
            ({"bits": 13}, "bits"),
            ({"facts": {"fingerprint": "b"}}, "fingerprint"),
            ({"z_bits": 12}, "z_bits"),
            ({"n_bits": 14}, "n_bits 8, this job has 14"),
        ],
    )
    def test_another_model_under_the_name(
        self, server: BreakableRedis, options: dict[str, object], named: str
    ) -> None:
        store = opened(server.url, model="mine", facts={"fingerprint": "a"})
        with pytest.raises(StoreError, match=named):
            opened(server.url, model="mine", join=True, **({"facts": {"fingerprint": "a"}} | options))
        store.drop()

    def test_another_layout_version(self, server: BreakableRedis) -> None:
        store = opened(server.url, model="old")
        with redis.Redis.from_url(server.url) as client:
            client.hset("ctr:{old:meta}", "layout", "0")
        with pytest.raises(StoreError, match="layout 0"):
            opened(server.url, model="old", join=True)
        store.drop()

    def test_a_model_of_layout_3(self, server: BreakableRedis) -> None:
        """Which called the id of its creation otherwise: nothing of it is touched."""
        fields = {"run": "0123", "ready": "1", "layout": "3", "bits": "12", "partitions": "64"}
        with redis.Redis.from_url(server.url) as client:
            client.hset("ctr:{older:meta}", mapping=fields)
            for options in ({"join": True}, {"join": False}):
                with pytest.raises(StoreError, match="layout 3, this one has layout 10"):
                    opened(server.url, model="older", **options)
            status = StoreObserver(parse_redis_url(f"{server.url}?model=older")).look()
            assert "layout 3" in str(status.problem)
            assert status.model is None
            assert client.hlen("ctr:{older:meta}") == len(fields)
            client.delete("ctr:{older:meta}")

    def test_memory_limit(self) -> None:
        with BreakableRedis(config={"maxmemory": "12mb", "maxmemory-policy": "noeviction"}) as small:
            store = opened(small.url, bits=24)
            everything = np.arange(0, 1 << 24, 64, dtype=np.uint32)
            ones = np.ones((everything.size, 2), np.float32)
            with pytest.raises(StoreError, match="memory limit"):
                store.push(everything, ones, Token("job", 0, 0))
            with small.servers[0].connect() as client:
                client.config_set("maxmemory", 0)
            store.push(everything, ones, Token("job", 0, 0))  # goes on where it stopped
            assert (store.pull(everything) == 1).all()
            store.close()

    def test_something_else_under_the_name_of_a_partition(self, server: BreakableRedis) -> None:
        store = opened(server.url)
        with redis.Redis.from_url(server.url) as client:
            client.lpush(store.keys.state(3), "a list")
            for request in (
                lambda: store.pull(SLOTS),
                lambda: store.push(SLOTS, deltas(0), Token("job", 0, 0)),
                lambda: store.dumps.take(3),
                lambda: list(store.scan()),
            ):
                with pytest.raises(StoreError, match=r"refused \(WRONGTYPE"):
                    request()
            client.delete(store.keys.state(3))
        store.push(SLOTS, deltas(0), Token("job", 0, 0))
        np.testing.assert_allclose(store.pull(SLOTS), deltas(0), atol=2**-8)
        store.drop()

    @pytest.mark.parametrize("request_of", [
        lambda store: store.pull(SLOTS),
        lambda store: store.push(SLOTS, deltas(1), Token("job", 0, 1)),
        lambda store: store.applied("job", 0),
        lambda store: list(store.scan()),
    ])  # fmt: skip
    def test_a_server_that_restarted_empty(self, request_of: Callable[[Store], object]) -> None:
        with BreakableRedis() as own:
            store = opened(own.url)
            store.push(SLOTS, deltas(1), Token("job", 0, 0))
            own.servers[0].restart()
            with pytest.raises(StoreError, match="lost the data"):
                request_of(store)
            store.close()
