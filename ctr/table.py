"""`table`: rows as lines of plain text, the same on a terminal and in a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

_WIDEST = 1 << 16  # columns: lines are never wrapped
_SIDES: Mapping[str, Literal["left", "right"]] = {"<": "left", ">": "right"}


def table(rows: Sequence[Sequence[str]], aligned: str) -> list[str]:
    """The rows as lines, each column as wide as its widest cell and aligned `<` or `>`."""
    from io import StringIO

    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2))
    for side in aligned:
        grid.add_column(justify=_SIDES[side], no_wrap=True)
    for row in rows:
        grid.add_row(*map(Text, row))
    console = Console(file=StringIO(), width=_WIDEST, color_system=None)
    with console.capture() as shown:
        console.print(grid)
    return [line.rstrip() for line in shown.get().rstrip("\n").split("\n")]
