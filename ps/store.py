"""`Store`: the one protocol between training and storage, and what its requests must satisfy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ctr.errors import StoreError
from ctr.ps.kernels import ascending, finite
from ctr.ps.partitions import Float32, Int64, Slots, slot_dtype


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
    """Of those at the data shard, see `RedisStore.take_over`; 0: as if there were no others."""

    def __post_init__(self) -> None:
        if not self.job or not (0 <= self.shard < 1 << 63 and 0 <= self.number < 1 << 63):
            raise ValueError(f"{self}: name the job, and count shards and pushes from 0")


class SupersededError(StoreError):
    """A push came too late: another attempt at its data shard has begun. What it adds is for that to add."""

    def __init__(self, url: object, token: Token) -> None:
        super().__init__(f"{url}: data shard {token.shard} of the job {token.job!r} is another worker's now.")
        self.shard = token.shard


class Store(Protocol):
    """The optimizer state of `2**bits` slots, `width` float32 numbers each; an absent slot reads as zeros.

    Any number of threads may use a store at once. Nothing it takes or returns aliases its memory. The
    numbers of one slot are read and written together. Slots are uint32 while `bits <= 32` and uint64 above,
    C-contiguous.

    A store splits its slots into equal contiguous ranges, its partitions (see `Partitions`), and applies a
    push partition by partition: each keeps, with its state, the number of the last push of every (job,
    shard) that it applied: its watermark.
    """

    @property
    def bits(self) -> int:
        """log2 of the number of slots."""
        ...

    @property
    def width(self) -> int:
        """Numbers per slot."""
        ...

    def pull(self, slots: Slots) -> Float32:
        """The state of `slots`, which are ascending and unique: float32[u, width].

        Raises ValueError for slots of another dtype, shape or order, StoreError for a slot that the store
        does not have and for a store that is closed or cannot be reached.
        """
        ...

    def push(self, slots: Slots, delta: Float32, token: Token, pulled: Float32 | None = None) -> None:
        """Adds `delta`, finite float32[u, width] and C-contiguous, to the state of `slots`, as in `pull`.

        `pulled` is the state that the delta starts from, of the same shape: a store whose numbers have a
        limited range needs it to saturate instead of overflowing.

        A partition that `slots` touch adds its share and, in the same step, sets its watermark of the token's
        job and shard to the token's number: only when that is greater. So a push may be repeated until it
        succeeds, and a shard's pushes are made in ascending order, each to its end before the next. A
        partition without a slot in the request is left as it was, watermark included.

        Raises as `pull` does, also for a wrong or non-finite `delta`, before anything is added. When the
        store fails on the way, some partitions may have applied the push: repeat it.
        """
        ...

    def applied(self, job: str, shard: int) -> Int64:
        """int64[partitions]: the last push of this shard that each partition applied, -1 for none."""
        ...

    def scan(self) -> Iterator[tuple[Slots, Float32]]:
        """Every slot whose state is not all zeros, with its state, in blocks: ascending throughout.

        A block is never empty. Each is read at one moment, and pushes may come between two blocks.
        """
        ...

    def drop(self) -> None:
        """Deletes the model from the store, and closes it."""
        ...

    def close(self) -> None:
        """Lets go of what the store holds here; then its other methods raise StoreError, but for `close`."""
        ...


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
