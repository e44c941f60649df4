"""The names of all keys of a model in Redis; no other module spells one out.

The braces are Redis Cluster's hash tag: all keys of a partition are stored, move and fail over together. A
node has a contiguous range of hash slots, and tags of partitions are chosen so that equal ranges get equal
numbers of partitions.
"""

from __future__ import annotations

from binascii import crc_hqx
from dataclasses import dataclass, fields
from functools import cache
from itertools import count


@dataclass(frozen=True, slots=True)
class BoardKeys:
    """The keys of a model's job board; all of them, and `meta`, live on one node."""

    launch: bytes
    """A string: the random id of the job's launch. Every write to the board watches it."""
    job: bytes
    """A hash: launch, id, lease (ms), description, shards, ranks, and what changes: state, message, pause,
    moves (how often a data shard was freed, or a free one claimed), restored."""
    leases: bytes
    """A sorted set: the end of each live worker's lease, in ms of the server's clock.

    That clock may be stepped, so these times are only shown to users; processes watch whether they change.
    """
    lengths: bytes
    """A hash: the length of each live worker's lease, in ms."""
    hosts: bytes
    """A hash: the host of each live worker."""
    clocks: bytes
    """A sorted set: the clock of each live worker that has data shards."""
    owners: bytes
    """A string, see `ps/board/owners.py`: the worker of each data shard that was ever claimed, in order."""
    finished: bytes
    """A string: a bit for each data shard, set when it is finished, as a server counts bits at once."""
    progress: bytes
    """A sorted set: the pushed chunks of each data shard that is claimed and unfinished, by
    `<shard>:<worker>`: a worker that has lost the data shard has no member to change."""
    marks: bytes
    """A sorted set of numbers that only grow: `clock:<launch>`, the highest clock; `taken:<launch>`, the last
    `moves` at which no data shard was free; for each rank, the last prepared round `s<rank>` and the last
    pushed round `p<rank>`."""
    rank_owners: bytes
    """A hash: the worker of each rank that ever had one; empty if it was released."""
    reports: bytes
    """A hash: the final reports of workers, by name."""
    coordinator: bytes
    """A string: the end of the coordinator's lease, as in `leases`."""

    @property
    def all(self) -> tuple[bytes, ...]:
        """All keys."""
        return tuple(getattr(self, field.name) for field in fields(self))


@dataclass(frozen=True, slots=True)
class WindowKeys:
    """The keys of a model's windows; all of them live on one node."""

    facts: bytes
    """A hash: the description of the windows of servers (see `ps/records`)."""

    @property
    def turn(self) -> bytes:
        """A string: the only writer that may change them for a moment."""
        return self.facts + b":turn"

    @property
    def creator(self) -> bytes:
        """A string: the process that is creating them."""
        return self.facts + b":creator"

    @property
    def writers(self) -> bytes:
        """A hash: the number of each writer's last change."""
        return self.facts + b":writers"

    def records(self, incarnation: bytes) -> bytes:
        """A hash: the records by name, and under an empty name the head, which is about all records.

        It is one key that never expires, so no part of it can be lost.
        """
        return b"%b:r:%b" % (self.facts, incarnation)


@dataclass(frozen=True, slots=True)
class Watermark:
    """A partition's last push of a data shard."""

    number: int = -1
    """The number of the last push applied; -1 for none."""
    attempt: int = 0
    """The attempt at the data shard that may push, the greatest so far; 0 for any."""

    @classmethod
    def from_bytes(cls, value: bytes) -> Watermark:
        """Read the result of `to_bytes`."""
        return cls(*map(int, value.split()))

    def to_bytes(self) -> bytes:
        """The value of its field in Redis."""
        return b"%d %d" % (self.number, self.attempt) if self.attempt else b"%d" % self.number


@dataclass(frozen=True, slots=True)
class Keys:
    """The key names of one model."""

    model: str

    @property
    def meta(self) -> bytes:
        """A hash: the description of the model (see `ps/redis/creation.py`)."""
        return f"ctr:{{{self.model}:meta}}".encode()

    @property
    def board(self) -> BoardKeys:
        """The keys of the job board, see `JobBoard`."""
        return BoardKeys(*(b"%b:%b" % (self.meta, field.name.encode()) for field in fields(BoardKeys)))

    def rank(self, rank: int) -> bytes:
        """A hash: the prepared update of a rank, by round. Each rank has a hash tag of its own."""
        return f"ctr:{{{self.model}:rank:{rank}}}".encode()

    @property
    def windows(self) -> WindowKeys:
        """The keys of the windows of servers."""
        return WindowKeys(f"ctr:{{{self.model}:windows}}".encode())

    def facts(self, partition: int) -> bytes:
        """A hash: the facts of a partition: INCARNATION, STATE, FOLDS, ALL_PRESENT, FEED."""
        return self._of_partition(partition, "a")

    def watermarks(self, partition: int, number: int) -> bytes:
        """A hash, one of several: the `Watermark`s of some data shards, see `RedisModel.watermarks`."""
        return self._of_partition(partition, f"m{number}")

    def state(self, partition: int, string: int = 0) -> bytes:
        """A string, one of several: the packed accumulators, 8 bytes per slot."""
        return self._of_partition(partition, f"w{string}")

    def last_slots(self, partition: int, string: int = 0) -> bytes:
        """A string: the state of the last slots of a string, which are stored apart; see `LAST_SLOTS`."""
        return self._of_partition(partition, f"x{string}")

    def log(self, partition: int, string: int = 0) -> bytes:
        """A string: increments not in the state yet, and new slots; see `ps/redis/packed_push.py`."""
        return self._of_partition(partition, f"l{string}")

    def folding(self, partition: int, string: int = 0) -> bytes:
        """A string: the log that is being folded, if any."""
        return self._of_partition(partition, f"o{string}")

    def fold_steps(self, partition: int, string: int = 0) -> bytes:
        """A number: the steps of folding that are done, see `ps/redis/fold.py`."""
        return self._of_partition(partition, f"f{string}")

    def present(self, partition: int, string: int = 0) -> bytes:
        """A string: a bit for each slot of a folded log, the lowest bit of a byte first."""
        return self._of_partition(partition, f"p{string}")

    def feed(self, partition: int) -> bytes:
        """A stream: the increments by pushes to the partition, once somebody follows it; see `ps/feed`."""
        return self._of_partition(partition, "c")

    def feed_version(self, partition: int) -> bytes:
        """A number: how many entries the feed has had. No push watches it."""
        return self._of_partition(partition, "v")

    def _of_partition(self, partition: int, name: str) -> bytes:
        return f"{_prefix(self.model, partition)}{name}".encode()


_RANGE_BITS = 12
_RANGES = 1 << _RANGE_BITS  # of hash slots
_HASH_SLOTS = 1 << 14  # of a Redis Cluster


@cache
def _hash_tags() -> list[int]:
    """The least number for each range of hash slots that Redis Cluster's hash maps there.

    With random tags, the busiest of 8 nodes would have 1.5 times its share of 64 partitions.
    """
    tags: dict[int, int] = {}
    for number in count():
        tags.setdefault(crc_hqx(b"%d" % number, 0) % _HASH_SLOTS * _RANGES // _HASH_SLOTS, number)
        if len(tags) == _RANGES:
            break
    return [tags[number] for number in range(_RANGES)]


@cache
def _prefix(model: str, partition: int) -> str:
    """The prefix of all keys of a partition."""
    # Consecutive partitions are far apart, so that the first 2, 4, 8, ... are spread evenly.
    reversed_bits = int(f"{partition % _RANGES:0{_RANGE_BITS}b}"[::-1], 2)
    return f"ctr:{model}:{partition}{{{_hash_tags()[reversed_bits]}}}:"


INCARNATION = b"incarnation"
"""Field of the meta hash and of every partition's facts: the random id of the model's creation."""

STATE = b"state"
"""Field of the facts of a partition that has a state: so a lost state is not taken for zeros."""

FOLDS = b"folds"
"""Field of the facts: how many logs of each of the partition's strings have been closed, to be folded."""

ALL_PRESENT = b"crowded"
"""Field of the facts of a partition whose slots all count as pushed, as ranges of it were pushed."""

FEED = b"feed"
"""Field of the facts of a partition whose pushes are written to its feed."""


def watermark_field(job: str, shard: int) -> bytes:
    """The field of the watermark of a job's data shard."""
    return f"{job}:{shard}".encode()
