"""`table`: rows as lines of plain text, the same on a terminal and in a file."""

from __future__ import annotations

from collections.abc import Sequence
from unicodedata import combining, east_asian_width


def table(rows: Sequence[Sequence[str]], aligned: str) -> list[str]:
    """The rows as lines, each column as wide as its widest cell and aligned `<` or `>`."""
    widths = [max(map(_width, column)) for column in zip(*rows, strict=True)]

    def cell(text: str, side: str, width: int) -> str:
        blanks = " " * (width - _width(text))
        return text + blanks if side == "<" else blanks + text

    return ["  ".join(map(cell, row, aligned, widths)).rstrip() for row in rows]


def _width(text: str) -> int:
    """In letters of a terminal: a Chinese one is as wide as two, an accent that stands alone has no width."""
    return sum(0 if combining(letter) else 1 + (east_asian_width(letter) in "WF") for letter in text)
