"""The names of everything that a model keeps in Redis, and nowhere else.

The braces are Redis Cluster's hash tag: all keys of a partition live, move and fail over together.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class BoardPart(StrEnum):
    """What a job board consists of."""

    LAUNCH = "launch"
    """A string: the random id of the job's launch. Every write to the board watches it."""
    JOB = "job"
    """A hash: launch, id, lease (ms), description, shards, ranks, created (ms), and what changes: state,
    message, pause, begun, restored."""
    LEASES = "leases"
    """A sorted set: until when each live worker's lease lasts, in ms of the server's clock."""
    HOSTS = "hosts"
    """A hash: the host of each live worker."""
    CLOCKS = "clocks"
    """A sorted set: the clock of each live worker that has data shards in work."""
    OWNERS = "owners"
    """A hash: the worker of each data shard that is begun and unfinished; empty when it was given back."""
    PROGRESS = "progress"
    """A sorted set: the chunks pushed of each data shard that is begun and unfinished, by `<shard>:<worker>`:
    whoever has lost the data shard has no member there to change."""
    MARKS = "marks"
    """A sorted set of numbers that only grow: `clock:<launch>`, the highest of all, `s<rank>` and
    `p<rank>`."""
    RANK_OWNERS = "rank_owners"
    """A hash: the worker of each rank that ever had one; empty when it was given up."""
    REPORTS = "reports"
    """A hash: what workers report at their end, by name."""
    COORDINATOR = "coordinator"
    """A string that is there as long as the coordinator's lease lasts."""


@dataclass(frozen=True, slots=True)
class Watermark:
    """What a partition has of a data shard."""

    number: int = -1
    """Of the last push applied; -1 for none."""
    attempt: int = 0
    """The attempt at the data shard that pushes at present, the greatest so far; 0: whoever likes."""

    @classmethod
    def from_bytes(cls, value: bytes) -> Watermark:
        """What `to_bytes` gave."""
        return cls(*map(int, value.split()))

    def to_bytes(self) -> bytes:
        """The value of its field."""
        return b"%d %d" % (self.number, self.attempt) if self.attempt else b"%d" % self.number


@dataclass(frozen=True, slots=True)
class Keys:
    """The key names of one model."""

    model: str

    @property
    def meta(self) -> bytes:
        """A hash: what the model is (see `ps/redis/model.py`)."""
        return f"ctr:{{{self.model}:meta}}".encode()

    def board(self, what: BoardPart) -> bytes:
        """A part of the job board (see `JobBoard`); all of them, and `meta`, live on one node."""
        return f"ctr:{{{self.model}:meta}}:{what}".encode()

    def rank(self, rank: int) -> bytes:
        """A hash: the prepared update of a rank, by round. Each rank on a node of its own choice."""
        return f"ctr:{{{self.model}:rank:{rank}}}".encode()

    def state(self, partition: int) -> bytes:
        """A string: 8 bytes per slot, the packed accumulators."""
        return f"ctr:{{{self.model}:{partition}}}:w".encode()

    def tail(self, partition: int) -> bytes:
        """A string: the state of the partition's last slots, see `TAIL_SLOTS`."""
        return f"ctr:{{{self.model}:{partition}}}:x".encode()

    def log(self, partition: int) -> bytes:
        """A string: increments that are not in the state yet, and slots pushed for the first time; see
        `ps/redis/log.py`."""
        return f"ctr:{{{self.model}:{partition}}}:l".encode()

    def present(self, partition: int) -> bytes:
        """A string: a bit for each slot that a folded log has named, the lowest bit of a byte first."""
        return f"ctr:{{{self.model}:{partition}}}:p".encode()

    def watermarks(self, partition: int) -> bytes:
        """A hash: the incarnation, whether there is a state, and a `Watermark` per job and data shard."""
        return f"ctr:{{{self.model}:{partition}}}:a".encode()


INCARNATION = b"incarnation"
"""Field of the meta hash and of every partition's watermarks: the random id of the model's creation."""

STATE = b"state"
"""Field of the watermarks of a partition that has a state: one that it has lost is then no state of zeros."""


FOLDS = b"folds"
"""Field of the watermarks: how often the partition's log has been folded into its state."""

CROWDED = b"crowded"
"""Field of the watermarks of a partition of which every slot counts as pushed: ranges of it were."""


def watermark_field(job: str, shard: int) -> bytes:
    """Field of the watermarks: that of this job's data shard."""
    return f"{job}:{shard}".encode()
