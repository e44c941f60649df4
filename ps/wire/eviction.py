"""Which keys servers delete when their memory is full."""

from __future__ import annotations

from typing import Any

from ctr.errors import StoreError
from ctr.ps.wire.commands import command
from ctr.ps.wire.link import Link
from ctr.ps.wire.url import RedisUrl


def eviction_policies(url: RedisUrl, client: Any) -> set[str]:
    """The maxmemory-policy of each primary. CONFIG GET is often forbidden, INFO seldom."""
    if not url.cluster:
        return {client.info("memory").get("maxmemory_policy", "")}
    found = client.info("memory", target_nodes=client.PRIMARIES)
    # Of a single primary, redis-py gives the answer alone.
    if "maxmemory_policy" in found:
        return {found["maxmemory_policy"]}
    return {each["maxmemory_policy"] for each in found.values()}


def require_kept(url: RedisUrl, link: Link) -> None:
    """Raise StoreError if the server deletes keys without a time to live when its memory is full."""
    link.send(command(b"INFO", b"memory"))
    found = link.replies.text().decode().partition("maxmemory_policy:")[2].partition("\r")[0]
    require_no_eviction(url, {found})


def require_no_eviction(url: RedisUrl, policies: set[str]) -> None:
    """Raise StoreError if one of these policies deletes keys without a time to live."""
    for policy in policies:
        if policy.startswith("allkeys-"):
            raise StoreError(
                f"{url}: deletes keys when its memory is full (maxmemory-policy {policy}), and so "
                "weights; set maxmemory-policy to noeviction."
            )
