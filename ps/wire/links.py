"""`Link`: one open connection to a node, and `Links`: those that requests go through."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from redis.connection import ConnectionInterface, ConnectionPool

from ps.wire.replies import ReplyReader, ServerError
from ps.wire.url import Address

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


def link_from(pool: ConnectionPool) -> Link:
    """A new connection, logged in. Raises redis-py's errors."""
    connection = pool.make_connection()
    connection.connect()
    return Link(connection, ReplyReader(connection))


class Links:
    """Open connections by node."""

    def __init__(self) -> None:
        self._open: dict[Address, list[Link]] = {}
        self._sent = 0
        self._received = 0

    def get(self, address: Address, count: int, open_link: Callable[[Address], Link]) -> list[Link]:
        """So many to a node, those that are open first."""
        links = self._open.setdefault(address, [])
        while len(links) < count:
            links.append(open_link(address))
        return links[:count]

    def traffic(self) -> tuple[int, int]:
        """See `Nodes.traffic`."""
        links = [link for opened in list(self._open.values()) for link in opened]
        sent = sum(link.sent for link in links)
        received = sum(link.replies.received for link in links)
        return self._sent + sent, self._received + received

    def refused(self) -> ServerError | None:
        """See `Nodes.refused`."""
        errors = (link.replies.refused for links in list(self._open.values()) for link in links)
        return next((error for error in errors if error is not None), None)

    def close(self) -> None:
        """Close them."""
        self._sent, self._received = self.traffic()
        opened, self._open = self._open, {}
        for links in opened.values():
            for link in links:
                link.close()
