"""Which keys servers delete when their memory is full."""

from __future__ import annotations

from typing import Any

from ps.wire.url import RedisUrl


def eviction_policies(url: RedisUrl, client: Any) -> set[str]:
    """The maxmemory-policy of each primary. CONFIG GET is often forbidden, INFO seldom."""
    if not url.cluster:
        return {client.info("memory").get("maxmemory_policy", "")}
    found = client.info("memory", target_nodes=client.PRIMARIES)
    # Of a single primary, redis-py gives the answer alone.
    if "maxmemory_policy" in found:
        return {found["maxmemory_policy"]}
    return {each["maxmemory_policy"] for each in found.values()}
