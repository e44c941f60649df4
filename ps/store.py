"""What training and storage promise each other: `Store`, and the sessions that it gives to workers.

A store keeps the optimizer state of slots. Whoever has a whole model in hand uses `Store`. A worker gets a
`Session` for each data shard that it trains from its `Sessions`, and calls `pull`, `wait`, `push` and `send`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Protocol

import numpy as np

from ctr.errors import StoreError
from ctr.ps.kernels import ascending, finite
from ctr.ps.partitions import Float32, Int64, Partitions, Slots, slot_dtype

LOST = (
    "a server has lost pushes that it had acknowledged, and they are not kept here any more: a replica that "
    "took over was too far behind, or a server came back with an old snapshot. Go on from the last "
    "checkpoint with --resume, or start again."
)
"""Why a job cannot go on."""


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
    """Of the push within the data shard, ascending from push to push."""
    attempt: int = 0
    """Of those at the data shard, see `Sessions.begin`; 0: as if there were no others."""

    def __post_init__(self) -> None:
        if not self.job or not (0 <= self.shard < 1 << 63 and 0 <= self.number < 1 << 63):
            raise ValueError(f"{self}: name the job, and count shards and pushes from 0")


class SupersededError(StoreError):
    """A push came too late: another attempt at its data shard has begun. What it adds is for that to add."""

    def __init__(self, url: object, token: Token) -> None:
        super().__init__(f"{url}: data shard {token.shard} of the job {token.job!r} is another worker's now.")


class GapError(StoreError):
    """Partitions lack the push before this one, and so have refused it."""

    def __init__(self, url: object, token: Token, partitions: Sequence[int]) -> None:
        super().__init__(
            f"{url}: push {token.number} of data shard {token.shard} of the job {token.job!r} was refused by "
            f"{len(partitions)} partitions, the first is {min(partitions)}: they lack the push before it. "
            "Send that first."
        )


class LostPushesError(StoreError):
    """The store lacks pushes that nobody can send again."""

    def __init__(self, url: object) -> None:
        super().__init__(f"{url}: {LOST}")


class Store(Protocol):
    """The optimizer state of `2**bits` slots, `width` float32 numbers each; an absent slot reads as zeros.

    Any number of threads may use a store at once. Nothing it takes or returns aliases its memory. The
    numbers of one slot are read and written together. Slots are uint32 while `bits <= 32` and uint64 above,
    C-contiguous.

    A store splits its slots into equal contiguous ranges, its `partitions`, and applies a push partition by
    partition: each keeps, with its state, the number of the last push of every (job, shard) that it applied:
    its watermark.
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

        Raises ValueError for slots of another dtype, shape or order, StoreError for a slot that the store
        does not have and for a store that is closed or cannot be reached.
        """

    def push(
        self,
        slots: Slots,
        delta: Float32,
        token: Token,
        pulled: Float32 | None = None,
        previous: Int64 | None = None,
    ) -> None:
        """Adds `delta`, finite float32[u, width] and C-contiguous, to the state of `slots`, as in `pull`.

        `pulled` is the state that the delta starts from, of the same shape: a store whose numbers have a
        limited range needs it to saturate instead of overflowing.

        A partition that `slots` touch adds its share and, in the same step, sets its watermark of the token's
        job and shard to the token's number: only when that is greater. So a push may be repeated until it
        succeeds, and a shard's pushes are made in ascending order, each to its end before the next. A
        partition without a slot in the request is left as it was, watermark included.

        `previous`, int64[partitions], is the push of the data shard before this one in each partition, -1 for
        none. Partitions that `slots` touch and whose watermark is below it add nothing: GapError.

        Raises as `pull` does, also for a wrong or non-finite `delta`, before anything is added. When the
        store fails on the way, or after a GapError, some partitions may have applied the push: repeat it.
        """

    def applied(self, job: str, shard: int) -> Int64:
        """int64[partitions]: the last push of this shard that each partition applied, -1 for none."""

    def take_over(self, job: str, shard: int) -> tuple[int, Int64]:
        """Begin an attempt at a data shard: from now on, no partition adds what earlier attempts push.

        Their pushes raise SupersededError. Returns the attempt's number, for its tokens, and what `applied`
        does. That changes no more but by pushes of this attempt.
        """

    def scan(self) -> Iterator[tuple[Slots, Float32]]:
        """Every slot whose state is not all zeros, with its state, in blocks: ascending throughout.

        A block is never empty. Each is read at one moment, and pushes may come between two blocks.
        """

    def drop(self) -> None:
        """Deletes the model from the store, and closes it."""

    def close(self) -> None:
        """Lets go of what the store holds here; then its other methods raise StoreError, but for `close`."""


class Outcome(Enum):
    """How a session ended."""

    ARRIVED = auto()
    """Every partition has every push, and replicas were waited for."""
    SUPERSEDED = auto()
    """Another attempt at the data shard has begun: what this one had not pushed is for that to push."""
    LOST = auto()
    """A server has lost pushes that are not kept here: the data shard is to be begun again."""


@dataclass(slots=True)
class Pulled:
    """What a session pulled, for its `wait` and `push`."""

    slots: Slots
    """As they were asked for."""
    state: Float32
    """float32[u, width], to be used when `wait` has returned it."""
    receipt: Any = None
    """What the store needs back."""


class Session(Protocol):
    """A worker's attempt at one data shard: what it pulls, the sequence of its pushes, and its end.

        open --close--> ARRIVED
          |---another attempt has begun--> SUPERSEDED
          '---a server has lost pushes---> LOST

    Pushes are numbered in ascending order, and each names the one before it. A partition adds each push once,
    in order, and refuses one that follows a push it lacks. The session then sends the missing pushes again if
    it still keeps them; if not, it is lost. Nothing more of a superseded or lost session is added.

    A worker pulls the next chunk while one trains, and sends the push of the one before. So `pull` may be
    called on one thread, `wait` and `push` on a second, `send` and `close` on a third.
    """

    @property
    def shard(self) -> int:
        """The data shard."""

    @property
    def first(self) -> int:
        """The number of the first push that some partition may lack."""

    @property
    def outcome(self) -> Outcome | None:
        """None while the session is open. Once it has an outcome, that does not change."""

    def pull(self, slots: Slots, clock: int, least_clock: int) -> Pulled:
        """Pull the state of a chunk's slots, which the worker will train at this clock.

        `least_clock` is the slowest live worker's: it limits how old cached state may be. Raises as
        `Store.pull` does.
        """

    def wait(self, pulled: Pulled) -> Float32:
        """The state as of the pull with all earlier pushes of this worker, float32[u, width].

        While nobody else pushes, it is bit-identical to what `Store.pull` would return after those pushes.
        Call it in the order of pulls.
        """

    def push(self, pulled: Pulled, delta: Float32, number: int) -> object:
        """Make a push of what training added to the state, for `send`; `wait` includes it from now on.

        Raises as `Store.push` does for a wrong delta.
        """

    def send(self, push: Any) -> bool:
        """Send the push, and those made before it, until every partition has them.

        False if the session is superseded or lost. Raises as `Store.push` does.
        """

    def close(self) -> Outcome:
        """End the session after its last push has been sent. Raises as `send` does."""


class Sessions(Protocol):
    """One worker's sessions with a store, one or two of them open at a time."""

    def begin(self, shard: int) -> Session:
        """Begin an attempt at a data shard. From now on, no partition adds what earlier attempts push.

        What partitions have already is not added again. Raises as `Store.push` does.
        """

    def close(self) -> None:
        """Stop pushing; the store stays open."""


def check_slots(slots: Slots, bits: int) -> Slots:
    """A read-only view of the slots of a request; raises what `Store.pull` says."""
    dtype = slot_dtype(bits)
    if slots.dtype != dtype or slots.ndim != 1 or not slots.flags.c_contiguous:
        raise ValueError(
            f"slots are {slots.dtype} of shape {slots.shape}: a store of 2**{bits} slots takes one "
            f"contiguous dimension of {np.dtype(dtype)}"
        )
    slots = slots.view()
    slots.flags.writeable = False  # as Arrow's are: so the kernels are compiled for one kind of array
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
    """A read-only view of the delta of a push to `rows` slots; raises what `Store.push` says."""
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
