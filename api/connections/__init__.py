"""How clients reach the server: listening sockets, and HTTP connections with limits."""

from ctr.api.connections.connection import LINGER_S, MOST_HEADER_BYTES, Bounded, H11Connection
from ctr.api.connections.connection_class import connection_class
from ctr.api.connections.sockets import (
    BACKLOG,
    close,
    has_input,
    let_in,
    let_no_more_in,
    listen,
    listen_together,
    listen_unix,
    url_of,
)
