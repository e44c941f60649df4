"""The names of everything that a model keeps in Redis, and nowhere else.

The braces are Redis Cluster's hash tag: all keys of a partition live, move and fail over together. A node
has a contiguous range of hash slots, and partitions' tags are chosen so that equal ranges get equal shares.
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
    begun, restored."""
    leases: bytes
    """A sorted set: until when each live worker's lease lasts, in ms of the server's clock.

    That clock may be stepped, so this is what people are shown; processes go by whether it changes.
    """
    lengths: bytes
    """A hash: how long each live worker's lease lasts, in ms."""
    hosts: bytes
    """A hash: the host of each live worker."""
    clocks: bytes
    """A sorted set: the clock of each live worker that has data shards in work."""
    owners: bytes
    """A hash: the worker of each data shard that is claimed and unfinished; empty when it was released."""
    progress: bytes
    """A sorted set: the chunks pushed of each data shard that is claimed and unfinished, by
    `<shard>:<worker>`: a worker that has lost the data shard has no member to change."""
    marks: bytes
    """A sorted set of numbers that only grow: `clock:<launch>`, the highest of all, `s<rank>` and
    `p<rank>`."""
    rank_owners: bytes
    """A hash: the worker of each rank that ever had one; empty when it was given up."""
    reports: bytes
    """A hash: what workers report at their end, by name."""
    coordinator: bytes
    """A string: until when the coordinator's lease lasts, as in `leases`."""

    @property
    def all(self) -> tuple[bytes, ...]:
        """Every key."""
        return tuple(getattr(self, field.name) for field in fields(self))


@dataclass(frozen=True, slots=True)
class WindowKeys:
    """The keys of a model's windows; all of them live on one node."""

    facts: bytes
    """A hash: what the windows of servers are (see `ps/records`)."""

    @property
    def turn(self) -> bytes:
        """A string: who alone may change them for a moment."""
        return self.facts + b":turn"

    @property
    def creator(self) -> bytes:
        """A string: who is about to create them."""
        return self.facts + b":creator"

    @property
    def writers(self) -> bytes:
        """A hash: the number of each writer's last change."""
        return self.facts + b":writers"

    def records(self, incarnation: bytes) -> bytes:
        """A hash: the records by name, and under an empty name the head, what is known of all keys together.

        One key that never expires, so nobody loses a part of them.
        """
        return b"%b:r:%b" % (self.facts, incarnation)


@dataclass(frozen=True, slots=True)
class Watermark:
    """What a partition has of a data shard."""

    number: int = -1
    """Of the last push applied; -1 for none."""
    attempt: int = 0
    """The attempt at the data shard that may push, the greatest so far; 0: any."""

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
        """A hash: what the model is (see `ps/redis/creation.py`)."""
        return f"ctr:{{{self.model}:meta}}".encode()

    @property
    def board(self) -> BoardKeys:
        """Those of the job board, see `JobBoard`."""
        return BoardKeys(*(b"%b:%b" % (self.meta, field.name.encode()) for field in fields(BoardKeys)))

    def rank(self, rank: int) -> bytes:
        """A hash: the prepared update of a rank, by round. Each rank on a node of its own choice."""
        return f"ctr:{{{self.model}:rank:{rank}}}".encode()

    @property
    def windows(self) -> WindowKeys:
        """Those of the windows of servers."""
        return WindowKeys(f"ctr:{{{self.model}:windows}}".encode())

    def facts(self, partition: int) -> bytes:
        """A hash: the incarnation, and what else is known of a partition: STATE, FOLDS, ALL_PRESENT, FEED."""
        return self._of_partition(partition, "a")

    def watermarks(self, partition: int, shard: int) -> bytes:
        """A hash: the `Watermark` of this data shard, and those of others.

        Every push watches its own. Data shards that are in work at the same time are seldom in the same one.
        """
        return self._of_partition(partition, f"m{shard % WATERMARK_HASHES}")

    def state(self, partition: int, string: int = 0) -> bytes:
        """A string, one of several: 8 bytes per slot, the packed accumulators."""
        return self._of_partition(partition, f"w{string}")

    def last_slots(self, partition: int, string: int = 0) -> bytes:
        """A string: the state of the last slots of a string, which are stored apart; see `LAST_SLOTS`."""
        return self._of_partition(partition, f"x{string}")

    def log(self, partition: int, string: int = 0) -> bytes:
        """A string: increments that are not in the state yet, and slots pushed for the first time; see
        `ps/redis/packed_push.py`."""
        return self._of_partition(partition, f"l{string}")

    def folding(self, partition: int, string: int = 0) -> bytes:
        """A string: the log that is being folded, while one is."""
        return self._of_partition(partition, f"o{string}")

    def fold_steps(self, partition: int, string: int = 0) -> bytes:
        """A number: how many steps of folding have been done, see `ps/redis/fold.py`."""
        return self._of_partition(partition, f"f{string}")

    def present(self, partition: int, string: int = 0) -> bytes:
        """A string: a bit for each slot that a folded log has named, the lowest bit of a byte first."""
        return self._of_partition(partition, f"p{string}")

    def feed(self, partition: int) -> bytes:
        """A stream: what pushes have added to the partition, once somebody follows it; see `ps/feed`."""
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
    """For each range of hash slots, in order, the least number that Redis Cluster's hash puts there.

    Tags at random leave the busiest of 8 nodes half as many partitions again as it should have, of 64.
    """
    tags: dict[int, int] = {}
    for number in count():
        tags.setdefault(crc_hqx(b"%d" % number, 0) % _HASH_SLOTS * _RANGES // _HASH_SLOTS, number)
        if len(tags) == _RANGES:
            break
    return [tags[place] for place in range(_RANGES)]


@cache
def _prefix(model: str, partition: int) -> str:
    """What the names of all keys of a partition begin with."""
    # Partitions that follow each other are far apart: the first 2, 4, 8, ... are spread evenly.
    place = int(f"{partition % _RANGES:0{_RANGE_BITS}b}"[::-1], 2)
    return f"ctr:{model}:{partition}{{{_hash_tags()[place]}}}:"


WATERMARK_HASHES = 16
"""The number of hashes over which the watermarks of a partition are spread."""

INCARNATION = b"incarnation"
"""Field of the meta hash and of every partition's facts: the random id of the model's creation."""

STATE = b"state"
"""Field of the facts of a partition that has a state: one that it has lost is then no state of zeros."""

FOLDS = b"folds"
"""Field of the facts: how many logs of each of the partition's strings have been closed, to be folded."""

ALL_PRESENT = b"crowded"
"""Field of the facts of a partition of which every slot counts as pushed: ranges of it were."""

FEED = b"feed"
"""Field of the facts of a partition whose pushes are to be written to its feed."""


def watermark_field(job: str, shard: int) -> bytes:
    """The field of the watermark of a job's data shard."""
    return f"{job}:{shard}".encode()
