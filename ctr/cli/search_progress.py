"""What a search for settings shows of its progress: of hashing the rows, and of the trials."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from ctr.progress import Report, progress

if TYPE_CHECKING:
    from ctr.search import Progress


class SearchShown:
    """One progress after the other, so that the time left is that of the trials."""

    def __init__(self, shown: ExitStack) -> None:
        self._shown = shown
        self._report: Report = shown.enter_context(progress("hashing"))
        self._tuning = False

    def on_rows(self, rows: int, fraction: float) -> None:
        """So many rows are hashed."""
        self._report(rows, fraction)

    def on_progress(self, so_far: Progress) -> None:
        """How far the trials are."""
        if not self._tuning:
            self._tuning = True
            self._shown.close()
            self._report = self._shown.enter_context(progress("tuning"))
        best = min((each.judged.loss for each in so_far.tried), default=None)
        self._report(so_far.rows, so_far.fraction, best)


@contextmanager
def showing_search() -> Iterator[SearchShown]:
    """Show the progress of a search until the `with` block ends."""
    with ExitStack() as shown:
        yield SearchShown(shown)
