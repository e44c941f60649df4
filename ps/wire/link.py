"""`Link`: one open connection to a node."""

from __future__ import annotations

from dataclasses import dataclass

from redis import Redis
from redis.connection import ConnectionInterface

from ctr.ps.wire.replies import ReplyReader
from ctr.ps.wire.url import Address, RedisUrl

_LONGEST_JOINED = 1 << 16  # bytes


@dataclass(slots=True)
class Link:
    """One open connection, and the reader of its replies."""

    connection: ConnectionInterface
    replies: ReplyReader
    sent: int = 0
    """Bytes so far."""

    def send(self, *commands: bytes | memoryview) -> None:
        """Write commands as they are, small ones at once: each write takes the system and the server time."""
        size = sum(map(len, commands))
        self.sent += size
        if len(commands) > 1 and size <= _LONGEST_JOINED:
            commands = (b"".join(commands),)
        self.connection.send_packed_command(commands, check_health=False)

    def close(self) -> None:
        """Close the connection."""
        self.connection.disconnect()


def open_link(url: RedisUrl, address: Address, timeout_s: float) -> Link:
    """A new connection to a node, logged in, for the caller to close. Raises redis-py's errors."""
    host, port = address
    client = Redis(host=host, port=port, db=url.db, **url.client_options(timeout_s))
    connection = client.connection_pool.make_connection()
    connection.connect()
    return Link(connection, ReplyReader(connection))
