"""Whoever writes checkpoints is killed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import numpy as np
import pytest

from ctr.checkpoint.checkpoint import read_checkpoint
from ctr.checkpoint.writer import draft_checkpoint
from ctr.errors import ModelError
from tests.ctr.checkpoint.checkpoints import drafts, model_numbers, opened, restored, write
from tests.ps.redis_servers import needs_redis

pytestmark = needs_redis


WRITERS = """
import json, os, sys, time
from pathlib import Path
import numpy as np
from ctr.checkpoint import draft_checkpoint
from ctr.ps import Token
from ctr.ps.wire import parse_redis_url
from ctr.ps.redis import RedisStore

class Slow:
    def __init__(self, store, say):
        self._store, self._say = store, say

    def __getattr__(self, name):
        return getattr(self._store, name)

    @property
    def dumps(self):
        return self

    def take(self, partition):
        if partition in (0, 9):
            self._say(f"reading {n}.{partition}")
        return self._store.dumps.take(partition)

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
        ) as commit:
            say(f"drafted {n}")
            commit()
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
                json.dumps([str(folder), f"{url}?model=killed-{next(model_numbers)}", moment]),
                file=told,
                flush=True,
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
    n = int(checkpoint.manifest.position["n"])
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
        assert read_checkpoint(folder).manifest.position == {"n": 5}

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
            draft_checkpoint(tmp_path / "c", store, job={}, position={"n": 1}, reports={}) as commit,
            writer(tmp_path / "c", redis_url, "drafted 3") as wait,
        ):
            wait("drafted 3")
            write(tmp_path / "c", store, 2)
            assert len(drafts(tmp_path / "c")) == 2
            commit()
            assert len(drafts(tmp_path / "c")) == 1
        assert read_checkpoint(tmp_path / "c").manifest.position == {"n": 1}

    def test_only_drafts_of_this_checkpoint_are_removed(self, tmp_path: Path, redis_url: str) -> None:
        kept = [".d.01234567.partial", ".c.x.01234567.partial", ".c.0123456.partial"]
        for name in [*kept, ".c.01234567.partial"]:
            (tmp_path / name).mkdir()
            (tmp_path / name / "partitions-00.arrow").write_bytes(b"")
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
        assert read_checkpoint(tmp_path / ".c.01234567.replaced").manifest.position == {"n": 1}
        write(tmp_path / "c", store, 2)
        assert os.listdir(tmp_path) == ["c"]
