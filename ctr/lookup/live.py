"""`LiveWeights`: the weights of a model that is being trained, as its pushes arrive."""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from time import monotonic, time
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ctr.errors import CtrError
from ctr.features import Slots
from ctr.lookup.lookup import DENSE_SLOTS
from ctr.lookup.table import HEADER, SharedMemory, WeightTable
from ctr.optimizers import Float32, Optimizer
from ctr.ps import Feed, PartitionChange, RedisStore

logger = logging.getLogger(__name__)

POLL_S = 0.1
"""Pause before reading the feed again when it has no changes."""
_AWAY_S = 1.0
"""Pause between attempts while the store cannot be read."""
_KEPT = 1
"""Other models in the folder that processes share: some may still begin to serve it."""
_LEADER_S = 0.2
"""Pause between checks whether the process that reads for all has ended."""
_AT_A_TIME = 20_000
"""Slots whose weights are computed together, so that they stay in the processor's cache."""


class LiveWeights:
    """A `WeightLookup` that follows the feed of a model, on a thread of its own.

    In addition to the weights, it holds packed accumulators: 8 bytes for each slot that has a state. A single
    call of `weights_at` sees all slots of a partition at one moment.

    Among processes that share a folder, one follows the feed for all: the one that holds a lock on a file
    there. When it ends, for whatever reason, another takes over and reads everything again.
    """

    is_live: ClassVar[bool] = True

    def __init__(
        self, open_store: Callable[[], RedisStore], bits: int, optimizer: Optimizer, most: int = DENSE_SLOTS
    ) -> None:
        """`open_store` is called by the process that follows; `most`: the most slots of a dense array."""
        self._open_store, self._optimizer = open_store, optimizer
        self._size = 1 << bits, most
        self._folder: Path | None = None
        self._lock: int | None = None
        self._table = WeightTable(0)
        self._store: RedisStore
        self._closing = Event()
        self.untrained_since: float | None = None
        """The time, by this machine's monotonic clock, since when nobody is there to train the model."""
        self.changes = 0
        """The number of changes of slots by this process so far."""
        self.on_served: Callable[[float], object] = lambda _: None
        """Called for each change with the seconds since its first push arrived at the store."""

    def share(self, folder: Path) -> None:
        """Share the weights with other processes, if the folder's disk has space; called before `start`."""
        self._folder = folder

    @property
    def age_s(self) -> float:
        """The age of the weights in seconds: since then, pushes may be missing, or nobody trained."""
        current_at, untrained_since = self._table.current_at, self.untrained_since
        return monotonic() - (current_at if untrained_since is None else min(current_at, untrained_since))

    @property
    def failure(self) -> str | None:
        """Why the weights become old; None if they do not."""
        silent = "nobody trains them: the job's coordinator and workers are dead"
        return self._table.failure or (None if self.untrained_since is None else silent)

    @property
    def follows(self) -> bool:
        """True if this process reads the feed."""
        return self._lock is not None or self._folder is None

    def weights_at(self, slots: Slots) -> Float32:
        """The weights float32[u] of slots[u], in any order; 0 for slots without a weight."""
        return self._table.read(slots)

    def start(self) -> None:
        """Read the whole model, then follow the feed until `close`. Raises StoreError."""
        self._table = self._new_table()
        feed = None
        while not (self._table.is_whole or self._closing.is_set()):
            if self._lead():
                try:
                    feed = self._read_all()
                except OSError:  # a larger index found no space
                    self._resign()
                    self._table = self._own_table()
                except BaseException:
                    self._resign()
                    raise
            else:
                self._closing.wait(_LEADER_S / 10)
        Thread(target=self._follow, args=(feed,), name="feed", daemon=True).start()

    def close(self) -> None:
        """Stop reading soon; the weights stay. It does not wait for an unreachable store."""
        self._closing.set()

    def _new_table(self) -> WeightTable:
        if self._folder is not None:
            with suppress(OSError):
                self._folder.mkdir(parents=True, exist_ok=True)
                self._remove_older(self._folder)
                return WeightTable(*self._size, SharedMemory(self._folder))
        return self._own_table()

    def _own_table(self) -> WeightTable:
        """A table that this process does not share, for want of a folder or of space in it."""
        if self._folder is not None:
            logger.error("%s has no space for shared weights: each process keeps its own", self._folder)
        self._folder = None
        return WeightTable(*self._size)

    @staticmethod
    def _remove_older(folder: Path) -> None:
        """Remove the memory of earlier models; who still serves one has it mapped."""
        headers = sorted(folder.parent.glob(f"*/{HEADER}"), key=lambda header: header.stat().st_mtime_ns)
        for header in headers[:-_KEPT]:
            if header.parent != folder:
                shutil.rmtree(header.parent, ignore_errors=True)

    def _lead(self) -> bool:
        """Become the process that follows if there is none; returns True if this process follows."""
        if self.follows:
            return True
        assert self._folder is not None
        handle = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
            return False
        self._lock = handle
        return True

    def _resign(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _read_all(self) -> Feed:
        """Read the whole model into the table; returns the feed at the position to continue from."""
        self._table.take_over()  # first, as readers wait for what a process that died was writing
        self._store = self._open_store()
        try:
            feed = Feed(self._store)
            while not feed.is_current:
                self._read(feed)
        except BaseException:
            self._store.close()
            raise
        return feed

    def _follow(self, feed: Feed | None) -> None:
        """Until `close`, read the feed, or wait until it is this process's turn to."""
        try:
            while not self._closing.is_set():
                try:
                    if feed is None and self._lead():
                        feed = self._read_all()
                    elif feed is not None:
                        self._read(feed)
                except (CtrError, OSError) as error:
                    if isinstance(error, OSError) and feed is not None:
                        # A larger index found no space, so changes that were read are lost: read all again.
                        self._store.close()
                        feed = None
                    if self._table.failure is None:
                        logger.error("the feed cannot be read, the served weights stay: %s", error)
                    self._table.note_failure(str(error))
                    self._closing.wait(_AWAY_S)
                    continue
                if feed is None:
                    self._closing.wait(_LEADER_S)
                elif feed.is_current:
                    self._closing.wait(POLL_S)
        finally:
            if feed is not None:
                self._store.close()
            self._resign()

    def _read(self, feed: Feed) -> None:
        started = monotonic()
        for change in feed.read():
            self._apply(change)
        if feed.is_current:
            self._table.note_current(started)

    def _apply(self, change: PartitionChange) -> None:
        slots: NDArray[Any] = change.slots
        increments = change.increments
        if change.whole is not None:
            size = change.whole.size
            first = change.partition * size
            before = self._table.packed_of(first, size)
            # All non-zero ones: an earlier leader may have died before it had written their weights.
            offsets = np.flatnonzero((before != 0) | (change.whole != 0))
            increments, slots = (change.whole - before)[offsets], offsets + first
        self.changes += int(np.count_nonzero(increments))
        places = self._table.add(slots, increments)
        weights = [
            self._optimizer.weights(self._store.unpacked(self._table.packed_at(places[k : k + _AT_A_TIME])))
            for k in range(0, places.size, _AT_A_TIME)
        ]
        if weights:
            self._table.write(places, np.concatenate(weights))
        if change.whole is None:
            self.on_served(time() - change.pushed_ms / 1_000)
