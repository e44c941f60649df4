"""How many lists and objects JSON holds: from the parsed value."""

from __future__ import annotations


def count_containers(value: object, depth: int) -> tuple[int, int]:
    """Lists and objects inside exactly `depth` others, and all of them."""
    if not isinstance(value, dict | list):
        return 0, 0
    inner = [count_containers(v, depth - 1) for v in (value.values() if isinstance(value, dict) else value)]
    at_depth = int(depth == 0) + sum(a for a, _ in inner)
    return at_depth, 1 + sum(total for _, total in inner)
