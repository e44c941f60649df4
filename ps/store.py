"""The contract between training and storage: `Store`, and the sessions of workers with it.

A store keeps the optimizer state of slots. Code that handles a whole model uses `Store`. A worker begins a
`Session` for each data shard that it trains, and calls its `pull`, `wait`, `push` and `send`. A BSP worker,
whose updates are prepared before they are pushed, has a `RankSession` for each of its ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Protocol

import numpy as np

from ctr.errors import StoreError, named
from ctr.ps.kernels import ascending, finite
from ctr.ps.partitions import Float32, Int64, Partitions, Slots, slot_dtype

LOST = (
    "a server has lost pushes that it had acknowledged, and they are not kept here any more: a replica that "
    "took over was too far behind, or a server came back with an old snapshot."
)
"""The reason why a job cannot continue."""


@dataclass(frozen=True, slots=True)
class Token:
    """Names one push, so that it is applied at most once however often it is sent.

    Raises ValueError for an empty job and for numbers outside `[0, 2**63)`.
    """

    job: str
    """The job that pushes; two jobs never share a watermark."""
    shard: int
    """The data shard that was trained on."""
    number: int
    """The push's number within the data shard; ascending."""
    attempt: int = 0
    """The number of the attempt at the data shard, see `Sessions.begin`; 0 if attempts do not matter."""

    def __post_init__(self) -> None:
        if not self.job or not (0 <= self.shard < 1 << 63 and 0 <= self.number < 1 << 63):
            raise ValueError(f"{self}: name the job, and count shards and pushes from 0")


class SupersededError(StoreError):
    """A push came too late: another attempt at its data shard has begun, and will add the same."""

    def __init__(self, url: object, token: Token) -> None:
        super().__init__(f"{url}: data shard {token.shard} of the job {token.job!r} is another worker's now.")


class GapError(StoreError):
    """Partitions refused a push because they lack the previous one."""

    def __init__(self, url: object, token: Token, partitions: Sequence[int]) -> None:
        super().__init__(
            f"{url}: push {token.number} of data shard {token.shard} of the job {token.job!r} was refused by "
            f"{len(partitions)} partitions, the first is {min(partitions)}: they lack the push before it. "
            "Send that first."
        )


class LostPushesError(StoreError):
    """The store lacks pushes that nobody can send again."""

    def __init__(self, url: object) -> None:
        remedy = f"Go on from the last checkpoint with {named('resume')}, or start again."
        super().__init__(f"{url}: {LOST} {remedy}")


class Store(Protocol):
    """The optimizer state of `2**bits` slots, `width` float32 numbers each; an absent slot reads as zeros.

    Thread-safe. No argument or result aliases the store's memory. The numbers of one slot are read and
    written together. Slots are C-contiguous, uint32 if `bits <= 32`, else uint64.

    A store splits its slots into equal contiguous ranges, its `partitions`, and applies a push partition by
    partition. For every (job, shard), each partition stores the number of the last push that it applied: its
    watermark.
    """

    @property
    def bits(self) -> int:
        """log2 of the number of slots."""

    @property
    def width(self) -> int:
        """Numbers per slot."""

    @property
    def partitions(self) -> Partitions: ...

    def pull(self, slots: Slots) -> Float32:
        """The state of `slots`, which are ascending and unique: float32[u, width].

        Raises ValueError for slots of another dtype, shape or order; StoreError for a slot outside the store,
        and if the store is closed or unreachable.
        """

    def push(
        self,
        slots: Slots,
        delta: Float32,
        token: Token,
        pulled: Float32 | None = None,
        previous: Int64 | None = None,
    ) -> None:
        """Add `delta`, finite float32[u, width] and C-contiguous, to the state of `slots`, as in `pull`.

        `pulled` is the state that the delta starts from, of the same shape: a store whose numbers have a
        limited range needs it to saturate instead of overflowing.

        If the token's number is greater than a partition's watermark for its job and shard, the partition
        adds its share and raises the watermark to that number, in one step. So a push may be repeated until
        it succeeds. Pushes of a data shard come in ascending order, each complete before the next. Partitions
        without slots in the request do not change, and neither do their watermarks.

        `previous`, int64[partitions], has each partition's previous push of the data shard, -1 for none. A
        partition of `slots` whose watermark is below it adds nothing: GapError.

        Raises as `pull` does, and for a wrong or non-finite `delta`, before anything is added. If the store
        fails midway, and after a GapError, some partitions may have applied the push: repeat it.
        """

    def applied(self, job: str, shard: int) -> Int64:
        """int64[partitions]: the last push of this shard that each partition applied, -1 for none."""

    def take_over(self, job: str, shard: int) -> tuple[int, Int64]:
        """Begin an attempt at a data shard: from now on, pushes of earlier attempts raise SupersededError.

        Returns the attempt's number, for its tokens, and the result of `applied`, which only pushes of this
        attempt can change.
        """

    def scan(self) -> Iterator[tuple[Slots, Float32]]:
        """Yield all slots whose state is not all zeros, with their state: blocks in ascending order.

        A block is never empty. Each is read at one moment; pushes may come between two blocks.
        """

    def drop(self) -> None:
        """Delete the model from the store, and close it."""

    def close(self) -> None:
        """Free the store's resources; afterwards, all methods but `close` raise StoreError."""


class Outcome(Enum):
    """How a session ended."""

    ARRIVED = auto()
    """Every partition has every push, and replicas were waited for."""
    SUPERSEDED = auto()
    """Another attempt at the data shard has begun, and pushes what this one had not pushed."""
    LOST = auto()
    """A server has lost pushes that are no longer kept here: begin the data shard again."""


@dataclass(slots=True)
class Pulled:
    """The result of a session's `pull`, for its `wait` and `push`."""

    slots: Slots
    """The slots of the request."""
    state: Float32
    """float32[u, width]; valid once `wait` has returned it."""
    receipt: Any = None
    """The store's own data."""


class Session(Protocol):
    """A worker's attempt at one data shard: its pulls, the sequence of its pushes, and its outcome.

        open --close--> ARRIVED
          |---another attempt has begun--> SUPERSEDED
          '---a server has lost pushes---> LOST

    Pushes are numbered in ascending order, and each names the previous one. A partition adds each push once,
    in order, and refuses a push if it lacks the previous one. Then the session sends the missing pushes again
    if it still keeps them; if not, it is lost. Stores add nothing more of a superseded or lost session.

    While a worker trains a chunk, it pulls the next and sends the push of the previous one. So one thread may
    call `pull`, a second `wait` and `push`, and a third `send` and `close`.
    """

    @property
    def shard(self) -> int:
        """The data shard."""

    @property
    def first(self) -> int:
        """The number of the first push that partitions may lack."""

    @property
    def outcome(self) -> Outcome | None:
        """None while the session is open. An outcome never changes."""

    def pull(self, slots: Slots, clock: int, least_clock: int) -> Pulled:
        """Pull the state of the slots of a chunk, which the worker will train at this clock.

        `least_clock`, the slowest live worker's, limits the age of cached state. Raises as `Store.pull` does.
        """

    def wait(self, pulled: Pulled) -> Float32:
        """The state as of the pull with all earlier pushes of this worker, float32[u, width].

        While nobody else pushes, it is bit-identical to what `Store.pull` would return after those pushes.
        Call it in the order of pulls.
        """

    def push(self, pulled: Pulled, delta: Float32, number: int) -> object:
        """Make a push of the changes by training, for `send`; from now on, `wait` includes it.

        Raises as `Store.push` does for a wrong delta.
        """

    def push_nothing(self, number: int) -> object:
        """Make the push of a chunk without examples, for `send`."""

    def send(self, push: Any) -> bool:
        """Send the push, and those made before it, until every partition has applied them.

        Returns False if the session is superseded or lost. Raises as `Store.push` does.
        """

    def close(self) -> Outcome:
        """End the session after its last push was sent. Raises as `send` does."""


class Sessions(Protocol):
    """A worker's sessions with a store; one or two are open at a time."""

    def begin(self, shard: int) -> Session:
        """Begin an attempt at a data shard. From now on, partitions refuse pushes of earlier attempts.

        Pushes that partitions have applied already are not added again. Raises as `Store.push` does.
        """

    def fold_log(self) -> bool:
        """Add deferred changes to the state, if there are many.

        Returns whether to go on: there are more, and no push waits. Raises as `Store.push` does.
        """

    def flush(self) -> None:
        """Send all pushes; pulls no longer include those of superseded and lost sessions.

        No pull may be running. Raises as `Store.push` does.
        """

    def await_replicas(self) -> bool:
        """Wait up to a second for replicas that lacked pushes at the last wait; True if they have them."""

    def close(self) -> None:
        """Stop pushing; the store stays open."""


class RankSession(Protocol):
    """A BSP worker's pushes for one rank. Other workers may have a session for it, too, with equal pushes."""

    def increments(self, slots: Slots, state: Float32, delta: Float32, number: int) -> Int64:
        """The changes of `state` by training as whole numbers, int64[u], for a push of this number."""

    def push_packed(self, slots: Slots, increments: Int64, number: int) -> object:
        """Make a push of increments, for `send`."""

    def send(self, push: Any) -> bool:
        """See `Session.send`. Raises LostPushesError if pushes were lost that are no longer kept here."""

    def applied(self, least: int) -> int:
        """The number of the last push for the rank, of any worker, that all partitions have applied.

        Raises LostPushesError if that stays below `least`.
        """


class RankSessions(Protocol):
    """A BSP worker's sessions with a store, which filters nothing; the data shards of pushes are ranks."""

    @property
    def has_replicas(self) -> bool:
        """Whether any server had a replica at the beginning."""

    def join(self, rank: int, applied: int) -> RankSession:
        """The session for a rank, after the push `applied`, which all partitions have; -1 for none."""

    def pull_after(self, slots: Slots, applied: Sequence[int], patience_s: float) -> Float32 | None:
        """The state of slots after the push `applied[i]` of each rank `i`; None if it has later ones.

        While pushes are missing, wait until they are sent again; raises LostPushesError after `patience_s`.
        """

    def wait_replicated(self, timeout_s: float = 1.0) -> bool:
        """Send all pushes, and those again that servers have lost; returns whether replicas have every push.

        Waits for replicas up to `timeout_s`. Without any, it suffices that the store has all kept pushes.
        """


def check_slots(slots: Slots, bits: int) -> Slots:
    """A read-only view of the slots of a request; raises as documented at `Store.pull`."""
    dtype = slot_dtype(bits)
    if slots.dtype != dtype or slots.ndim != 1 or not slots.flags.c_contiguous:
        raise ValueError(
            f"slots are {slots.dtype} of shape {slots.shape}: a store of 2**{bits} slots takes one "
            f"contiguous dimension of {np.dtype(dtype)}"
        )
    slots = slots.view()
    slots.flags.writeable = False  # like Arrow's, so that kernels are compiled for one kind of array
    if not ascending(slots):
        i = int(np.flatnonzero(slots[1:] <= slots[:-1])[0]) + 1
        raise ValueError(f"slot {slots[i]} at {i} follows {slots[i - 1]}: sort the slots and keep each once")
    if slots.size and int(slots[-1]) >> bits:
        raise StoreError(
            f"slot {slots[-1]} is outside a store of 2**{bits} slots: hash the data with bits {bits}, or "
            "open a store for more"
        )
    return slots


def check_delta(delta: Float32, rows: int, width: int) -> Float32:
    """A read-only view of the delta of a push to `rows` slots; raises as documented at `Store.push`."""
    if delta.dtype != np.float32 or delta.shape != (rows, width) or not delta.flags.c_contiguous:
        raise ValueError(
            f"delta is {delta.dtype} of shape {delta.shape}: {rows} slots take contiguous float32 of "
            f"shape ({rows}, {width})"
        )
    delta = delta.view()
    delta.flags.writeable = False
    if not finite(delta.reshape(-1)):
        row, k = (int(i[0]) for i in np.nonzero(~np.isfinite(delta)))
        raise StoreError(
            f"delta[{row}, {k}] is {delta[row, k]}: training has diverged; lower the learning rate, or look "
            "for huge feature values"
        )
    return delta
