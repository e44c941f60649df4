"""Proof that a store holds every push of a ledger once.

Pushes are exact integer additions modulo 2**64, and each partition records, in the same transaction, the last
chunk that it applied of each data shard. So with these watermarks (`applied`), and two sums per push from
the ledger, each partition has to hold

    sums(partition) == sums(partition before) + sum of the sums of all pushes up to `applied`

One of the two sums multiplies every increment by a hash of its slot: a partition that passes holds, but for a
chance of about 2**-64, the right number in every slot.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from math import prod

import numpy as np
from numpy.typing import NDArray

from ctr.ps import PartitionDump, Partitions
from ctr.ps.partitions import as_slots
from tests.drill.ledger import Push, Share, UInt64, sums_of

_MOST_SUMS = 1 << 20  # that are compared with as many others
_MOST_PROBLEMS = 20

Token = tuple[int, int]
"""A data shard and a chunk of it."""


@dataclass(frozen=True, slots=True)
class StoreSums:
    """What the partitions of a store hold, in sums, and what they say that they have applied."""

    totals: UInt64
    """uint64[partitions], as `Share.total`."""
    checks: UInt64
    """uint64[partitions], as `Share.check`."""
    applied: Sequence[Mapping[int, int]]
    """By partition: the last chunk applied of each data shard."""

    @classmethod
    def of(cls, dumps: Iterable[PartitionDump], partitions: Partitions, job: str) -> StoreSums:
        """The sums of a job; partitions without a dump hold nothing."""
        totals, checks = (np.zeros(partitions.count, np.uint64) for _ in range(2))
        applied: list[Mapping[int, int]] = [{} for _ in range(partitions.count)]
        for dump in dumps:
            packed = np.frombuffer(dump.state, ">i8").astype(np.int64)
            used = np.flatnonzero(packed)
            if used.size:
                slots = as_slots(used + (dump.partition << partitions.shift), partitions.bits)
                sums = sums_of(slots, packed[used], np.array([0, used.size]))
                totals[dump.partition], checks[dump.partition] = (each[0] for each in sums)
            applied[dump.partition] = {
                int(name.removeprefix(f"{job}:")): chunk
                for name, chunk in dump.applied.items()
                if name.startswith(f"{job}:")
            }
        return cls(totals, checks, applied)

    @classmethod
    def empty(cls, partitions: int) -> StoreSums:
        """Those of a new store."""
        return cls(np.zeros(partitions, np.uint64), np.zeros(partitions, np.uint64), [{}] * partitions)

    def state(self) -> bytes:
        """Equal for sums whose slots all hold the same numbers."""
        return self.totals.tobytes() + self.checks.tobytes()


@dataclass(slots=True)
class Proof:
    """What was compared, and what was wrong with it."""

    partitions: int = 0
    """Whose sums were compared."""
    chunks: int = 0
    """Of the ledger."""
    pushes: int = 0
    """In the ledger: a chunk is pushed again by whoever takes a dead worker's data shard over."""
    acknowledged: int = 0
    """Of those."""
    sent_again: int = 0
    """Partitions' shares of pushes that were sent again after they had been acknowledged."""
    told_apart: int = 0
    """Shares that could have been those of either of two workers; the sums told which."""
    problems: list[str] = field(default_factory=list)
    """Empty when everything is as it should be; at most the first few."""

    @property
    def holds(self) -> bool:
        """Whether nothing was lost and nothing doubled."""
        return not self.problems

    def object(self, problem: str) -> None:
        """Note that something is wrong."""
        if len(self.problems) < _MOST_PROBLEMS:
            self.problems.append(problem)


def prove(
    pushes: Sequence[Push],
    end: StoreSums,
    *,
    start: StoreSums | None = None,
    owed: Iterable[Token] = (),
    acknowledged: bool = True,
    earlier: Sequence[Push] = (),
) -> Proof:
    """Compare a store's sums with the pushes that brought it there from `start` (default: nothing).

    With `acknowledged`, every push that was acknowledged must be in it: leave that out for sums that are
    older than the end of the ledger. `owed` are chunks that must be in it in any case; `earlier` are pushes
    before `start`, which tell which partitions such a chunk touches.
    """
    partitions = end.totals.size
    start = start or StoreSums.empty(partitions)
    proof = Proof(partitions=partitions, pushes=len(pushes))
    proof.chunks = len({(push.shard, push.chunk) for push in pushes})
    proof.acknowledged = sum(push.acknowledged is not None for push in pushes)
    proof.sent_again = sum(map(len, sent_again(pushes).values()))
    if acknowledged:
        _require_acknowledged(proof, pushes, start, end)
    _require_owed(proof, [*earlier, *pushes], end, owed)
    contents = _contents(pushes, partitions)
    for p in range(partitions):
        _compare(proof, p, contents[p], start, end)
    return proof


def sent_again(pushes: Iterable[Push]) -> dict[Push, set[int]]:
    """The pushes with partitions that had acknowledged the same push of this worker before, and those."""
    before: dict[tuple[str, int, int], set[int]] = {}
    repeated = {}
    for push in sorted(pushes, key=lambda each: each.sent):
        arrived = before.setdefault((push.worker, push.shard, push.chunk), set())
        if again := arrived & push.shares.keys():
            repeated[push] = again
        arrived |= push.arrived
    return repeated


def _require_acknowledged(proof: Proof, pushes: Sequence[Push], start: StoreSums, end: StoreSums) -> None:
    lost: dict[Token, list[int]] = {}
    for push in pushes:
        for p in push.arrived:
            if end.applied[p].get(push.shard, -1) < push.chunk:
                lost.setdefault((push.shard, push.chunk), []).append(p)
    for (shard, chunk), places in lost.items():
        proof.object(
            f"LOST: chunk {chunk} of data shard {shard} was acknowledged, and is not in {_named(places)}"
        )


def _require_owed(proof: Proof, pushes: Iterable[Push], end: StoreSums, owed: Iterable[Token]) -> None:
    touched: dict[Token, set[int]] = {}
    for push in pushes:
        touched.setdefault((push.shard, push.chunk), set()).update(push.shares)
    for shard, chunk in owed:
        places = touched.get((shard, chunk))
        if places is None:
            proof.object(f"LOST: chunk {chunk} of data shard {shard} was never pushed")
        elif missing := [p for p in places if end.applied[p].get(shard, -1) < chunk]:
            proof.object(f"LOST: chunk {chunk} of data shard {shard} is not in {_named(missing)}")


def _contents(pushes: Sequence[Push], partitions: int) -> list[dict[Token, list[Share]]]:
    """By partition and token, what attempts would have added: the one that arrived last comes first."""
    contents: list[dict[Token, list[Share]]] = [{} for _ in range(partitions)]
    for push in sorted(pushes, key=lambda each: each.sent):
        for p, share in push.shares.items():
            shares = contents[p].setdefault((push.shard, push.chunk), [])
            if p in push.arrived and share in shares:
                shares.remove(share)
            if share not in shares:
                shares.insert(0 if p in push.arrived else len(shares), share)
    return contents


def _compare(
    proof: Proof, p: int, contents: Mapping[Token, Sequence[Share]], start: StoreSums, end: StoreSums
) -> None:
    """Compare the sums of one partition."""
    applied = {
        (shard, chunk): shares
        for (shard, chunk), shares in contents.items()
        if start.applied[p].get(shard, -1) < chunk <= end.applied[p].get(shard, -1)
    }
    for shard, chunk in end.applied[p].items():
        if (shard, chunk) not in applied and start.applied[p].get(shard, -1) != chunk:
            proof.object(
                f"UNKNOWN: partition {p} says that it applied chunk {chunk} of data shard {shard}, which no "
                "worker sent"
            )
    certain = [shares[0] for shares in applied.values() if len(shares) == 1]
    wanted = Share(
        _wrapped(int(end.totals[p]) - int(start.totals[p]) - sum(share.total for share in certain)),
        _wrapped(int(end.checks[p]) - int(start.checks[p]) - sum(share.check for share in certain)),
    )
    choices = [shares for shares in applied.values() if len(shares) > 1]
    proof.told_apart += len(choices)
    explained = _explained(wanted, choices)
    if explained is None:
        proof.object(
            f"UNDECIDED: partition {p} has {len(choices)} chunks that two workers pushed, too many to tell "
            "which of them counted"
        )
    elif not explained:
        proof.object(_difference(p, wanted, applied, choices))


def _explained(wanted: Share, choices: Sequence[Sequence[Share]]) -> bool | None:
    """Whether one share of each choice adds up to `wanted`; None when that is unknown.

    Where there are too many ways to try, as many chunks were trained again after a server had come back with
    an old snapshot, it is assumed that all but two in either half are those that arrived last.
    """
    halves = choices[::2], choices[1::2]
    every = all(prod(map(len, half)) <= _MOST_SUMS for half in halves)
    one, other = ((_all_sums if every else _likely_sums)(half) for half in halves)
    order = np.argsort(one[1])
    totals, checks = one[0][order], one[1][order]
    missing = np.uint64(wanted.check) - other[1]
    at = np.minimum(np.searchsorted(checks, missing), checks.size - 1)
    equal = (checks[at] == missing) & (totals[at] + other[0] == np.uint64(wanted.total))
    return bool(equal.any()) or (False if every else None)


def _all_sums(choices: Sequence[Sequence[Share]]) -> tuple[UInt64, UInt64]:
    """Totals and checks of every way to take one share of each choice."""
    totals, checks = np.zeros(1, np.uint64), np.zeros(1, np.uint64)
    for shares in choices:
        totals = _each_with_each(totals, [share.total for share in shares])
        checks = _each_with_each(checks, [share.check for share in shares])
    return totals, checks


def _likely_sums(choices: Sequence[Sequence[Share]]) -> tuple[UInt64, UInt64]:
    """The same of the ways that take the first share of all choices but at most two."""
    others = [(number, share) for number, shares in enumerate(choices) for share in shares[1:]]
    differences = [
        (number, share.total - choices[number][0].total, share.check - choices[number][0].check)
        for number, share in others
    ]
    first = (sum(shares[0].total for shares in choices), sum(shares[0].check for shares in choices))
    sums = [first, *((first[0] + total, first[1] + check) for _, total, check in differences)]
    sums += [
        (first[0] + one[1] + two[1], first[1] + one[2] + two[2])
        for one, two in combinations(differences, 2)
        if one[0] != two[0]
    ]
    totals, checks = np.array([[_wrapped(each) for each in pair] for pair in sums], np.uint64).T
    return totals, checks


def _each_with_each(sums: UInt64, more: Sequence[int]) -> UInt64:
    added: NDArray[np.uint64] = np.array(more, np.uint64)[:, None] + sums[None, :]
    return added.ravel()


def _difference(
    p: int, wanted: Share, applied: Mapping[Token, Sequence[Share]], choices: Sequence[Sequence[Share]]
) -> str:
    """What is wrong with the sums of a partition, as far as one push explains it."""
    for (shard, chunk), shares in applied.items():
        for share in shares:
            for sign, kind, what in ((1, "DOUBLED", "is in it twice"), (-1, "LOST", "is not in it")):
                rest = Share(
                    _wrapped(wanted.total - sign * share.total), _wrapped(wanted.check - sign * share.check)
                )
                if _explained(rest, choices):
                    return f"{kind}: partition {p}: chunk {chunk} of data shard {shard} {what}"
    off = _signed(wanted.total)
    what = f"the sum of its slots is off by {off}" if off else "slots are wrong, though their sum is right"
    return f"WRONG: partition {p}: {what}; no single push of the ledger explains it"


def _wrapped(number: int) -> int:
    return number % (1 << 64)


def _signed(number: int) -> int:
    return number - (1 << 64) if number >= 1 << 63 else number


def _named(places: Sequence[int]) -> str:
    if len(places) > 3:
        return f"{len(places)} partitions ({min(places)} ... {max(places)})"
    return "partition " + ", ".join(map(str, sorted(places)))
