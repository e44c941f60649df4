"""Figures as people read them, and columns of them."""

from __future__ import annotations

from collections.abc import Sequence


def columns(rows: Sequence[tuple[str, ...]], aligned: str) -> list[str]:
    """The rows as lines, each column as wide as its widest cell and aligned `<` or `>`."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            f"{cell:{side}{width}}" for cell, side, width in zip(row, aligned, widths, strict=True)
        ).rstrip()
        for row in rows
    ]


def some(count: int, noun: str) -> str:
    """`1 worker`, `2 workers`, `3 passes`."""
    plural = "" if count == 1 else "es" if noun.endswith("s") else "s"
    return f"{count:,} {noun}{plural}"


def size(count: float) -> str:
    """A number of bytes: `31.2 MiB`."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if count < 999.5:
            return f"{count:.0f} {unit}" if count >= 99.5 or unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} PiB"


def duration(seconds: float) -> str:
    """A time: `1.5 s`, `3 min 20 s`, `2 h 5 min`."""
    if seconds < 99.5:
        return f"{seconds:.1f} s" if seconds >= 0.05 else f"{seconds * 1e3:.1f} ms"
    for limit, unit, large, small in ((5_970, 60, "min", "s"), (172_800, 3_600, "h", "min")):
        if seconds < limit:
            whole, rest = divmod(seconds, unit)
            return f"{whole:.0f} {large} {rest * 60 / unit:.0f} {small}"
    return f"{seconds / 86_400:,.1f} days"
