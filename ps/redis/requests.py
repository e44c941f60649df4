"""What is said to a partition: the commands, and what their answers mean."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ps.fixed_point_kernels import find_heavy, limit_heavy
from ps.packed_kernels import add_to_range
from ps.wire import (
    RUN,
    STATE,
    Address,
    Keys,
    ReplyReader,
    ServerError,
    Watermark,
    bulk_string,
    command,
    decode_range,
    encode_pull,
    encode_push,
    is_near,
    pull_size,
    push_size,
    read_queued,
    require_passing,
)

NEAR_DENSITY = 64
"""On this machine, a request for at least one slot in this many of its span travels as the whole range.

Measured on loopback with Redis 6.2: an indexed read takes 0.45 us a slot and an indexed addition 0.65 us; a
range takes 0.5 ns a byte to read and as much to write."""
FAR_DENSITY = 12
"""The same over a network, where bytes cost more: 10 Gbit/s are 0.8 ns a byte."""

_LONGEST = 200_000  # slots in one command

_SLOT = 8  # bytes of a slot's state
_INTEGER_REPLY = 22  # bytes of the longest integer as a reply

CheckRun = Callable[[NDArray[np.uint8] | None], None]
Answer = TypeVar("Answer")


class Outcome(Enum):
    """What became of a request to one partition."""

    DONE = auto()
    TODO = auto()
    """Looked at, and to be written now."""
    CONFLICT = auto()
    """Somebody else pushed in between: look again."""
    BEHIND = auto()
    """The partition has lost pushes that it had acknowledged."""
    SUPERSEDED = auto()
    """Another attempt at the data shard has begun since this one."""
    ELSEWHERE = auto()
    """The partition moved, or its node is in a passing state."""


def density_of(address: Address) -> int:
    """That for a node."""
    return NEAR_DENSITY if is_near(address) else FAR_DENSITY


def is_dense(offsets: NDArray[np.uint32], density: int) -> bool:
    """Whether ascending offsets are better moved as one range than one by one."""
    return offsets.size * density >= int(offsets[-1]) - int(offsets[0]) + 1


TAIL_SLOTS = 2
"""Slots at the end of a partition that have a string of their own.

jemalloc, with which Redis is usually built, has no size between 2 MiB and 2.5 MiB, and a string of 2 MiB with
its head takes the latter. Without the last two slots it takes 2 MiB: 8.0 bytes per slot, not 10.0."""
_LEAST_SPLIT = 1_024  # slots from which a partition is split


def body_slots(size: int) -> int:
    """The slots of a partition of `size` that are in its main string: the first so many."""
    return size - TAIL_SLOTS if size >= _LEAST_SPLIT else size


class PullRequest:
    """The state of some slots of one partition: asked for one by one, or as a range; with its record."""

    def __init__(
        self,
        keys: Keys,
        partition: int,
        size: int,
        offsets: NDArray[np.uint32],
        field: bytes,
        density: int,
    ) -> None:
        self.partition = partition
        self._keys = keys
        body = int(np.searchsorted(offsets, body_slots(size)))
        self._offsets, self._tail = offsets[:body], offsets[body:] - np.uint32(body_slots(size))
        self._field = field
        self._ranged = body > 0 and is_dense(self._offsets, density)

    @property
    def reply_bytes(self) -> int:
        """About how many bytes the server answers, at most."""
        if self._ranged:
            return (int(self._offsets[-1]) - int(self._offsets[0]) + 1) * _SLOT
        return self._offsets.size * _INTEGER_REPLY

    def encode(self) -> bytes | memoryview:
        """The commands: record and state, read at one moment."""
        before = command(b"MULTI") + command(b"HMGET", self._keys.record(self.partition), RUN, self._field)
        key, after = self._keys.state(self.partition), command(b"EXEC")
        if self._tail.size:
            gets = [word for offset in self._tail for word in (b"GET", b"i64", b"#%d" % offset)]
            after = command(b"BITFIELD_RO", self._keys.tail(self.partition), *gets) + after
        if self._offsets.size == 0:
            return before + after
        if self._ranged:
            first, last = int(self._offsets[0]), int(self._offsets[-1])
            start, end = b"%d" % (first * _SLOT), b"%d" % (last * _SLOT + _SLOT - 1)
            return before + command(b"GETRANGE", key, start, end) + after
        raw_key = np.frombuffer(key, np.uint8)
        buffer = np.empty(len(before) + pull_size(self._offsets, raw_key) + len(after), np.uint8)
        buffer[: len(before)] = np.frombuffer(before, np.uint8)
        end_at = encode_pull(buffer, len(before), raw_key, self._offsets)
        buffer[end_at : end_at + len(after)] = np.frombuffer(after, np.uint8)
        return buffer.data

    def read(self, replies: ReplyReader, out: NDArray[np.int64], check_run: CheckRun) -> int | None:
        """Read the answers; the last chunk applied, -1 for none; None when the partition is elsewhere."""
        body = self._offsets.size
        if read_queued(replies, 1 + (body > 0) + (self._tail.size > 0)) is None:
            return None
        (mark,) = read_record(replies, check_run)
        if self._ranged:
            raw = replies.bulk()
            if raw is not None:
                decode_range(raw, self._offsets, int(self._offsets[0]), out[:body])
        elif body:
            replies.array()
            replies.integers(out[:body])
        if self._tail.size:
            replies.array()
            replies.integers(out[body:])
        return mark.chunk


class PushRequest:
    """Increments for some slots of one partition: added one by one, or as a rewritten range.

    First the record is watched and looked at, then state and record are written in a transaction, which does
    nothing when anybody pushed to the partition in between. So a range may be read, added to here, and
    written back.
    """

    def __init__(
        self,
        keys: Keys,
        partition: int,
        size: int,
        offsets: NDArray[np.uint32],
        increments: NDArray[np.int64],
        field: bytes,
        chunk: int | None,
        *,
        expected: int = -1,
        inserts: bytes = b"",
        density: int = NEAR_DENSITY,
        attempt: int = 0,
        on_found: Callable[[int, int, int], object] = lambda *_: None,
    ) -> None:
        """Push chunk `chunk` to a partition of `size` slots, which has acknowledged chunk `expected` before.

        `inserts` is appended to the partition's insert log. There may be no slots: then only the record is
        written; and without a chunk, only the attempt at the data shard in it. `on_found` is told of the
        partition, the last chunk that it has and its attempt.
        """
        self.partition = partition
        self._keys = keys
        body = int(np.searchsorted(offsets, body_slots(size)))
        self._whole = body_slots(size) * _SLOT
        self._offsets, self._increments = offsets[:body], increments[:body]
        self._tail = offsets[body:] - np.uint32(body_slots(size)), increments[body:]
        self._field = field
        self._chunk = chunk
        self._attempt = attempt
        self._on_found = on_found
        self._mark = Watermark()
        self._had_state = False
        self._expected = expected
        self._inserts = inserts
        self._first, self._last = (int(offsets[0]), int(offsets[body - 1])) if body else (0, -1)
        self._ranged = body > 0 and is_dense(self._offsets, density)
        self._heavy, self._heavy_now = _heavy(self._increments)
        self._tail_heavy, self._tail_now = _heavy(self._tail[1])
        self.limited = (0, 0)
        """Slots whose z and whose n have come to their limits, as of the last `write`."""
        self._optimistic = True
        self._regrow = False
        self._length = 0
        self._raw: NDArray[np.uint8] | None = None
        self._kinds: list[int] = []  # what EXEC answers: -1 for one line, else integers in an array

    @property
    def range_bytes(self) -> int:
        """Bytes that the look may read."""
        return (self._last - self._first + 1) * _SLOT if self._ranged else 0

    def one_by_one(self) -> None:
        """Add to each slot: nothing has to be read first, so that others are less likely to be faster."""
        self._optimistic = self._ranged = self._regrow = False

    def look(self) -> bytes:
        """Watch the record, and ask for it, and for what a range is to be added to."""
        record, state = self._keys.record(self.partition), self._keys.state(self.partition)
        commands = command(b"WATCH", record) + command(b"HMGET", record, RUN, self._field, STATE)
        commands += command(b"STRLEN", state)
        if self._tail_heavy.size:
            commands += _gets(self._keys.tail(self.partition), self._tail[0][self._tail_heavy])
        if self._regrow:
            commands += command(b"GETRANGE", state, b"0", b"-1")
        elif self._ranged:
            start, end = b"%d" % (self._first * _SLOT), b"%d" % (self._last * _SLOT + _SLOT - 1)
            commands += command(b"GETRANGE", state, start, end)
        elif self._heavy.size:
            commands += _gets(state, self._offsets[self._heavy])
        return commands

    def read_look(
        self,
        replies: ReplyReader,
        check_run: CheckRun,
        check_state: Callable[[bool, int], None] = lambda _had_state, _length: None,
    ) -> Outcome:
        """Read the answers to `look`; `write` next if it is TODO, else UNWATCH."""
        problems: list[ServerError] = []

        def tried(read: Callable[[], Answer], otherwise: Answer) -> Answer:
            try:
                return read()
            except ServerError as error:
                problems.append(error)
                return otherwise

        tried(replies.status, b"")
        found = tried(lambda: self._read_record(replies, check_run), Watermark())
        self._length = tried(replies.integer, 0)
        if self._tail_heavy.size:
            tried(lambda: _read_integers(replies, self._tail_now), None)
        if self._regrow or self._ranged:
            self._raw = tried(replies.bulk, None)  # last, as the next read would overwrite it
        elif self._heavy.size:
            tried(lambda: _read_integers(replies, self._heavy_now), None)
        if problems:
            require_passing(problems[0])
            return Outcome.ELSEWHERE
        check_state(self._had_state, self._length)
        self._on_found(self.partition, found.chunk, found.attempt)
        self._mark = Watermark(found.chunk if self._chunk is None else self._chunk, self._attempt)
        if self._attempt and found.attempt > self._attempt:
            return Outcome.SUPERSEDED
        if self._chunk is not None and found.chunk >= self._chunk:
            return Outcome.DONE
        if found.chunk < self._expected:
            return Outcome.BEHIND
        grows = 0 < self._length < self._end and self._upper_half
        if grows and self._optimistic and not self._regrow:
            # A string that grows is given up to 1 MiB too much: so it is written anew, whole.
            self._regrow = True
            return Outcome.CONFLICT
        if self._regrow and not grows:  # somebody else has written it anew
            self._regrow = False
            if self._ranged and self._raw is not None:
                self._raw = self._raw[self._first * _SLOT : self._end]
        return Outcome.TODO

    def _read_record(self, replies: ReplyReader, check_run: CheckRun) -> Watermark:
        (found,) = read_record(replies, check_run)
        self._had_state = replies.bulk() is not None
        return found

    @property
    def _end(self) -> int:
        return (self._last + 1) * _SLOT

    @property
    def _upper_half(self) -> bool:
        return 2 * self._end > self._whole

    def write(self, scratch: NDArray[np.uint8]) -> Sequence[bytes | memoryview]:
        """The transaction; `scratch` has room for `scratch_size` bytes, and is free when it has been sent."""
        state, record = self._keys.state(self.partition), self._keys.record(self.partition)
        parts: list[bytes | memoryview] = [command(b"MULTI")]
        self._kinds = []
        increments, tail_increments = self._limited_increments()
        if self._regrow or self._ranged:
            first = 0 if self._regrow else self._first
            # Made whole at once, and not by SET, a string takes no more than its size.
            whole = self._regrow or (self._length == 0 and self._upper_half)
            size = (self._whole if whole else self._end) - first * _SLOT
            head = b""
            if self._regrow:
                head = command(b"DEL", state)
                self._kinds.append(-1)
            head += b"*4\r\n$8\r\nSETRANGE\r\n" + bulk_string(state) + bulk_string(b"%d" % (first * _SLOT))
            head += b"$%d\r\n" % size
            body = scratch[:size]
            raw = self._raw if self._raw is not None else np.empty(0, np.uint8)
            add_to_range(raw, first, self._offsets, increments, body)
            parts += [head, body.data, b"\r\n"]
            self._kinds.append(-1)
        else:
            if self._length == 0 and self._upper_half:
                last = b"#%d" % (self._whole // _SLOT - 1)
                parts.append(command(b"BITFIELD", state, b"INCRBY", b"i64", last, b"0"))
                self._kinds.append(1)
            key = np.frombuffer(state, np.uint8)
            for piece in _pieces(self._offsets.size):
                offsets, some = self._offsets[piece], increments[piece]
                buffer = np.empty(push_size(offsets, some, key), np.uint8)
                encode_push(buffer, 0, key, offsets, some)
                parts.append(buffer.data)
                self._kinds.append(offsets.size)
        if self._tail[0].size:
            adds: list[bytes] = []
            for offset, increment in zip(self._tail[0], tail_increments, strict=True):
                adds += (b"INCRBY", b"i64", b"#%d" % offset, b"%d" % increment)
            parts.append(command(b"BITFIELD", self._keys.tail(self.partition), *adds))
            self._kinds.append(self._tail[0].size)
        has_state = (STATE, b"1") if self._offsets.size and not self._had_state else ()
        tail = command(b"HSET", record, self._field, self._mark.to_bytes(), *has_state)
        self._kinds.append(-1)
        if self._inserts:
            tail += command(b"APPEND", self._keys.inserts(self.partition), self._inserts)
            self._kinds.append(-1)
        parts.append(tail + command(b"EXEC"))
        return parts

    def _limited_increments(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """What is to be added to the main string and to the tail: heavy steps no further than the limits."""
        increments, tail_increments = self._increments, self._tail[1]
        z_limited = n_limited = 0
        if self._heavy.size:
            if self._regrow or self._ranged:
                raw = self._raw if self._raw is not None else np.empty(0, np.uint8)
                decode_range(
                    raw, self._offsets[self._heavy], 0 if self._regrow else self._first, self._heavy_now
                )
            increments = increments.copy()
            z_limited, n_limited = limit_heavy(self._heavy_now, self._heavy, increments)
        if self._tail_heavy.size:
            tail_increments = tail_increments.copy()
            z, n = limit_heavy(self._tail_now, self._tail_heavy, tail_increments)
            z_limited, n_limited = z_limited + z, n_limited + n
        self.limited = z_limited, n_limited
        return increments, tail_increments

    @property
    def scratch_size(self) -> int:
        """Bytes that `write` may need."""
        return self._whole if self._regrow or self._ranged else 0

    def read_write(self, replies: ReplyReader) -> Outcome:
        """Read the answers to `write`."""
        length = read_queued(replies, len(self._kinds))
        if length is None:
            return Outcome.ELSEWHERE
        if length < 0:
            return Outcome.CONFLICT
        try:
            for kind in self._kinds:
                if kind < 0:
                    replies.pass_over()
                else:
                    replies.array()
                    replies.skip_integers(kind)
        except ServerError as error:
            require_passing(error)
            return Outcome.ELSEWHERE
        return Outcome.DONE


def _heavy(increments: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where the heavy increments are, and room for what their slots hold; see `ps.fixed_point_kernels`."""
    marks = np.empty(increments.size, np.uint8)
    places = np.flatnonzero(marks) if find_heavy(increments, marks) else np.empty(0, np.int64)
    return places, np.empty(places.size, np.int64)


def _gets(key: bytes, offsets: NDArray[np.uint32]) -> bytes:
    """Asks for the integers at these offsets."""
    raw_key = np.frombuffer(key, np.uint8)
    buffer = np.empty(pull_size(offsets, raw_key), np.uint8)
    encode_pull(buffer, 0, raw_key, offsets)
    return buffer.tobytes()


def _read_integers(replies: ReplyReader, out: NDArray[np.int64]) -> None:
    """Read the answer to `_gets`."""
    replies.array()
    replies.integers(out)


def read_record(replies: ReplyReader, check_run: CheckRun, fields: int = 1) -> list[Watermark]:
    """What was applied of data shards, from the answer to HMGET run field ..., up to the last of these."""
    replies.array()
    check_run(replies.bulk())
    found = (replies.bulk() for _ in range(fields))
    return [Watermark() if each is None else Watermark.from_bytes(each.tobytes()) for each in found]


def _pieces(slots: int) -> list[slice]:
    """How the slots of a push are dealt to commands: Redis takes 2**20 arguments in one, a slot is four."""
    return [slice(first, min(first + _LONGEST, slots)) for first in range(0, slots, _LONGEST)]
