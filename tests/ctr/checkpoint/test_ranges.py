"""Checkpoints of which several ranges are read and restored at the same time, while things fail."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ctr.checkpoint import ranges
from ctr.checkpoint.checkpoint import read_checkpoint, restore_checkpoint
from ctr.errors import StoreError
from ctr.ps import PartitionDump
from ctr.ps.redis.dumps import Dumps
from tests.ctr.checkpoint.checkpoints import content, opened, train, write
from tests.ps.breakable_redis import BreakableRedis
from tests.ps.redis_servers import needs_redis

pytestmark = needs_redis


@pytest.fixture(autouse=True)
def _two_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "_LEAST_BYTES", 100)
    monkeypatch.setattr(ranges, "cores", lambda: 4)


@pytest.fixture
def slow_takes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The partitions that were taken so far; each takes 0.1 s."""
    taken, take = list[int](), Dumps.take

    def slowly(dumps: Dumps, partition: int) -> PartitionDump:
        taken.append(partition)
        time.sleep(0.1)
        return take(dumps, partition)

    monkeypatch.setattr(Dumps, "take", slowly)
    return taken


def test_a_server_that_is_away_for_a_moment(tmp_path: Path) -> None:
    settings = {"appendonly": "yes", "appendfsync": "always", "dir": str(tmp_path)}
    with BreakableRedis(config=settings) as redis:
        (server,) = redis.servers
        store = opened(redis.url)
        train(store, 0)
        before = content(store)

        def back_in_a_second(work: Callable[[], object]) -> None:
            server.kill()
            timer = threading.Timer(1.0, server.restart)
            timer.start()
            work()
            timer.join()

        back_in_a_second(lambda: write(tmp_path / "c", store))
        checkpoint = read_checkpoint(tmp_path / "c")
        assert len(checkpoint.ranges()) == 2
        other = opened(redis.url, z_bits=store.z_bits, n_bits=store.n_bits, restoring=True)
        back_in_a_second(lambda: restore_checkpoint(checkpoint, other))
        assert content(other) == before


@pytest.mark.parametrize("partition", [0, 8])
def test_the_others_end_when_one_fails(
    tmp_path: Path, redis_url: str, slow_takes: list[int], partition: int
) -> None:
    store = opened(redis_url)
    train(store, 0)
    with store.url.client(store.url.hosts[0], 2.0) as client:
        assert client.delete(store.keys.state(partition, 0)) == 1
    with pytest.raises(StoreError, match="has lost a part"):
        write(tmp_path / "c", store)
    assert len(slow_takes) < 8, "instead of half of the partitions"
    assert os.listdir(tmp_path) == []


def test_a_store_that_is_closed_meanwhile(tmp_path: Path, redis_url: str, slow_takes: list[int]) -> None:
    store = opened(redis_url)
    train(store, 0)
    timer = threading.Timer(0.3, store.close)
    timer.start()
    with pytest.raises(StoreError, match="the store is closed"):
        write(tmp_path / "c", store)
    timer.join()
    assert os.listdir(tmp_path) == []


def test_ctrl_c_while_it_is_restored(tmp_path: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(redis_url)
    train(store, 0)
    write(tmp_path / "c", store)
    restoring, restore = threading.Event(), Dumps.restore

    def slowly(dumps: Dumps, dump: PartitionDump) -> None:
        time.sleep(0.1)
        restore(dumps, dump)
        restoring.set()

    def interrupt() -> None:
        assert restoring.wait(10)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Dumps, "restore", slowly)
    thread = threading.Thread(target=interrupt)
    thread.start()
    other = opened(redis_url, z_bits=store.z_bits, n_bits=store.n_bits, restoring=True)
    with pytest.raises(KeyboardInterrupt):
        restore_checkpoint(read_checkpoint(tmp_path / "c"), other)
    thread.join()
    other.drop()
    time.sleep(0.5)
    with store.url.client(store.url.hosts[0], 2.0) as client:
        assert not client.keys(f"*{other.keys.model}*"), "no range goes on"
