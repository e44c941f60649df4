"""The names of everything that a model keeps in Redis, and nowhere else.

The braces are Redis Cluster's hash tag: all keys of a partition live, move and fail over together.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Keys:
    """The key names of one model."""

    model: str

    @property
    def meta(self) -> bytes:
        """A hash: what the model is (see `RedisModel`)."""
        return f"ctr:{{{self.model}:meta}}".encode()

    def state(self, partition: int) -> bytes:
        """A string: 8 bytes per slot, the packed accumulators."""
        return f"ctr:{{{self.model}:{partition}}}:w".encode()

    def record(self, partition: int) -> bytes:
        """A hash: the run id, and the last chunk applied per job and data shard."""
        return f"ctr:{{{self.model}:{partition}}}:a".encode()


RUN = b"run"
"""Field of the meta hash and of every record: the random id of the model's creation."""


def applied_field(job: str, shard: int) -> bytes:
    """Field of a record: the last chunk applied of this job's data shard."""
    return f"{job}:{shard}".encode()
