"""The ledger of a job: every push that was sent to the store, and every one that the store acknowledged.

Workers write one when their environment has the variables of `ledger_variables`. What an increment adds is
exact modulo 2**64, so two sums per push and partition are enough to prove afterwards that the store holds
each push once (see `tests/drill/proof.py`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from ctr.errors import DataError
from ctr.features import Slots
from ctr.ps import PackedPush, RedisStore, SendPacked
from ctr.workers.worker import PUSH_WRAPPER

_FOLDER = "CTR_LEDGER"
_PACE_S = "CTR_LEDGER_PACE_S"

UInt64 = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Share:
    """What a push adds to one partition."""

    total: int
    """The sum of all increments, modulo 2**64."""
    check: int
    """The sum of all increments, each multiplied by a hash of its slot, modulo 2**64: it shows also errors
    within the partition whose plain sum is zero."""


@dataclass(eq=False, slots=True)
class Push:
    """One time that a worker sent a push."""

    worker: str
    shard: int
    chunk: int
    sent: float
    """When, by the machine's monotonic clock, in seconds."""
    shares: Mapping[int, Share]
    """What it adds, by partition."""
    acknowledged: float | None = None
    """When the store had acknowledged it; None when it has not."""
    arrived: frozenset[int] = frozenset()
    """The partitions that acknowledged it: they have it, or had the same chunk of another attempt."""


def went_on(pushes: Sequence[Push], since: float, partition: int | None = None) -> float | None:
    """When the first push sent after `since` was acknowledged, by this or any partition; None: never."""
    return min(
        (
            push.acknowledged
            for push in pushes
            if push.acknowledged is not None
            and push.sent > since
            and (partition is None or partition in push.arrived)
        ),
        default=None,
    )


def sums_of(slots: Slots, packed: NDArray[np.int64], cuts: NDArray[np.int64]) -> tuple[UInt64, UInt64]:
    """Totals and checks, uint64[k], of `packed[cuts[i]:cuts[i + 1]]`, none of which may be empty."""
    if cuts.size < 2:
        return np.empty(0, np.uint64), np.empty(0, np.uint64)
    units = packed.view(np.uint64)
    starts = cuts[:-1]
    return np.add.reduceat(units, starts), np.add.reduceat(units * _hashed(slots), starts)


def _hashed(slots: Slots) -> UInt64:
    """Odd random numbers: SplitMix64 (Steele, Lea and Flood, OOPSLA 2014)."""
    bits = (slots.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (bits ^ (bits >> np.uint64(31))) | np.uint64(1)


class LedgerWriter:
    """Wraps `RedisStore.push_packed`, and writes down what it is asked to push before and after it does.

    A line is in the file before a push is sent, so a worker may be killed at any moment. A push takes at
    least `pace_s`.
    """

    def __init__(self, store: RedisStore, path: Path, pace_s: float = 0.0) -> None:
        """Lines are added to `path`. Raises DataError when that cannot be done."""
        self._store = store
        self._path = path
        self._pace_s = pace_s
        self._numbers = count()
        self._next = 0.0
        self._write({})

    def __call__(self, push: PackedPush, only: NDArray[np.bool_] | None) -> list[int]:
        assert push.token is not None
        sleep(max(self._next - monotonic(), 0.0))
        self._next = monotonic() + self._pace_s
        totals, checks = np.zeros((2, self._store.partitions.count), np.uint64)
        added = [(push.slots, push.increments)]
        if push.logged is not None:
            added.append((push.logged.slots, push.logged.increments))
        anywhere = np.zeros(totals.size, np.bool_)
        for some_slots, some_increments in added:
            cuts = self._store.partitions.cuts(some_slots)
            touched = np.diff(cuts) > 0
            sums = sums_of(some_slots, some_increments, np.append(cuts[:-1][touched], some_slots.size))
            totals[touched] += sums[0]
            checks[touched] += sums[1]
            anywhere |= touched
        where = np.flatnonzero(anywhere if only is None else only)
        shares = list(zip(where.tolist(), totals[where].tolist(), checks[where].tolist(), strict=True))
        number = next(self._numbers)
        self._write(
            {
                "push": number,
                "at": monotonic(),
                "shard": push.token.shard,
                "chunk": push.token.number,
                "adds": shares,
            }
        )
        behind = self._store.push_packed(push, only)
        arrived = [p for p, *_ in shares if p not in set(behind)]
        self._write({"done": number, "at": monotonic(), "arrived": arrived})
        return behind

    def _write(self, line: Mapping[str, Any]) -> None:
        try:
            with self._path.open("ab", buffering=0) as file:
                file.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE) if line else b"")
        except OSError as error:
            raise DataError(f"{self._path}: the ledger cannot be written ({error}).") from error


def in_ledger(store: RedisStore, worker: str) -> SendPacked:
    """The store's `push_packed`, wrapped in a `LedgerWriter` as the environment says."""
    folder, pace_s = os.environ[_FOLDER], float(os.environ[_PACE_S])
    return LedgerWriter(store, Path(folder, f"{worker}.jsonl"), pace_s)


def ledger_variables(folder: Path, pace_s: float = 0.0) -> dict[str, str]:
    """Variables with which workers write ledgers into `folder`, where a push takes at least `pace_s`."""
    return {
        PUSH_WRAPPER: f"{in_ledger.__module__}:{in_ledger.__name__}",
        _FOLDER: str(folder.resolve()),
        _PACE_S: str(pace_s),
    }


class Ledger:
    """What all workers have written into a folder; it may be read while they still write."""

    def __init__(self, folder: Path) -> None:
        self.pushes: list[Push] = []
        """As of the last `read`, worker by worker in the order in which each sent them."""
        self.folder = folder
        self._read_to: dict[Path, int] = {}
        self._by_number: dict[tuple[Path, int], Push] = {}

    def read(self) -> list[Push]:
        """Read on to the end; returns `pushes`. A line that was cut off, as its worker died, is skipped.

        Raises DataError for a line that no worker wrote.
        """
        for path in sorted(self.folder.glob("*.jsonl")):
            with path.open("rb") as file:
                file.seek(self._read_to.get(path, 0))
                *lines, cut_off = file.read().split(b"\n")
                self._read_to[path] = file.tell() - len(cut_off)
            try:
                for line in map(orjson.loads, lines):
                    self._add(path, line)
            except (ValueError, KeyError, TypeError) as error:
                raise DataError(f"{path}: is no ledger ({error!r}).") from error
        return self.pushes

    def _add(self, path: Path, line: Mapping[str, Any]) -> None:
        if "done" in line:
            push = self._by_number[path, line["done"]]
            push.acknowledged = line["at"]
            push.arrived = frozenset(line["arrived"])
            return
        push = Push(
            worker=path.stem,
            shard=line["shard"],
            chunk=line["chunk"],
            sent=line["at"],
            shares={p: Share(total, check) for p, total, check in line["adds"]},
        )
        self._by_number[path, line["push"]] = push
        self.pushes.append(push)
