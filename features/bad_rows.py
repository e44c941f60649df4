"""`BadRows`: which rows of the data were passed over, and the file they are kept in."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ctr.errors import DataError

ALWAYS_ALLOWED = 10
"""Bad rows that end no job, however few rows there are; but see `too_many`."""
EARLY_ROWS = 1_000_000
"""From so many rows on, a pass with too many bad ones ends at once, not only at its end."""
MAX_BAD_FRACTION = 0.01
"""What commands allow unless told otherwise."""

_REASONS = 5
_EXAMPLES = 5
_LEAST_ROOM = 1024


class BadRows:
    """The rows that the passes over the data left out, each once however many passes met it.

    One thread may add rows while others look.
    """

    def __init__(self) -> None:
        self._buffer = np.empty(0, np.int64)
        self._ordinals = self._buffer
        self._examples: list[str] = []

    @property
    def count(self) -> int:
        return self._ordinals.size

    @property
    def ordinals(self) -> NDArray[np.int64]:
        """int64[count]: their positions among all data rows, good or bad, of all inputs in order; ascending.

        A read-only view of those known by now, without a copy; rows added later are not in it.
        """
        return self._ordinals

    @property
    def examples(self) -> Sequence[str]:
        """What was wrong with the first few, each with its file and line."""
        return tuple(self._examples)

    def add(self, ordinals: NDArray[np.int64], explain: Callable[[int], str]) -> NDArray[np.intp]:
        """Notes the rows at `ordinals` (int64, ascending); returns which of them were not known yet.

        `explain` says what is wrong with the i-th of them; it is called for examples alone.
        """
        places = np.searchsorted(self._ordinals, ordinals)
        known = places < self.count
        known[known] = self._ordinals[places[known]] == ordinals[known]
        new = np.flatnonzero(~known)
        if new.size:
            self._extend(ordinals[new], places[new])
            self._examples += [explain(int(i)) for i in new[: _EXAMPLES - len(self._examples)]]
        return new

    def _extend(self, ordinals: NDArray[np.int64], places: NDArray[np.intp]) -> None:
        # Views that were handed out stay as they are: what they show is never written again.
        count = self.count
        if places[0] < count:  # a pass that began before an earlier one
            self._buffer = np.insert(self._ordinals, places, ordinals)
        else:
            if count + ordinals.size > self._buffer.size:
                buffer = np.empty(max(2 * self._buffer.size, count + ordinals.size, _LEAST_ROOM), np.int64)
                buffer[:count] = self._ordinals
                self._buffer = buffer
            self._buffer[count : count + ordinals.size] = ordinals
        filled = self._buffer[: count + ordinals.size]
        filled.flags.writeable = False
        self._ordinals = filled


def too_many(bad: int, rows: int, most: float) -> bool:
    """Whether more than the fraction `most` of so many rows are bad.

    Up to `ALWAYS_ALLOWED` never are too many, as long as they are no more than half of the rows: a fraction
    of few rows says little.
    """
    return bad > max(most * rows, min(ALWAYS_ALLOWED, rows / 2))


def require_few(reasons: Counter[str], rows: int, most: float, first: str) -> None:
    """Raises DataError if too many of so many rows are bad, for these reasons; `first` tells of one."""
    bad = reasons.total()
    if not too_many(bad, rows, most):
        return
    shown = [f"{count:,} with {reason}" for reason, count in reasons.most_common(_REASONS)]
    if len(reasons) > _REASONS:
        shown.append(f"{bad - sum(count for _, count in reasons.most_common(_REASONS)):,} with others")
    raise DataError(
        f"{bad:,} of the {rows:,} rows read are bad ({bad / rows:.1%}), more than --max-bad-fraction {most:g}"
        f" allows: {', '.join(shown)}; such as {first}. Check data and feature spec, or allow more."
    )


class Quarantine:
    """A file of bad rows as they stood in the input.

    There is none before the first row. Until `settle` the rows wait in a hidden file beside it, so that
    the file of an earlier job is replaced by a whole one, and not at all if there is no bad row.
    """

    def __init__(self, path: Path) -> None:
        """Touches nothing yet."""
        self._path = path
        self._waiting = path.with_name(f".{path.name}.{os.getpid()}.partial")
        self._target = self._waiting

    def keep(self, rows: Iterable[bytes]) -> None:
        """Appends rows."""
        with self._writing(), self._target.open("ab") as file:
            file.writelines(rows)

    def settle(self) -> None:
        """Puts the rows kept so far in place; those that follow are appended there."""
        if self._target == self._waiting and self._waiting.exists():
            with self._writing():
                os.replace(self._waiting, self._path)
            self._target = self._path

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise DataError(
                f"{self._path}: bad rows cannot be kept there ({error.strerror}); give another place."
            ) from None
