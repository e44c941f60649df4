"""Checkpoints of real stores: written, killed, damaged, read and restored onto other servers."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ctr.checkpoint.checkpoint import Checkpoint, read_checkpoint, restore_checkpoint
from ctr.checkpoint.writer import draft_checkpoint, require_checkpoint_or_nothing
from ctr.errors import DataError, ModelError, StoreError
from ps import Token
from ps.redis.store import RedisStore
from ps.wire.url import parse_redis_url
from tests.ps.redis_servers import StartRedis, needs_redis

pytestmark = needs_redis

FILES = ["manifest.json", "partitions.arrow", "reports.arrow"]
SLOTS = np.arange(0, 4_096, 5, dtype=np.uint32)

_names = count()


def opened(url: str, bits: int = 12, **options: Any) -> RedisStore:
    """A store of a new model."""
    url = f"{url}?model=checkpoint-{next(_names)}"
    return RedisStore(parse_redis_url(url), bits=bits, width=2, **options)


def train(store: RedisStore, chunk: int, shard: int = 0, slots: np.ndarray = SLOTS) -> None:
    """Push a chunk: each one a unit of z and two of n."""
    store.push(slots, np.full((slots.size, 2), [1, 2], np.float32), Token("job", shard, chunk))


def write_checkpoint(folder: Path, store: RedisStore, **facts: Any) -> None:
    with draft_checkpoint(folder, store, **facts) as draft:
        draft.commit()


def write(folder: Path, store: RedisStore, n: int = 0) -> None:
    write_checkpoint(folder, store, job={"name": "test"}, position={"n": n}, reports={})


def content(store: RedisStore) -> list[tuple[int, bytes, dict[str, int]]]:
    """Everything that a store holds, to the bit, but for zeros at the end of a partition."""
    dumps = [store.dump(p) for p in range(store.partitions.count)]
    return [(d.partition, d.state.rstrip(b"\0"), d.applied) for d in dumps]


def restored(checkpoint: Checkpoint, url: str, **options: Any) -> RedisStore:
    store = opened(url, checkpoint.store.bits, z_bits=checkpoint.store.z_bits, **options)
    restore_checkpoint(checkpoint, store)
    return store


def drafts(folder: Path) -> list[str]:
    """Hidden names beside a folder."""
    return [path.name for path in folder.parent.iterdir() if path.name.startswith(".")]


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
        self, seed: int, tmp_path: Path, redis_url: str, cluster_url: str
    ) -> None:
        rng = np.random.default_rng(seed)
        here, there = (redis_url, cluster_url) if seed % 2 else (cluster_url, redis_url)
        bits, z_bits = int(rng.choice([2, 6, 13, 18])), int(rng.integers(8, 16))
        store = opened(here, bits, z_bits=z_bits)
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
        assert checkpoint.store.model_dump() == {
            "bits": bits,
            "z_bits": z_bits,
            "partitions": store.partitions.count,
            "incarnation": store.incarnation,
        }
        there_before = [store.dump(p) for p in range(store.partitions.count)]
        assert len(list(checkpoint.dumps())) == sum(bool(d.state or d.applied) for d in there_before)
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
        assert not list(read_checkpoint(tmp_path / "c").dumps())
        assert list(read_checkpoint(tmp_path / "c").dumps()) == []
        assert not list(restored(read_checkpoint(tmp_path / "c"), redis_url).scan())

    def test_what_the_caller_gives(self, tmp_path: Path, redis_url: str) -> None:
        job = {"id": "j", "inputs": ["a b.tsv", "ü"], "deep": {"x": [1, 2.5, None, True, 2**63]}}
        reports = {"a worker/1": b"", "ü": bytes(range(256)) * 1_000, "": b"x"}
        progress = {"12": 3}
        with draft_checkpoint(
            tmp_path / "c", opened(redis_url), job=job, position={"shards": progress}, reports=reports
        ) as draft:
            progress["12"] = 4  # the job goes on
            draft.commit()
        found = read_checkpoint(tmp_path / "c")
        assert (found.job, found.position, found.reports) == (job, {"shards": {"12": 3}}, reports)
        assert found.created.endswith("+00:00")

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
        for chunk in range(checkpoint.position["next"], 3):
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
        assert read_checkpoint(folder).position == {"n": 1}
        assert os.listdir(folder.parent) == [folder.name]

    def test_a_link_stays_a_link(self, tmp_path: Path, redis_url: str) -> None:
        (tmp_path / "real").mkdir()
        (tmp_path / "link").symlink_to("real")
        write(tmp_path / "link", opened(redis_url))
        assert (tmp_path / "link").is_symlink()
        assert read_checkpoint(tmp_path / "real").position == {"n": 0}

    @pytest.mark.parametrize(
        ("bits", "z_bits", "told"),
        [(11, 13, "bits 12, .* has bits 11"), (12, 12, "z_bits 13, .* has z_bits 12")],
    )
    def test_into_a_store_of_another_make(
        self, tmp_path: Path, redis_url: str, bits: int, z_bits: int, told: str
    ) -> None:
        store = opened(redis_url)
        train(store, 0)
        write(tmp_path / "c", store)
        other = opened(redis_url, bits, z_bits=z_bits)
        with pytest.raises(ModelError, match=f"was taken of a store with {told}"):
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
        with draft_checkpoint(tmp_path / "c", store, job={}, position={"n": 1}, reports={}) as draft:
            train(store, 2)
            before = read_checkpoint(tmp_path / "c")
            assert before.position == {"n": 0}
            with ThreadPoolExecutor(1) as background:
                background.submit(draft.commit).result()
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
            assert read_checkpoint(tmp_path / "c").position == {"n": 7}

    @pytest.mark.parametrize("old", [False, True])
    def test_a_disk_that_refuses(self, tmp_path: Path, redis_url: str, old: bool) -> None:
        store = opened(redis_url, bits=18)
        if old:
            write(tmp_path / "c", store, 7)
        train(store, 0, slots=np.arange(1 << 18, dtype=np.uint32))
        told = "the one that was there is unchanged" if old else "nothing was left behind"
        with file_size_limit(1 << 20), pytest.raises(ModelError, match=f"could not be written .*; {told}"):
            write(tmp_path / "c", store)
        with draft_checkpoint(tmp_path / "c", store, job={}, position={}, reports={}) as draft:
            with file_size_limit(10), pytest.raises(ModelError, match=told):
                draft.commit()
            assert drafts(tmp_path / "c") == []
        assert os.listdir(tmp_path) == (["c"] if old else [])
        if old:
            assert read_checkpoint(tmp_path / "c").position == {"n": 7}

    def test_a_server_that_lost_its_data(self, tmp_path: Path, start_redis: StartRedis) -> None:
        own = start_redis()
        store = opened(own.url)
        train(store, 0)
        write(tmp_path / "c", store, 7)
        own.servers[0].restart()
        with pytest.raises(StoreError, match="lost the data"):
            write(tmp_path / "c", store, 8)
        assert os.listdir(tmp_path) == ["c"]
        assert read_checkpoint(tmp_path / "c").position == {"n": 7}


WRITERS = """
import json, os, sys, time
from pathlib import Path
import numpy as np
from ctr.checkpoint import draft_checkpoint
from ps import Token
from ps.wire import parse_redis_url
from ps.redis import RedisStore

class Slow:
    def __init__(self, store, say):
        self._store, self._say = store, say

    def __getattr__(self, name):
        return getattr(self._store, name)

    def dump(self, partition):
        if partition in (0, 9):
            self._say(f"reading {n}.{partition}")
        return self._store.dump(partition)

for line in sys.stdin:
    folder, url, moment = json.loads(line)
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        print("ended", flush=True)
        continue

    def say(what):
        print(what, flush=True)
        if what == moment:
            time.sleep(60)

    say(os.getpid())
    store = RedisStore(parse_redis_url(url), bits=12, width=2)
    slots = np.arange(1 << 12, dtype=np.uint32)
    for n in range(100_000):
        store.push(slots, np.ones((slots.size, 2), np.float32), Token("job", 0, n))
        position, reports = {"n": n}, {"r": b"r" * n}
        with draft_checkpoint(
            Path(folder), Slow(store, say), job={}, position=position, reports=reports
        ) as draft:
            say(f"drafted {n}")
            draft.commit()
        say(f"committed {n}")
"""

Writer = Callable[..., AbstractContextManager[Callable[[str], None]]]


@pytest.fixture(scope="module")
def writer() -> Iterator[Writer]:
    """Starts processes that push and write a checkpoint, chunk after chunk; killed with -9 at the end.

    `with writer(folder, url, moment)` gives a function that waits until the process has said something. At
    `moment` it stands still.
    """
    words = [sys.executable, "-c", WRITERS]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as forks:
        assert forks.stdin is not None
        assert forks.stdout is not None
        told, said = forks.stdin, forks.stdout

        @contextmanager
        def write_until_killed(
            folder: Path, url: str, moment: str = "never"
        ) -> Iterator[Callable[[str], None]]:
            print(
                json.dumps([str(folder), f"{url}?model=killed-{next(_names)}", moment]), file=told, flush=True
            )
            process = int(said.readline())

            def wait(what: str) -> None:
                for line in said:
                    if line.strip() == what:
                        return
                    assert line.strip() != "ended", f"the writer ended before it said {what!r}"
                raise AssertionError("the process that forks writers has ended")

            try:
                yield wait
            finally:
                os.kill(process, signal.SIGKILL)
                wait("ended")

        try:
            yield write_until_killed
        finally:
            forks.kill()


def is_whole(folder: Path, url: str) -> int:
    """Check that state, records and reports of a checkpoint are those of its position; return that."""
    checkpoint = read_checkpoint(folder)
    n = int(checkpoint.position["n"])
    assert checkpoint.reports == {"r": b"r" * n}
    store = restored(checkpoint, url)
    assert (store.applied("job", 0) == n).all()
    assert (store.pull(np.arange(1 << 12, dtype=np.uint32)) == n + 1).all()
    store.drop()
    return n


class TestKilledWriter:
    """Whenever it is killed, the previous checkpoint loads."""

    @pytest.mark.parametrize("moment", ["reading 1.0", "reading 1.9", "drafted 1"])
    def test_before_the_commit(self, writer: Writer, tmp_path: Path, redis_url: str, moment: str) -> None:
        folder = tmp_path / "c"
        with writer(folder, redis_url, moment) as wait:
            wait(moment)
        assert is_whole(folder, redis_url) == 0
        assert len(drafts(folder)) == 1
        write(folder, opened(redis_url), 5)
        assert os.listdir(tmp_path) == ["c"]
        assert read_checkpoint(folder).position == {"n": 5}

    def test_its_first_checkpoint(self, writer: Writer, tmp_path: Path, redis_url: str) -> None:
        with writer(tmp_path / "c", redis_url, "drafted 0") as wait:
            wait("drafted 0")
        with pytest.raises(ModelError, match="there is no checkpoint; start without"):
            read_checkpoint(tmp_path / "c")
        write(tmp_path / "c", opened(redis_url))
        assert os.listdir(tmp_path) == ["c"]

    def test_at_any_moment(self, writer: Writer, tmp_path: Path, redis_url: str) -> None:
        rng = random.Random(5)
        folder = tmp_path / "c"
        for _ in range(5):
            with writer(folder, redis_url) as wait:
                wait("committed 2")
                time.sleep(rng.uniform(0, 0.1))
            assert is_whole(folder, redis_url) >= 2
        write(folder, opened(redis_url))
        assert os.listdir(tmp_path) == ["c"]

    def test_a_live_one_keeps_its_draft(self, writer: Writer, tmp_path: Path, redis_url: str) -> None:
        """Even if two jobs write to one place: each checkpoint is whole, the last one stays."""
        store = opened(redis_url)
        with (
            draft_checkpoint(tmp_path / "c", store, job={}, position={"n": 1}, reports={}) as draft,
            writer(tmp_path / "c", redis_url, "drafted 3") as wait,
        ):
            wait("drafted 3")
            write(tmp_path / "c", store, 2)
            assert len(drafts(tmp_path / "c")) == 2
            draft.commit()
            assert len(drafts(tmp_path / "c")) == 1
        assert read_checkpoint(tmp_path / "c").position == {"n": 1}

    def test_only_drafts_of_this_checkpoint_are_removed(self, tmp_path: Path, redis_url: str) -> None:
        kept = [".d.01234567.partial", ".c.x.01234567.partial", ".c.0123456.partial"]
        for name in [*kept, ".c.01234567.partial"]:
            (tmp_path / name).mkdir()
            (tmp_path / name / "partitions.arrow").write_bytes(b"")
        (tmp_path / ".c.11111111.partial").mkdir()
        (tmp_path / ".c.33333333.partial").write_bytes(b"a file")
        write(tmp_path / "c", opened(redis_url))
        assert set(os.listdir(tmp_path)) == {*kept, "c", ".c.33333333.partial"}

    def test_where_names_cannot_be_swapped_at_once(self, tmp_path: Path, redis_url: str) -> None:
        """Killed in between, the old checkpoint stands aside and the new one is not in its place yet."""
        store = opened(redis_url)
        write(tmp_path / "c", store, 1)
        (tmp_path / "c").rename(tmp_path / ".c.01234567.replaced")
        with pytest.raises(ModelError, match=r"but \.c\.01234567\.replaced beside it is one: rename"):
            read_checkpoint(tmp_path / "c")
        assert read_checkpoint(tmp_path / ".c.01234567.replaced").position == {"n": 1}
        write(tmp_path / "c", store, 2)
        assert os.listdir(tmp_path) == ["c"]


def edited(**changes: Any) -> Callable[[Path], None]:
    """Change what the manifest says."""

    def edit(folder: Path) -> None:
        path = folder / "manifest.json"
        path.write_text(json.dumps(json.loads(path.read_bytes()) | changes))

    return edit


def cut_short(folder: Path) -> None:
    os.truncate(folder / "partitions.arrow", (folder / "partitions.arrow").stat().st_size - 1)


def flipped(name: str) -> Callable[[Path], None]:
    def flip(folder: Path) -> None:
        raw = bytearray((folder / name).read_bytes())
        raw[len(raw) // 2] ^= 1
        (folder / name).write_bytes(raw)

    return flip


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda c: (c / "manifest.json").unlink(), "has no manifest.json, so it is no checkpoint"),
        (lambda c: os.truncate(c / "manifest.json", 40), "manifest.json is torn"),
        (lambda c: (c / "manifest.json").write_text("[]"), "manifest.json is torn"),
        (edited(format="ctr model"), "is a ctr model, not a checkpoint"),
        (edited(format_version=1), "has format version 1, this program reads version 4"),
        (edited(files={}), r"manifest.json is damaged at files.partitions.arrow \(Field required"),
        (edited(store={"bits": "12"}), r"manifest.json is damaged at store.bits"),
        (edited(more=1), "manifest.json is damaged at more"),
        (lambda c: (c / "partitions.arrow").unlink(), "partitions.arrow: cannot be read"),
        (cut_short, r"partitions.arrow: is torn \(\d+ bytes instead of \d+\)"),
        (flipped("partitions.arrow"), r"partitions.arrow: is not the file .* \(SHA-256 \w{12} instead of"),
        (flipped("reports.arrow"), "reports.arrow: is not the file"),
    ],
)
def test_a_damaged_checkpoint(
    tmp_path: Path, redis_url: str, damage: Callable[[Path], None], told: str
) -> None:
    store = opened(redis_url)
    train(store, 0)
    write(tmp_path / "c", store)
    damage(tmp_path / "c")
    with pytest.raises(ModelError, match=told):
        read_checkpoint(tmp_path / "c")
    if "ctr model" not in told:
        write(tmp_path / "c", store, 1)  # and the next one may replace it
        assert read_checkpoint(tmp_path / "c").position == {"n": 1}


def test_what_is_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    for name, told in (("none", "there is no checkpoint"), ("empty", "has no manifest"), ("file", "has no")):
        with pytest.raises(ModelError, match=told):
            read_checkpoint(tmp_path / name)


def test_a_place_for_checkpoints(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for good in ("empty", "new/folder"):
        require_checkpoint_or_nothing(tmp_path / good)
    (tmp_path / "file").write_text("x")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "manifest.json").write_text('{"format": "ctr hashed data set"}')
    for place, told in (
        (tmp_path / "file", "there is a file of that name"),
        (tmp_path / "mine", "holds thesis.tex, which is no part of a checkpoint"),
        (tmp_path / "data", "holds a ctr hashed data set, not a checkpoint"),
        (Path("/"), "is a mount point"),
    ):
        with pytest.raises(ModelError, match=told):
            require_checkpoint_or_nothing(place)
    with pytest.raises(DataError, match="cannot be written to"):
        require_checkpoint_or_nothing(tmp_path / "file" / "c")
    assert (tmp_path / "mine" / "thesis.tex").read_text() == "x"
