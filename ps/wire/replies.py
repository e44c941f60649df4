"""`ReplyReader`: reads replies from the socket, as redis-py's parser is far slower than Redis itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from redis.connection import ConnectionInterface
from redis.exceptions import ConnectionError as BrokenConnection
from redis.exceptions import TimeoutError as NoAnswer

from ctr.ps.partitions import Int64
from ctr.ps.wire.resp_kernels import parse_integers

_CHUNK = 1 << 18  # 256 KiB, read from the socket at a time


_ABORTED = "EXECABORT Transaction discarded because of: "

# Passing states of a server or a cluster: try again, after finding out which nodes hold the keys now.
_PASSING = {
    *("MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN", "LOADING", "MASTERDOWN"),
    *("READONLY", "NOREPLICAS", "BUSY"),
}


class ServerError(Exception):
    """An error reply, such as `MOVED 42 10.0.0.7:6379`."""

    @property
    def code(self) -> str:
        """The first word; for an aborted transaction, the first word of the reason."""
        return str(self).removeprefix(_ABORTED).split(" ", 1)[0]

    @property
    def passing(self) -> bool:
        """Whether the same request may be answered later, perhaps by another node."""
        return self.code in _PASSING


class ReplyReader:
    """Reads the replies over one connection, one after the other.

    Read all replies of a connection with this class: it does not see bytes in redis-py's own buffer.
    """

    def __init__(self, connection: ConnectionInterface) -> None:
        self._connection = connection
        self._bytes = bytearray(2 * _CHUNK)
        self._buffer: NDArray[np.uint8] = np.frombuffer(self._bytes, np.uint8)  # the same memory
        self._at = 0
        self._end = 0
        self.received = 0
        """Bytes so far."""
        self.refused: ServerError | None = None
        """The last error reply."""

    def integers(self, out: Int64) -> None:
        """Read one integer reply per element of `out`, int64[n]."""
        count = 0
        while count < out.size:
            at, count = parse_integers(self._buffer, self._at, self._end, out, count)
            if at < 0:
                raise BrokenConnection("the server answered something other than integers")
            self._at = at
            if count < out.size:
                if self._at < self._end and self._buffer[self._at] == ord("-"):
                    raise self._refusal(self._line())
                self._fill()

    def bulk(self) -> NDArray[np.uint8] | None:
        """Read a bulk string, uint8[n]: a view that the next read overwrites. None for nil."""
        return self._bulk(self._header(b"$"))

    def _bulk(self, size: int) -> NDArray[np.uint8] | None:
        if size < 0:
            return None
        while self._end - self._at < size + 2:
            self._fill(size + 2)
        start = self._at
        self._at += size + 2
        return self._buffer[start : start + size]

    def bulk_into(self, out: NDArray[np.uint8]) -> int:
        """Read a bulk string to the beginning of `out`, which is long enough; returns its size, 0 for nil.

        For a long one, this takes half the time of reading and copying it.
        """
        size = self._header(b"$")
        if size > out.size:
            raise BrokenConnection(f"the server answered {size} bytes instead of at most {out.size}")
        if size < 0:
            return 0
        filled = min(self._end - self._at, size)
        out[:filled] = self._buffer[self._at : self._at + filled]
        self._at += filled
        while filled < size:
            received = _receive(self._connection, out[filled:size].data)
            self.received += received
            filled += received
        while self._end - self._at < 2:
            self._fill()
        self._at += 2
        return size

    def text(self) -> bytes:
        """Read a bulk string as a copy; empty for nil."""
        text = self.bulk()
        return b"" if text is None else text.tobytes()

    def array(self) -> int:
        """Read the head of an array: its length, -1 for nil."""
        return self._header(b"*")

    def integer(self) -> int:
        """Read one integer."""
        return self._header(b":")

    def status(self) -> bytes:
        """Read a reply of one line, such as `OK`; raises ServerError for an error reply."""
        line = self._line()
        if line[:1] == b"-":
            raise self._refusal(line)
        return line[1:]

    def reply(self) -> Any:
        """Read any reply: bytes, int, None or a list of these; in a list, errors are ServerErrors.

        Raises ServerError for an error reply.
        """
        line = self._line()
        kind = line[:1]
        if kind == b"*":
            size = int(line[1:])
            return None if size < 0 else [self.answer() for _ in range(size)]
        if kind == b"$":
            text = self._bulk(int(line[1:]))
            return None if text is None else text.tobytes()
        if kind == b"-":
            raise self._refusal(line)
        return int(line[1:]) if kind == b":" else line[1:]

    def answer(self) -> Any:
        """Read any reply; an error is returned as a ServerError."""
        try:
            return self.reply()
        except ServerError as error:
            return error

    def all_of(self, *reads: Callable[[], Any]) -> list[Any]:
        """The results of all `reads`; raises the first ServerError after the last one.

        Each of them reads one reply, or nothing; so those after an error begin at the right reply.
        """
        answers: list[Any] = []
        problem: ServerError | None = None
        for read in reads:
            try:
                answers.append(read())
            except ServerError as error:
                problem = problem or error
        if problem is not None:
            raise problem
        return answers

    def _header(self, kind: bytes) -> int:
        line = self._line()
        if line[:1] == kind:
            return int(line[1:])
        if line[:1] == b"-":
            raise self._refusal(line)
        raise BrokenConnection(f"the server answered {line[:40]!r} instead of {kind!r}")

    def _refusal(self, line: bytes) -> ServerError:
        error = ServerError(line[1:].decode(errors="replace"))
        if error.code != "EXECABORT":  # follows the error that caused it
            self.refused = error
        return error

    def _line(self) -> bytes:
        searched = self._at
        while True:
            end = self._bytes.find(b"\n", searched, self._end)
            if end >= 0:
                start, self._at = self._at, end + 1
                return bytes(self._bytes[start : end - 1])
            searched = self._end - self._at
            self._fill()
            searched += self._at

    def _fill(self, least_capacity: int = 0) -> None:
        """Read at least one byte from the socket, into a buffer for at least `least_capacity` bytes."""
        if self._at:
            unread = self._end - self._at
            self._buffer[:unread] = self._buffer[self._at : self._end].copy()
            self._at, self._end = 0, unread
        capacity = max(least_capacity, self._end + _CHUNK)
        if self._buffer.size < capacity:
            grown = bytearray(max(capacity, 2 * self._buffer.size))
            grown[: self._end] = self._bytes[: self._end]
            self._bytes, self._buffer = grown, np.frombuffer(grown, np.uint8)
        size = _receive(self._connection, self._buffer[self._end :].data)
        self._end += size
        self.received += size


def pairs(flat: Sequence[bytes]) -> dict[bytes, bytes]:
    """The answer to HGETALL, or to ZRANGE … WITHSCORES, as a dictionary in the same order."""
    return dict(zip(flat[::2], flat[1::2], strict=True))


def parse_info(text: bytes) -> dict[str, Any]:
    """Parse the answer to INFO or CLUSTER INFO, lines of `name:value`; whole numbers become int."""
    lines = (line.partition(":") for line in text.decode().splitlines())
    return {name: int(value) if value.isdigit() else value for name, colon, value in lines if colon}


def _receive(connection: ConnectionInterface, into: memoryview) -> int:
    # redis-py has no public way to read raw bytes; its own parsers access the socket in the same way.
    socket: Any = vars(connection)["_sock"]
    if socket is None:
        raise BrokenConnection("the connection was closed")
    try:
        size = int(socket.recv_into(into))
    except TimeoutError as error:
        raise NoAnswer("the server did not answer in time") from error
    except OSError as error:
        raise BrokenConnection(f"the connection broke: {error}") from error
    if size == 0:
        raise BrokenConnection("the server closed the connection")
    return size
