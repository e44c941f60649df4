"""Checkpoints of real stores: written, read, and restored onto other servers."""

from __future__ import annotations

import json
import os
import resource
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from itertools import chain
from pathlib import Path

import numpy as np
import pytest

from ctr.checkpoint import ranges
from ctr.checkpoint.checkpoint import read_checkpoint, restore_checkpoint
from ctr.checkpoint.writer import draft_checkpoint
from ctr.errors import ModelError, StoreError
from ctr.ps import Token
from ctr.ps.wire import watermark_field
from tests.ctr.checkpoint.checkpoints import (
    FILES,
    SLOTS,
    content,
    drafts,
    opened,
    restored,
    train,
    write,
    write_checkpoint,
)
from tests.ps.redis_servers import StartRedis, needs_redis

pytestmark = needs_redis


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """Let the system refuse longer files, as it does on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)


class TestWrittenThenRestored:
    """What comes back is what was there."""

    @pytest.mark.parametrize("seed", range(6))
    def test_onto_another_number_of_nodes(
        self, seed: int, tmp_path: Path, redis_url: str, cluster_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if seed % 3:  # several are written at a time
            monkeypatch.setattr(ranges, "_LEAST_BYTES", 100)
            monkeypatch.setattr(ranges, "cores", lambda: 6)
        rng = np.random.default_rng(seed)
        here, there = (redis_url, cluster_url) if seed % 2 else (cluster_url, redis_url)
        bits, z_bits, n_bits = int(rng.choice([2, 6, 13, 16])), *rng.integers(8, 16, 2).tolist()
        store = opened(here, bits, z_bits=z_bits, n_bits=n_bits)
        pushes = int(rng.integers(0, 12))
        for _ in range(pushes):
            low, high = sorted(rng.integers(0, (1 << bits) + 1, 2).tolist())
            some = rng.choice(np.arange(low, high + 1), int(rng.integers(0, high - low + 2)))
            slots = np.unique(some[some < 1 << bits]).astype(np.uint32)
            delta = np.abs(rng.normal(0, 10.0 ** rng.integers(-3, 8), (slots.size, 2))).astype(np.float32)
            token = Token(f"jöb:{rng.integers(2)}", int(rng.integers(3)), int(rng.integers(5)))
            store.push(slots, delta, token)
        write(tmp_path / "c", store)
        checkpoint = read_checkpoint(tmp_path / "c")
        assert checkpoint.manifest.store.model_dump() == {
            "bits": bits,
            "z_bits": z_bits,
            "n_bits": n_bits,
            "partitions": store.partitions.count,
            "incarnation": store.incarnation,
        }
        there_before = [store.dumps.take(p) for p in range(store.partitions.count)]
        saved = list(chain.from_iterable(checkpoint.ranges()))
        assert len(checkpoint.ranges()) == (min(3, 2 * store.dumps.nodes) if seed % 3 else 1)
        assert len(saved) == sum(bool(d.state or d.applied) for d in there_before)
        again = restored(checkpoint, there)
        assert again.incarnation != store.incarnation
        assert content(again) == content(store)
        for one, other in zip(again.scan(), store.scan(), strict=True):
            np.testing.assert_array_equal(one[0], other[0])
            np.testing.assert_array_equal(one[1], other[1])
        for job in ("jöb:0", "jöb:1", "none"):
            for shard in range(3):
                np.testing.assert_array_equal(again.applied(job, shard), store.applied(job, shard))
        # And both go on in the same way: with tokens that count and with those that have counted.
        every = np.arange(min(1 << bits, 5_000), dtype=np.uint32)
        for chunk in (2, 9):
            for each in (store, again):
                each.push(every, np.ones((every.size, 2), np.float32), Token("jöb:0", 1, chunk))
        np.testing.assert_array_equal(again.pull(every), store.pull(every))
        store.drop()
        again.drop()

    def test_an_empty_model(self, tmp_path: Path, redis_url: str) -> None:
        store = opened(redis_url)
        write(tmp_path / "c", store)
        assert list(map(list, read_checkpoint(tmp_path / "c").ranges())) == [[]]
        assert not list(restored(read_checkpoint(tmp_path / "c"), redis_url).scan())

    def test_what_the_caller_gives(self, tmp_path: Path, redis_url: str) -> None:
        job = {"id": "j", "inputs": ["a b.tsv", "ü"], "deep": {"x": [1, 2.5, None, True, 2**63]}}
        reports = {"a worker/1": b"", "ü": bytes(range(256)) * 1_000, "": b"x"}
        progress = {"12": 3}
        with draft_checkpoint(
            tmp_path / "c", opened(redis_url), job=job, position={"shards": progress}, reports=reports
        ) as commit:
            progress["12"] = 4  # the job goes on
            commit()
        found = read_checkpoint(tmp_path / "c")
        manifest = found.manifest
        assert (manifest.job, manifest.position, found.reports) == (job, {"shards": {"12": 3}}, reports)
        assert manifest.created.endswith("+00:00")

    def test_pushes_that_arrive_although_training_is_paused(self, tmp_path: Path, redis_url: str) -> None:
        """A failover has lost the pause: some partitions have the next round, so ranks could not go on."""
        store, pushed = opened(redis_url), {watermark_field("job", 0).decode(): 0}
        train(store, 0)
        facts = {"job": {}, "position": {}, "reports": {}, "pushed": pushed}
        write_checkpoint(tmp_path / "c", store, **facts)
        train(store, 1, slots=SLOTS[: store.partitions.size])
        with pytest.raises(ModelError, match="while it was read"):
            write_checkpoint(tmp_path / "c", store, **facts)

    def test_a_chunk_beyond_the_position_counts_once(self, tmp_path: Path, redis_url: str) -> None:
        """It was pushed after the position was taken, and only some partitions had it when they were read."""
        store, undisturbed = opened(redis_url), opened(redis_url)
        for chunk in range(3):
            train(undisturbed, chunk)
        train(store, 0)
        position = {"next": 1}
        reached = 31 * store.partitions.size
        train(store, 1, slots=SLOTS[: np.searchsorted(SLOTS, reached)])
        write_checkpoint(tmp_path / "c", store, job={}, position=position, reports={})
        checkpoint = read_checkpoint(tmp_path / "c")
        again = restored(checkpoint, redis_url)
        for chunk in range(checkpoint.manifest.position["next"], 3):
            train(again, chunk)
        assert content(again) == content(undisturbed)

    def test_what_is_no_json_is_refused_before_anything_is_written(
        self, tmp_path: Path, redis_url: str
    ) -> None:
        store = opened(redis_url)
        for wrong in ({"a": {1: 2}}, {"a": object()}, {"a": 2**64}):
            with pytest.raises(TypeError):
                write_checkpoint(tmp_path / "c", store, job={}, position=wrong, reports={})
        assert os.listdir(tmp_path) == []

    def test_names_that_are_not_utf_8(self, tmp_path: Path, redis_url: str) -> None:
        folder = tmp_path / os.fsdecode(b"c\xff") / os.fsdecode(b"\xfe[a]*")
        store = opened(redis_url)
        train(store, 0)
        for n in range(2):
            write(folder, store, n)
        assert read_checkpoint(folder).manifest.position == {"n": 1}
        assert os.listdir(folder.parent) == [folder.name]

    def test_a_link_stays_a_link(self, tmp_path: Path, redis_url: str) -> None:
        (tmp_path / "real").mkdir()
        (tmp_path / "link").symlink_to("real")
        write(tmp_path / "link", opened(redis_url))
        assert (tmp_path / "link").is_symlink()
        assert read_checkpoint(tmp_path / "real").manifest.position == {"n": 0}

    @pytest.mark.parametrize("version", [4, 5])
    def test_an_older_one_had_one_file_of_partitions(
        self, tmp_path: Path, redis_url: str, version: int
    ) -> None:
        store = opened(redis_url)
        train(store, 0)
        write(tmp_path / "c", store)
        path = tmp_path / "c" / "manifest.json"
        (tmp_path / "c" / "partitions-00.arrow").rename(tmp_path / "c" / "partitions.arrow")
        manifest = json.loads(path.read_bytes()) | {"format_version": version}
        manifest["files"]["partitions.arrow"] = manifest["files"].pop("partitions-00.arrow")
        assert manifest.pop("ranges") == 1
        if version == 4:  # it kept n at the only scale that there was
            assert manifest["store"].pop("n_bits") == 8
        path.write_text(json.dumps(manifest))
        assert content(restored(read_checkpoint(tmp_path / "c"), redis_url)) == content(store)
        write(tmp_path / "c", store)  # which replaces it
        assert sorted(os.listdir(tmp_path / "c")) == FILES

    @pytest.mark.parametrize("at_fault", [0, 1])
    def test_a_range_that_cannot_be_read_leaves_nothing(
        self, tmp_path: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch, at_fault: int
    ) -> None:
        monkeypatch.setattr(ranges, "_LEAST_BYTES", 100)
        monkeypatch.setattr(ranges, "cores", lambda: 6)
        store = opened(redis_url)
        train(store, 0)
        partition = ranges.ranges_of(store)[at_fault][-1]
        with closing(store.url.client(store.url.hosts[0], 2.0)) as client:
            assert client.delete(store.keys.state(partition, 0)) == 1
        with pytest.raises(StoreError, match="has lost a part"):
            write(tmp_path / "c", store)
        assert os.listdir(tmp_path) == []
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("range")]

    @pytest.mark.parametrize(
        ("bits", "scales", "told"),
        [
            (11, {}, "bits 12, .* has bits 11"),
            (12, {"z_bits": 12}, "z_bits 13, .* has z_bits 12"),
            (12, {"n_bits": 14}, "n_bits 8, .* has n_bits 14"),
        ],
    )
    def test_into_a_store_of_another_make(
        self, tmp_path: Path, redis_url: str, bits: int, scales: dict[str, int], told: str
    ) -> None:
        store = opened(redis_url)
        train(store, 0)
        write(tmp_path / "c", store)
        other = opened(redis_url, bits, **scales)
        with pytest.raises(ModelError, match=f"was made from a store with {told}"):
            restore_checkpoint(read_checkpoint(tmp_path / "c"), other)
        assert not list(other.scan())

    def test_into_a_server_without_room(
        self, tmp_path: Path, redis_url: str, start_redis: StartRedis
    ) -> None:
        store = opened(redis_url, bits=20)
        train(store, 0, slots=np.arange(1 << 20, dtype=np.uint32))  # 8 MiB
        write(tmp_path / "c", store)
        small = start_redis(config={"maxmemory": "6mb", "maxmemory-policy": "noeviction"})
        with pytest.raises(StoreError, match="memory limit"):
            restored(read_checkpoint(tmp_path / "c"), small.url)
        store.drop()


class TestDraft:
    """Read while training is held, committed when it goes on."""

    def test_holds_what_the_store_held_then(self, tmp_path: Path, redis_url: str) -> None:
        store = opened(redis_url)
        train(store, 0)
        then = content(store)
        write(tmp_path / "c", store, 0)
        train(store, 1)
        now = content(store)
        with draft_checkpoint(tmp_path / "c", store, job={}, position={"n": 1}, reports={}) as commit:
            train(store, 2)
            before = read_checkpoint(tmp_path / "c")
            assert before.manifest.position == {"n": 0}
            with ThreadPoolExecutor(1) as background:
                background.submit(commit).result()
            train(store, 3)
        assert content(restored(read_checkpoint(tmp_path / "c"), redis_url)) == now
        # One that is open is not disturbed by what takes its place.
        assert content(restored(before, redis_url)) == then
        assert sorted(os.listdir(tmp_path)) == ["c"]
        assert sorted(os.listdir(tmp_path / "c")) == FILES

    @pytest.mark.parametrize("old", [False, True])
    @pytest.mark.parametrize("error", [None, ValueError("no"), KeyboardInterrupt()], ids=repr)
    def test_is_nothing_until_it_is_committed(
        self, tmp_path: Path, redis_url: str, old: bool, error: BaseException | None
    ) -> None:
        store = opened(redis_url)
        if old:
            write(tmp_path / "c", store, 7)

        def abandon() -> None:
            with draft_checkpoint(tmp_path / "c", store, job={}, position={}, reports={}):
                assert len(drafts(tmp_path / "c")) == 1
                if error is not None:
                    raise error

        if error is None:
            abandon()
        else:
            with pytest.raises(type(error)):
                abandon()
        assert os.listdir(tmp_path) == (["c"] if old else [])
        if old:
            assert read_checkpoint(tmp_path / "c").manifest.position == {"n": 7}

    def test_is_not_replaced_once_another_command_leads_the_job(self, tmp_path: Path, redis_url: str) -> None:
        store = opened(redis_url)
        write(tmp_path / "c", store, 7)

        def confirm() -> None:
            (draft,) = drafts(tmp_path / "c")
            assert sorted(os.listdir(tmp_path / draft)) == FILES, "it is complete"
            raise StoreError("the same one was resumed")

        facts = {"job": {}, "position": {"n": 8}, "reports": {}}
        with (
            draft_checkpoint(tmp_path / "c", store, **facts, confirm=confirm) as commit,
            pytest.raises(StoreError, match="resumed"),
        ):
            commit()
        assert os.listdir(tmp_path) == ["c"]
        assert read_checkpoint(tmp_path / "c").manifest.position == {"n": 7}

    @pytest.mark.parametrize("old", [False, True])
    def test_a_disk_that_refuses(self, tmp_path: Path, redis_url: str, old: bool) -> None:
        store = opened(redis_url, bits=18)
        if old:
            write(tmp_path / "c", store, 7)
        train(store, 0, slots=np.arange(1 << 18, dtype=np.uint32))
        told = "the earlier one is unchanged" if old else "nothing was left behind"
        with file_size_limit(1 << 12), pytest.raises(ModelError, match=f"could not be written .*; {told}"):
            write(tmp_path / "c", store)
        with draft_checkpoint(tmp_path / "c", store, job={}, position={}, reports={}) as commit:
            with file_size_limit(10), pytest.raises(ModelError, match=told):
                commit()
            assert drafts(tmp_path / "c") == []
        assert os.listdir(tmp_path) == (["c"] if old else [])
        if old:
            assert read_checkpoint(tmp_path / "c").manifest.position == {"n": 7}

    def test_a_server_that_lost_its_data(self, tmp_path: Path, start_redis: StartRedis) -> None:
        own = start_redis()
        store = opened(own.url)
        train(store, 0)
        write(tmp_path / "c", store, 7)
        own.servers[0].restart()
        with pytest.raises(StoreError, match="lost the data"):
            write(tmp_path / "c", store, 8)
        assert os.listdir(tmp_path) == ["c"]
        assert read_checkpoint(tmp_path / "c").manifest.position == {"n": 7}
