"""Which keys servers delete when their memory is full."""

from __future__ import annotations

from ctr.errors import StoreError
from ctr.ps.wire.connection import Connection
from ctr.ps.wire.link import Link, checked
from ctr.ps.wire.replies import parse_info
from ctr.ps.wire.url import RedisUrl

_ASK = ("INFO", "memory")  # CONFIG GET is often forbidden, INFO seldom


def eviction_policies(connection: Connection) -> set[str]:
    """The maxmemory-policy of each primary; empty if a server does not say."""
    return {parse_info(info).get("maxmemory_policy", "") for (info,) in connection.ask_nodes(_ASK)}


def require_kept(url: RedisUrl, link: Link) -> None:
    """Raise StoreError if the server deletes keys without a time to live when its memory is full."""
    (info,) = checked(link.ask(_ASK))
    require_no_eviction(url, {parse_info(info).get("maxmemory_policy", "")})


def require_no_eviction(url: RedisUrl, policies: set[str]) -> None:
    """Raise StoreError if one of these policies deletes keys without a time to live."""
    for policy in policies:
        if policy.startswith("allkeys-"):
            raise StoreError(
                f"{url}: deletes keys when its memory is full (maxmemory-policy {policy}), and so "
                "weights; set maxmemory-policy to noeviction."
            )
