"""`connection_class`: which HTTP connections the server has."""

from __future__ import annotations

from importlib.util import find_spec

from ctr.api.connections.connection import Bounded, H11Connection


def connection_class() -> type[Bounded]:
    """The connection class: the faster one if httptools is installed."""
    if find_spec("httptools") is None:
        return H11Connection
    from ctr.api.connections.httptools_connection import HttpToolsConnection

    return HttpToolsConnection
