"""`BadRows`: which rows of a pass were passed over, and the file they are kept in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from ctr.errors import DataError

_EXAMPLES = 5


class BadRows:
    """The rows that a pass over the data left out."""

    def __init__(self) -> None:
        self._ordinals: list[int] = []
        self._examples: list[str] = []

    @property
    def count(self) -> int:
        return len(self._ordinals)

    @property
    def ordinals(self) -> Sequence[int]:
        """Their positions among all data rows, good or bad, of all inputs in order; ascending."""
        return self._ordinals

    @property
    def examples(self) -> Sequence[str]:
        """What was wrong with the first few, each with its file and line."""
        return tuple(self._examples)

    def add(self, ordinal: int, explain: Callable[[], str]) -> None:
        """Notes one more row, further on than all before; `explain` is called only if it is an example."""
        self._ordinals.append(ordinal)
        if len(self._examples) < _EXAMPLES:
            self._examples.append(explain())


class Quarantine:
    """A file of bad rows as they stood in the input, each once however many passes there are."""

    def __init__(self, path: Path) -> None:
        """Creates the file, or empties it."""
        self._path = path
        self._kept: set[int] = set()
        self._write("wb", b"")

    def keep(self, rows: Iterable[tuple[int, bytes]]) -> None:
        """Appends those of the rows, each with its ordinal, that are not there yet."""
        new = [(ordinal, raw) for ordinal, raw in rows if ordinal not in self._kept]
        self._write("ab", b"".join(raw for _, raw in new))
        self._kept.update(ordinal for ordinal, _ in new)

    def _write(self, mode: str, data: bytes) -> None:
        try:
            with self._path.open(mode) as file:
                file.write(data)
        except OSError as error:
            raise DataError(
                f"{self._path}: bad rows cannot be kept there ({error.strerror}); give another place."
            ) from None
