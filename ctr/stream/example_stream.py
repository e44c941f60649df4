"""`ExampleStream`: rows for training in Redis, cut into chunks, each of which is appended once.

A stream has a fixed number of *lanes*, each a Redis stream of its own, which training treats as a data shard:
whoever trains a lane reads its chunks in order. Chunk `n` of the stream is chunk `n // LANES` of lane
`n % LANES`, and its number is the id of its entry. So Redis refuses a chunk that is there already, and a
watermark of the store, which is such a number, says where to read on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import time_ns
from typing import Any

import orjson

from ctr.errors import DataError, StoreError
from ctr.ps import RedisUrl, parse_redis_url
from ctr.ps.wire import PATIENCE_S, Connection, Write, connect, pairs

LANES = 16
"""As many workers can train a stream at once."""
_TIMEOUT_S = 10.0
_UNTRAINED = 64
"""Chunks that a lane holds before a writer has to wait for training."""
_TRAINED = 16
"""Chunks that a lane keeps behind the position of training: after a failover, some may be needed again."""
_REMEMBERED = 8 * LANES
"""Chunks that a writer can append again when a failover has lost them."""


class _OutOfOrderError(Exception):
    """A lane does not end with the chunk before."""

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
    """Rows."""
    made_us: int
    """When it was appended, in microseconds since 1970."""
    is_weighted: bool
    """Whether a row that was clicked is there twice: unclicked when it was served, and clicked later."""


class ExampleStream:
    """The stream `url.stream` (default: `default`). Thread-safe.

    All methods raise StoreError when Redis cannot be reached, or refuses.
    """

    def __init__(self, url: RedisUrl | str) -> None:
        self.url = parse_redis_url(url) if isinstance(url, str) else url
        name = self.url.stream or "default"
        self._recent: dict[int, dict[str, bytes | int]] = {}
        """The last chunks that were appended here, by number."""
        # Lanes of a cluster are on any of its nodes.
        self._keys = [f"ctr:{{stream:{name}:{lane}}}".encode() for lane in range(LANES)]
        self._connection = Connection(
            connect(self.url, _TIMEOUT_S), patience_s=PATIENCE_S, purpose="the stream of examples", remedy=""
        )

    def append(
        self, number: int, rows: Sequence[bytes], state: Mapping[str, Any], *, is_weighted: bool = False
    ) -> bool:
        """Append chunk `number` of the stream: rows of JSON without line ends, and its writer's state.

        False if its lane is full: training is too far behind; try again later. A chunk that is there already,
        with this state, is left as it is. StoreError when another writer has appended one of that number.
        """
        fields: dict[str, bytes | int] = {
            "rows": b"\n".join(rows),
            "count": len(rows),
            "made": time_ns() // 1_000,
            "weighted": int(is_weighted),
            "state": orjson.dumps(state),
        }
        self._recent[number] = fields
        self._recent.pop(number - _REMEMBERED, None)
        return self._append(number)

    def _append(self, number: int) -> bool:
        lane, number_in_lane = number % LANES, number // LANES
        key, position, fields = self._keys[lane], self._position_key(lane), self._recent[number]

        def decide(answers: list[Any]) -> Write[bool]:
            last, trained = _number_of(answers[0]), int(answers[1] or 0)
            if last == number_in_lane and pairs(answers[0][0][1])[b"state"] == fields["state"]:
                return (), True  # by a try whose answer was lost
            if last + 1 != number_in_lane:
                raise _OutOfOrderError(last)
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
                    f"{self.url}: lane {lane} of the stream ends with chunk {error.last}, so "
                    f"{number_in_lane} cannot be appended: has Redis lost chunks, or do two processes write "
                    "to one stream?"
                ) from None
        # A replica has taken over that lacked them.
        return all(map(self._append, lost)) and self._append(number)

    def last(self) -> tuple[int, dict[str, Any]]:
        """The number of the stream's next chunk, and the state in the last one; 0 and nothing if empty."""
        ends = self._connection.ask_each([("XREVRANGE", key, "+", "-", "COUNT", 1) for key in self._keys])
        numbers = [_number_of(end) * LANES + lane for lane, end in enumerate(ends)]
        lane = max(range(LANES), key=numbers.__getitem__)
        if not ends[lane]:
            return 0, {}
        if missing := [
            n for n in range(numbers[lane] - LANES + 1, numbers[lane]) if n >= 0 and n not in numbers
        ]:
            raise StoreError(
                f"{self.url}: Redis has lost chunk {missing[0]:,} of the stream, and later ones are there; "
                "go on with another stream (?stream=NAME)."
            )
        state: dict[str, Any] = orjson.loads(pairs(ends[lane][0][1])[b"state"])
        return numbers[lane] + 1, state

    def read(self, positions: Mapping[int, int]) -> dict[int, StreamChunk]:
        """By lane, the chunk of this number; of the lanes that have it by now.

        Raises DataError where chunks are gone, so that training would miss examples.
        """
        asked = [("XRANGE", self._keys[lane], f"{n + 1}-0", "+", "COUNT", 1) for lane, n in positions.items()]
        answers = zip(positions.items(), self._connection.ask_each(asked), strict=True)
        chunks = {lane: (wanted, _chunk(entries[0])) for (lane, wanted), entries in answers if entries}
        for lane, (wanted, chunk) in chunks.items():
            if chunk.number != wanted:
                raise DataError(
                    f"{self.url}: chunks {wanted:,} to {chunk.number - 1:,} of lane {lane} are gone from the "
                    "stream, so their examples would be missing: was it trimmed by somebody else, or is this "
                    "another model's stream?"
                )
        return {lane: chunk for lane, (_, chunk) in chunks.items()}

    def first(self) -> StreamChunk | None:
        """One of the oldest chunks that are there."""
        ends = self._connection.ask_each([("XRANGE", key, "-", "+", "COUNT", 1) for key in self._keys])
        return next((_chunk(entries[0]) for entries in ends if entries), None)

    def trained(self, lane: int, before: int) -> None:
        """Let go of chunks of a lane before this number, but for the last few: a model has them for good."""
        keep = max(before - _TRAINED, 0)
        self._connection.ask(
            ("XTRIM", self._keys[lane], "MINID", f"{keep + 1}-0"), ("SET", self._position_key(lane), before)
        )

    def positions(self) -> list[int]:
        """Of each lane, the chunk before which all are `trained`."""
        asked = [("GET", self._position_key(lane)) for lane in range(LANES)]
        return [int(position or 0) for position in self._connection.ask_each(asked)]

    def untrained(self) -> tuple[int, int]:
        """How many chunks wait for training, and when the oldest of them was appended (us; 0: none waits)."""
        positions = self.positions()
        of_lanes = list(zip(self._keys, positions, strict=True))
        firsts = [("XRANGE", key, f"{position + 1}-0", "+", "COUNT", 1) for key, position in of_lanes]
        lasts = [("XREVRANGE", key, "+", f"{position + 1}-0", "COUNT", 1) for key, position in of_lanes]
        answers = self._connection.ask_each(firsts + lasts)
        made = [_chunk(entry[0]).made_us for entry in answers[:LANES] if entry]
        ends = zip(answers[LANES:], positions, strict=True)
        return sum(_number_of(end) + 1 - position for end, position in ends if end), min(made, default=0)

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
        made_us=int(fields[b"made"]),
        is_weighted=fields[b"weighted"] == b"1",
    )


def _number_of(entries: Any) -> int:
    """The chunk number of the first of these entries; -1 if there is none."""
    return int(entries[0][0].split(b"-")[0]) - 1 if entries else -1
