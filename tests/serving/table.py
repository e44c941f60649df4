"""`Table`: what was asked and what was measured."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Table:
    """What was asked and what was measured."""

    failed: bool = False

    def add(self, what: str, asked: str, measured: str, *, holds: bool = True) -> None:
        """Print a row."""
        self.failed |= not holds
        print(f"  {what:58}{asked:>22}{measured:>26}{'' if holds else '   MISSED'}", flush=True)
