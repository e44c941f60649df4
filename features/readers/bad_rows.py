"""`BadRowPolicy`: what to do with bad rows; `BadRowHandler` does it; `BadRows`: the rows left out."""

from __future__ import annotations

import os
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from ctr.errors import DataError, named
from ctr.features.block import Block, explain
from ctr.features.folder import remove_drafts, scratch_folder

if TYPE_CHECKING:
    from ctr.features.transform import Transform

ALWAYS_ALLOWED = 10
"""Up to this many bad rows never end a job, however few rows there are; but see `too_many`."""
EARLY_ROWS = 1_000_000
"""After this many rows, a pass with too many bad ones ends at once, not only at its end."""

OnBadRows = Literal["fail", "skip", "quarantine"]

_REASONS = 5
_EXAMPLES = 5


@dataclass(frozen=True, slots=True)
class BadRowPolicy:
    """What to do with rows that cannot be read."""

    skip: bool = False
    """Whether bad rows are left out; if not, the first one is an error."""
    quarantine: Path | None = None
    """A file for the rows left out, unchanged. It replaces an older one when the first pass with a bad row
    ends, whether or not with an error."""
    max_fraction: float | None = None
    """A pass with more bad rows (see `too_many`) is an error that counts them by reason; None: no limit."""

    @staticmethod
    def of(on_bad_rows: OnBadRows, max_fraction: float | None, quarantine: Path) -> BadRowPolicy:
        """The policy of these settings; `quarantine` is the file for bad rows, if they are to be kept."""
        file = quarantine if on_bad_rows == "quarantine" else None
        return BadRowPolicy(on_bad_rows != "fail", file, max_fraction)


FAIL, SKIP = BadRowPolicy(), BadRowPolicy(skip=True)


class BadRows:
    """The rows that passes over the data left out, each counted once, however many passes met it.

    Memory is constant. A pass meets all bad rows between its first row and the last one so far, so it is
    enough to store, for each first row of a pass, the count of the bad rows that passes from there met, and
    the last one. Several objects can be merged if passes that began at different rows share no bad row, such
    as passes over data shards.

    One thread may add rows while others read.
    """

    def __init__(self) -> None:
        self._met: dict[int, tuple[int, int]] = {}  # first row of a pass: count, last bad row
        self._examples: list[str] = []
        self._followers: list[deque[NDArray[np.int64]]] = []

    def __repr__(self) -> str:
        return f"<BadRows, count: {self.count:,}>"

    @property
    def count(self) -> int:
        """The number of bad rows."""
        return sum(count for count, _ in list(self._met.values()))

    @property
    def end(self) -> int:
        """The position after the last bad row, among all data rows of all inputs in order; 0 without one."""
        return max((last + 1 for _, last in list(self._met.values())), default=0)

    @property
    def examples(self) -> Sequence[str]:
        """What was wrong with the first few bad rows, each with its file and line."""
        return tuple(self._examples)

    def count_from(self, start: int) -> int:
        """How many bad rows were met first by passes that began at row `start`."""
        return self._met.get(start, (0, -1))[0]

    def follow(self) -> deque[NDArray[np.int64]]:
        """A queue that receives the positions, int64[k] ascending, of bad rows added from now on."""
        follower: deque[NDArray[np.int64]] = deque()
        self._followers.append(follower)
        return follower

    def add(self, start: int, ordinals: NDArray[np.int64], explain: Callable[[int], str]) -> NDArray[np.intp]:
        """Adds the rows at `ordinals` (int64, ascending, at least one), met by a pass that began at `start`.

        Call it in row order. Returns which of them are new. `explain` says what is wrong with the i-th of
        them; it is only called for examples.
        """
        are_old = np.zeros(ordinals.size, np.bool_)
        for first, (_, last) in self._met.items():
            if first <= ordinals[-1] and ordinals[0] <= last:
                are_old |= (first <= ordinals) & (ordinals <= last)
        new = np.flatnonzero(~are_old)
        if new.size:
            count, _ = self._met.get(start, (0, -1))
            self._met[start] = count + new.size, int(ordinals[-1])
            self._examples += [explain(int(i)) for i in new[: _EXAMPLES - len(self._examples)]]
            for follower in self._followers:
                follower.append(ordinals[new])
        return new

    def merge(self, other: BadRows) -> None:
        """Adds the bad rows that `other` has met in the same data."""
        for start, met in list(other._met.items()):
            self._met[start] = max(met, self._met.get(start, met))
        self._examples = list(dict.fromkeys([*self._examples, *other._examples]))[:_EXAMPLES]

    def renamed(self, file: str, name: str) -> BadRows:
        """A copy whose examples call a file by another name."""
        examples = [text.replace(file, name) for text in self._examples]
        return self.from_json({**self.to_json(), "examples": examples})

    def to_json(self) -> dict[str, Any]:
        """As JSON values, from which `from_json` restores it."""
        return {
            "met": [[start, *met] for start, met in list(self._met.items())],
            "examples": list(self._examples),
        }

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> BadRows:
        """The object whose `to_json` this is."""
        bad = cls()
        bad._met = {start: (count, last) for start, count, last in entry["met"]}
        bad._examples = list(entry["examples"])
        return bad


def too_many(bad: int, rows: int, most: float) -> bool:
    """Whether more than the fraction `most` of `rows` rows are bad.

    Up to `ALWAYS_ALLOWED` bad rows are never too many, unless they are more than half of the rows: a fraction
    of few rows says little.
    """
    return bad > max(most * rows, min(ALWAYS_ALLOWED, rows / 2))


class BadRowHandler:
    """Applies a policy to the bad rows of passes over some data."""

    def __init__(self, policy: BadRowPolicy, transform: Transform) -> None:
        """`transform`: it explains what is wrong with a row."""
        self.policy = policy
        self.left_out = BadRows()
        self.tried = 0
        """How many rows, good or bad, the pass has read; the caller adds to it."""
        self._start = 0  # the first row of the pass
        self.reasons: Counter[str] = Counter()
        """What is wrong with the bad rows of the pass."""
        self._transform = transform
        self._quarantine = None if policy.quarantine is None else Quarantine(policy.quarantine)

    @contextmanager
    def pass_from(self, start: int) -> Iterator[None]:
        """A pass that begins at row `start`. Raises DataError at its end if too many rows are bad."""
        self._start, self.tried, self.reasons = start, 0, Counter()
        try:
            yield
            self._require_few()
        finally:
            if self._quarantine is not None:
                self._quarantine.put_in_place()

    def handle(self, block: Block, bad: NDArray[np.int64], position: int) -> None:
        """Handles the next bad rows (int64, at least one) of a block; `position`: of the block's first row.

        Raises DataError as the policy says.
        """
        if not self.policy.skip:
            skipping = named("on_bad_rows", "skip", "quarantine")
            raise DataError(f"{self._describe(block, int(bad[0]))}; fix the row or use {skipping}.")
        new = self.left_out.add(self._start, position + bad, lambda i: self._describe(block, int(bad[i])))
        if self._quarantine is not None and new.size:
            self._quarantine.keep(block.origin.raw(int(row)) for row in bad[new])
        self.reasons.update(explain(self._transform, block, int(row))[1] for row in bad)
        if self.tried >= EARLY_ROWS:
            self._require_few()

    def take(
        self, rows: int, bad: NDArray[np.int64], examples: Sequence[str], reasons: Counter[str], kept: Path
    ) -> None:
        """Handles the bad rows that a task met among the next `rows` of the pass.

        `bad`: their positions, int64, ascending; `examples`: what is wrong with the first few; `kept`: the
        quarantine of the task.
        """
        self.tried += rows
        if not bad.size:
            return
        self.left_out.add(self._start, bad, examples.__getitem__)
        self.reasons.update(reasons)
        if self._quarantine is not None:
            with kept.open("rb") as file:
                self._quarantine.keep(file)

    def _describe(self, block: Block, row: int) -> str:
        return f"{block.origin.place(row)}: {explain(self._transform, block, row)[0]}"

    def _require_few(self) -> None:
        """Raise DataError if too many rows of the pass are bad."""
        reasons, rows, most = self.reasons, self.tried, self.policy.max_fraction
        bad = reasons.total()
        if most is None or not too_many(bad, rows, most):
            return
        shown = [f"{count:,} with {reason}" for reason, count in reasons.most_common(_REASONS)]
        if len(reasons) > _REASONS:
            shown.append(f"{bad - sum(count for _, count in reasons.most_common(_REASONS)):,} with others")
        first = self.left_out.examples[0]
        why = f"{', '.join(shown)}; such as {first}. Check data and feature spec, or allow more."
        allowed = f"{named('max_bad_fraction')} {most:g} allows"
        raise DataError(
            f"{bad:,} of the {rows:,} rows read are bad ({bad / rows:.1%}), more than {allowed}: {why}"
        )


class Quarantine:
    """A file of bad rows, unchanged from the input.

    It is created with the first row, in a hidden folder beside its place, and moved by `put_in_place`. So it
    replaces the file of an earlier job completely, or not at all if there is no bad row.
    """

    def __init__(self, path: Path) -> None:
        """Removes only what killed processes left behind."""
        self._path = path
        self._folder = ExitStack()  # closing it removes the folder
        self._waiting: Path | None = None
        self._placed = False
        remove_drafts(path)

    def keep(self, rows: Iterable[bytes]) -> None:
        """Appends rows."""
        with self._writing():
            if self._waiting is None and not self._placed:
                draft = scratch_folder(self._path.parent, f".{self._path.name}.", ".partial")
                self._waiting = self._folder.enter_context(draft) / self._path.name
            with (self._waiting or self._path).open("ab") as file:
                file.writelines(rows)

    def put_in_place(self) -> None:
        """Moves the rows so far to the file's place; later rows are appended there."""
        if self._waiting is None:
            return
        with self._writing(), self._folder:
            os.replace(self._waiting, self._path)
        self._waiting, self._placed = None, True

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise DataError(
                f"{self._path}: bad rows cannot be kept there ({error.strerror}); give another place."
            ) from None
