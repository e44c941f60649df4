"""`Unfinished`: the parts that an interrupted build has written, so that the next one can continue."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from pydantic import BaseModel, ValidationError

from ctr.errors import DataError, SpecError
from ctr.features.dataset.manifest import FORMAT_VERSION, PartEntry
from ctr.features.folder import sha256_of
from ctr.features.inputs import InputFile, StandardInput
from ctr.features.spec import LEARNT, SPEC, FeatureSpec, read_spec_files, spec_files, spec_of_files

if TYPE_CHECKING:
    from ctr.features.readers import RowChoice

_JOURNAL = "journal.json"


class Done(BaseModel):
    """What a build has written, part by part."""

    position: int = 0
    """How many rows of the input, good or bad, its parts stand for."""
    rows: int = 0
    positives: int = 0
    features: int = 0
    labelled: bool | None = None
    has_values: bool = False
    has_weights: bool = False
    has_fields: bool = True
    parts: list[PartEntry] = []
    ended: bool = False
    """Whether these are all rows."""

    def count(self, other: Done) -> None:
        """Adds the rows of `other`, which follow these. Raises ValueError if only one of them has labels."""
        if self.labelled not in (None, other.labelled):
            raise ValueError("some rows have labels and some have none")
        self.labelled = other.labelled
        self.rows += other.rows
        self.positives += other.positives
        self.features += other.features
        self.has_values |= other.has_values
        self.has_weights |= other.has_weights
        self.has_fields &= other.has_fields


class _Journal(BaseModel):
    key: str
    """Of the build: see `key_of`."""
    done: Done
    fitted_for: str | None = None
    """The key with the spec as it was before it learnt from these files."""


def key_of(
    spec: FeatureSpec, files: Sequence[InputFile], block_rows: int, choice: RowChoice | None = None
) -> str | None:
    """A key that two builds of the same data set from unchanged files share; None for standard input.

    `choice`: the only rows that are built.
    """
    if any(isinstance(file, StandardInput) for file in files):
        return None
    states = [(file.location, file.size, file.state.modified_ns) for file in files]
    chosen = None if choice is None else [choice.text, choice.meets]
    text = json.dumps([FORMAT_VERSION, spec.fingerprint, spec.to_yaml(), block_rows, states, chosen])
    return hashlib.sha256(text.encode()).hexdigest()


def kept_fit(
    out: Path,
    spec: FeatureSpec,
    files: Sequence[InputFile],
    block_rows: int,
    choice: RowChoice | None = None,
) -> FeatureSpec | None:
    """`spec` with what it learnt from these files in an interrupted build of `out`, if there is one.

    None for a spec with vocabularies, as these may have changed, too.
    """
    key, folder = key_of(spec, files, block_rows, choice), _folder_of(out)
    if key is None or any(getattr(field, "vocabulary", None) is not None for field in spec.fields):
        return None
    try:
        journal = _Journal.model_validate_json((folder / _JOURNAL).read_bytes())
        fitted = spec_of_files(read_spec_files(folder), str(folder / SPEC))
    except (OSError, ValidationError, SpecError):
        return None
    # The journal's key depends on what was learnt.
    sound = journal.fitted_for == key and journal.key == key_of(fitted, files, block_rows, choice)
    return fitted if sound else None


class Unfinished:
    """The hidden folder beside a data set that holds its parts until all are written.

    Within the `with` block, nobody else may build the same data set. On leaving it, the folder is removed
    unless the build can continue from it.
    """

    folder: Path
    done: Done
    before: int
    """The number of rows that an earlier build wrote."""

    def __init__(
        self, out: Path, key: str | None, fitted: FeatureSpec | None = None, fitted_for: str | None = None
    ) -> None:
        """`key`: see `key_of`; None: a later build does not continue this one.

        `fitted`: the spec, which is stored as well; `fitted_for`: the key with the spec before it learnt.
        """
        self.folder = _folder_of(out)
        self.key = key
        self._fitted, self._fitted_for = fitted, fitted_for
        self.done = Done()
        self.before = 0
        self._out = out

    def __enter__(self) -> Unfinished:
        """Raises DataError if another process builds the same data set, or the disk refuses."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.folder, os.O_RDONLY)
        except OSError as error:
            raise DataError(
                f"{self._out}: cannot be written to ({error.strerror}); choose another place."
            ) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise DataError(
                f"{self._out}: another `ctr features build` writes it; wait for that, or give another folder."
            ) from None
        except OSError:
            pass  # a file system without locks
        self.done = self._earlier()
        self.before = self.done.rows
        if not self.done.parts:
            self._empty()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None or not self.done.parts:
            shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self._lock)

    def note(self, done: Done) -> None:
        """Records that another part is complete. Raises OSError."""
        self.done = done.model_copy(deep=True)
        if self.key is None:
            return
        draft = self.folder / f"{_JOURNAL}.partial"
        with (self.folder / done.parts[-1].name).open("rb") as part, draft.open("w") as journal:
            os.fsync(part.fileno())
            if self._fitted is not None and len(done.parts) == 1:
                for name, content in spec_files(self._fitted).items():
                    (self.folder / name).write_bytes(content)
            journal.write(_Journal(key=self.key, done=done, fitted_for=self._fitted_for).model_dump_json())
            journal.flush()
            os.fsync(journal.fileno())
        os.replace(draft, self.folder / _JOURNAL)

    def move_to(self, folder: Path) -> None:
        """Moves all parts. Raises OSError."""
        (self.folder / _JOURNAL).unlink(missing_ok=True)  # no build can continue from here any more
        for part in self.done.parts:
            os.rename(self.folder / part.name, folder / part.name)

    def _earlier(self) -> Done:
        """What an earlier build has written, if it was the same one and all of its parts are sound."""
        if self.key is None:
            return Done()
        try:
            journal = _Journal.model_validate_json((self.folder / _JOURNAL).read_bytes())
            sound = journal.key == self.key and all(
                sha256_of(self.folder / part.name) == part.sha256 for part in journal.done.parts
            )
        except (OSError, ValidationError):
            return Done()
        if not sound:
            return Done()
        names = {part.name for part in journal.done.parts}
        for path in self.folder.iterdir():  # the incomplete part
            if path.name not in names | {_JOURNAL, SPEC, LEARNT}:
                path.unlink()
        return journal.done

    def _empty(self) -> None:
        for path in self.folder.iterdir():
            with suppress(OSError):
                path.unlink()


def _folder_of(out: Path) -> Path:
    place = out.resolve()
    return place.with_name(f".{place.name}.unfinished")
