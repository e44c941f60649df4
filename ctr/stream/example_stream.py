"""`ExampleStream`: rows for training in Redis, in chunks, each of which is appended once.

A stream has a fixed number of *lanes*, each a Redis stream of its own. Training treats a lane as a data
shard: the worker of a lane reads its chunks in order. Chunk `n` of the stream is chunk `n // LANES` of lane
`n % LANES`, and its number is the id of its entry. So Redis refuses a chunk that exists already, and a
watermark of the store, which is such a number, is the position to continue from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from ctr.errors import DataError, StoreError
from ctr.ps import RedisUrl, parse_redis_url
from ctr.ps.wire import PATIENCE_S, Connection, Write, connect, eviction_policies, pairs, require_no_eviction

LANES = 16
"""At most this many workers can train a stream at once."""
_TIMEOUT_S = 10.0
_UNTRAINED = 64
"""The most untrained chunks of a lane; then a writer has to wait for training."""
_TRAINED = 16
"""Trained chunks that a lane keeps, as some may be needed again after a failover."""
_CLAIMED_S = 60
"""A job that was killed keeps other jobs from the stream for this long."""
_REMEMBERED = 8 * LANES
"""Chunks that a writer keeps, to append them again if a failover loses them."""


class _OutOfOrderError(Exception):
    """A lane does not end with the previous chunk."""

    def __init__(self, last: int) -> None:
        self.last = last


@dataclass(frozen=True, slots=True)
class StreamChunk:
    """One chunk of a lane."""

    number: int
    """In its lane, from 0."""
    rows: bytes
    """JSON lines, one for each row."""
    count: int
    """Number of rows."""
    is_weighted: bool
    """Whether clicked rows occur twice: unclicked when they were served, and clicked later."""


class ExampleStream:
    """The stream `url.stream` (default: `default`). Thread-safe.

    All methods raise StoreError if Redis cannot be reached, or refuses.
    """

    def __init__(self, url: RedisUrl | str) -> None:
        """Raises StoreError, too, if Redis deletes keys when its memory is full."""
        self.url = parse_redis_url(url) if isinstance(url, str) else url
        name = self.url.stream or "default"
        self._recent: dict[int, dict[str, bytes | int]] = {}
        """The last chunks that this object appended, by number."""
        # In a cluster, lanes are on any node.
        self._keys = [f"ctr:{{stream:{name}:{lane}}}".encode() for lane in range(LANES)]
        self._trainer_key = self._keys[0] + b":trainer"
        self._connection = Connection(
            connect(self.url, _TIMEOUT_S), patience_s=PATIENCE_S, purpose="the stream of examples", remedy=""
        )
        require_no_eviction(self.url, eviction_policies(self._connection))

    def append(
        self, number: int, rows: Sequence[bytes], state: Mapping[str, Any], *, is_weighted: bool = False
    ) -> bool:
        """Append chunk `number` of the stream: rows as JSON without line ends, and its writer's state.

        Returns False if the lane is full because training is too far behind; try again later. A chunk with
        this state that exists already is left alone. Raises StoreError if another writer has appended a chunk
        of that number, or training would skip the chunk, as Redis has lost another one of that number.
        """
        fields: dict[str, bytes | int] = {
            "rows": b"\n".join(rows),
            "count": len(rows),
            "weighted": int(is_weighted),
            "state": orjson.dumps(state),
        }
        self._recent[number] = fields
        self._recent.pop(number - _REMEMBERED, None)
        return self._append(number)

    def _append(self, number: int, *, is_new: bool = True) -> bool:
        lane, number_in_lane = number % LANES, number // LANES
        key, position, fields = self._keys[lane], self._position_key(lane), self._recent[number]

        def decide(answers: list[Any]) -> Write[bool]:
            last, trained = _number_of(answers[0]), int(answers[1] or 0)
            if last == number_in_lane and pairs(answers[0][0][1])[b"state"] == fields["state"]:
                return (), True  # by an attempt whose answer was lost
            if last + 1 != number_in_lane:
                raise _OutOfOrderError(last)
            if is_new and number_in_lane < trained:
                raise self._lost(lane, last, trained)
            if number_in_lane - trained >= _UNTRAINED:
                return (), False
            entry = (word for field in fields.items() for word in field)
            return [("XADD", key, f"{number_in_lane + 1}-0", *entry)], True

        reads = [("XREVRANGE", key, "+", "-", "COUNT", 1), ("GET", position)]
        try:
            return self._connection.update([key], reads, decide)
        except _OutOfOrderError as error:
            lost = [n * LANES + lane for n in range(error.last + 1, number_in_lane)]
            if not lost or not self._recent.keys() >= set(lost):
                raise StoreError(
                    f"{self.url.public}: lane {lane} of the stream ends with chunk {error.last}, so "
                    f"{number_in_lane} cannot be appended: has Redis lost chunks, or do two processes write "
                    "to one stream?"
                ) from None
        # A replica that lacked them has taken over.
        return all(self._append(each, is_new=False) for each in lost) and self._append(number)

    def _lost(self, lane: int, last: int, position: int) -> StoreError:
        return StoreError(
            f"{self.url.public}: lane {lane} of the stream ends with chunk {last:,}, and training is at "
            f"{position:,}: Redis has lost chunks; join to another stream (?stream=NAME), and train on that "
            "from the last model."
        )

    def last(self) -> tuple[int, dict[str, Any]]:
        """The number of the stream's next chunk, and the state in the last one; 0 and {} if it is empty."""
        ends = self._ends()
        numbers = [_number_of(end) * LANES + lane for lane, end in enumerate(ends)]
        lane = max(range(LANES), key=numbers.__getitem__)
        if not ends[lane]:
            return 0, {}
        if missing := [
            n for n in range(numbers[lane] - LANES + 1, numbers[lane]) if n >= 0 and n not in numbers
        ]:
            raise StoreError(
                f"{self.url.public}: Redis has lost chunk {missing[0]:,} of the stream, and later ones are "
                "there; use another stream (?stream=NAME)."
            )
        state: dict[str, Any] = orjson.loads(pairs(ends[lane][0][1])[b"state"])
        return numbers[lane] + 1, state

    def _ends(self) -> list[Any]:
        return self._connection.ask_each([("XREVRANGE", key, "+", "-", "COUNT", 1) for key in self._keys])

    def require(self, positions: Mapping[int, int]) -> None:
        """Raise StoreError if a lane ends before its position, as training would skip the chunks between."""
        ends = self._ends()
        for lane, position in positions.items():
            if (last := _number_of(ends[lane])) + 1 < position:
                raise self._lost(lane, last, position)

    def read(self, positions: Mapping[int, int]) -> dict[int, StreamChunk]:
        """The chunk of this number of each lane, by lane; only chunks that exist by now.

        Raises DataError if chunks are gone, as training would miss their examples.
        """
        reads = [("XRANGE", self._keys[lane], f"{n + 1}-0", "+", "COUNT", 1) for lane, n in positions.items()]
        chunks = {}
        for (lane, n), entries in zip(positions.items(), self._connection.ask_each(reads), strict=True):
            if not entries:
                continue
            chunk = chunks[lane] = _chunk(entries[0])
            if chunk.number != n:
                raise DataError(
                    f"{self.url.public}: chunks {n:,} to {chunk.number - 1:,} of lane {lane} are gone from "
                    "the stream, so their examples would be missing: was it trimmed by somebody else, or is "
                    "this another model's stream?"
                )
        return chunks

    def first(self) -> list[StreamChunk]:
        """The oldest chunk of each lane that has one."""
        ends = self._connection.ask_each([("XRANGE", key, "-", "+", "COUNT", 1) for key in self._keys])
        return [_chunk(entries[0]) for entries in ends if entries]

    def trained(self, lane: int, before: int) -> None:
        """Trim the chunks of a lane before this number, except the last few: a saved model includes them."""
        keep = max(before - _TRAINED, 0)
        self._connection.ask(
            ("XTRIM", self._keys[lane], "MINID", f"{keep + 1}-0"), ("SET", self._position_key(lane), before)
        )

    def claim(self, trainer: str) -> None:
        """Let only this trainer use the stream for the next minute, as others would trim its chunks.

        Raises StoreError if another one does.
        """

        def decide(answers: list[Any]) -> Write[None]:
            if answers[0] is None:
                return [("SET", self._trainer_key, trainer, "EX", _CLAIMED_S)], None
            if answers[0] != trainer.encode():
                raise StoreError(
                    f"{self.url.public}: the job of {answers[0].decode()} trains on this stream, which is "
                    f"for one job; stop that one (if it was killed, wait {_CLAIMED_S} s), or join the "
                    "events to another stream, too (?stream=NAME)."
                )
            return [("EXPIRE", self._trainer_key, _CLAIMED_S)], None  # works even if memory is full

        self._connection.update([self._trainer_key], [("GET", self._trainer_key)], decide)

    def release(self, trainer: str) -> None:
        """End the claim of this trainer."""

        def decide(answers: list[Any]) -> Write[None]:
            return [("DEL", self._trainer_key)] if answers[0] == trainer.encode() else (), None

        self._connection.update([self._trainer_key], [("GET", self._trainer_key)], decide)

    def positions(self) -> list[int]:
        """The chunk of each lane before which all are `trained`."""
        reads = [("GET", self._position_key(lane)) for lane in range(LANES)]
        return [int(position or 0) for position in self._connection.ask_each(reads)]

    def close(self) -> None:
        self._connection.close()

    def _position_key(self, lane: int) -> bytes:
        return self._keys[lane] + b":trained"


def _chunk(entry: Any) -> StreamChunk:
    fields = pairs(entry[1])
    return StreamChunk(
        number=_number_of([entry]),
        rows=fields[b"rows"],
        count=int(fields[b"count"]),
        is_weighted=fields[b"weighted"] == b"1",
    )


def _number_of(entries: Any) -> int:
    """The chunk number of the first entry; -1 if there is none."""
    return int(entries[0][0].split(b"-")[0]) - 1 if entries else -1
