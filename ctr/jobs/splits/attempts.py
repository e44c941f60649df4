"""`Attempts`: separate folders for the files of each attempt at a task."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ctr.errors import EngineError
from ctr.features import scratch_folder
from ctr.features.dataset import ATTEMPTS
from ctr.features.inputs import RemoteFolder

_MARK = "mark"


class Attempts(Protocol):
    """A folder on storage that the driver and all tasks share. It is sent to tasks."""

    def attempt(self) -> AbstractContextManager[Path]:
        """A new local folder; after the block, its files are in the shared folder, below its name.

        Raises EngineError if the storage is not shared, DataError and OSError if it refuses.
        """

    def require_shared(self) -> None:
        """Raise EngineError if this machine has other storage than the driver."""


@contextmanager
def local_attempts(out: Path) -> Iterator[LocalAttempts]:
    """Attempts in a folder beside `out`, which is removed in the end; called by the driver."""
    place = out.resolve()
    place.parent.mkdir(parents=True, exist_ok=True)
    with scratch_folder(place.parent, f".{place.name}.", ATTEMPTS) as folder:
        yield LocalAttempts.start(folder)


@contextmanager
def remote_attempts(out: RemoteFolder) -> Iterator[RemoteAttempts]:
    """Attempts in a folder below `out`, which is removed in the end; called by the driver."""
    folder = out / ATTEMPTS / secrets.token_hex(8)
    try:
        folder.write(_MARK, b"")
        yield RemoteAttempts(folder)
    finally:
        folder.remove_all()


@dataclass(frozen=True, slots=True)
class LocalAttempts:
    """Attempts in a folder with the same path on all machines."""

    folder: Path
    mark: str
    """The content of a file that the driver has written there."""

    @classmethod
    def start(cls, folder: Path) -> LocalAttempts:
        """Start attempts in a folder; called by the driver."""
        mark = secrets.token_hex(8)
        (folder / _MARK).write_text(mark)
        return cls(folder, mark)

    @contextmanager
    def attempt(self) -> Iterator[Path]:
        self.require_shared()
        folder = self.folder / secrets.token_hex(8)
        folder.mkdir()
        yield folder

    def require_shared(self) -> None:
        """See `Attempts`: it sees the driver's file."""
        try:
            is_shared = (self.folder / _MARK).read_text() == self.mark
        except OSError:
            is_shared = False
        if not is_shared:
            raise _not_shared(self.folder.parent)


@dataclass(frozen=True, slots=True)
class RemoteAttempts:
    """Attempts in a folder behind a URI."""

    folder: RemoteFolder

    @contextmanager
    def attempt(self) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(prefix="ctr-") as place:
            folder = Path(place, secrets.token_hex(8))
            folder.mkdir()
            yield folder
            (self.folder / folder.name).upload(folder, sorted(path.name for path in folder.iterdir()))

    def require_shared(self) -> None:
        """See `Attempts`: it finds the driver's file. Also raises DataError if the URI cannot be reached."""
        if not self.folder.has(_MARK):
            raise _not_shared(self.folder.uri)


def _not_shared(place: Path | str) -> EngineError:
    return EngineError(
        f"{place}: this machine does not see the driver's files there; give an output folder on storage that"
        " all machines share"
    )
