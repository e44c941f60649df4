"""`Attempts`: where attempts at tasks leave the files they write, each apart from all others."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ctr.errors import EngineError
from ctr.features.inputs import RemoteFolder

_MARK = "mark"


class Attempts(Protocol):
    """A folder on storage that the driver and all tasks share, to which it is sent."""

    def attempt(self) -> AbstractContextManager[Path]:
        """A new folder on this machine, whose files are in the shared one, below its name, after the block.

        Raises EngineError where the storage is not shared, DataError and OSError where it refuses.
        """


@dataclass(frozen=True, slots=True)
class LocalAttempts:
    """In a folder that has the same path on all machines."""

    folder: Path
    mark: str
    """What a file in it says, which the driver wrote."""

    @classmethod
    def begun(cls, folder: Path) -> LocalAttempts:
        """By the driver."""
        mark = secrets.token_hex(8)
        (folder / _MARK).write_text(mark)
        return cls(folder, mark)

    @contextmanager
    def attempt(self) -> Iterator[Path]:
        self._require_shared()
        folder = self.folder / secrets.token_hex(8)
        folder.mkdir()
        yield folder

    def _require_shared(self) -> None:
        """Raises EngineError unless this machine sees what the driver writes."""
        try:
            is_shared = (self.folder / _MARK).read_text() == self.mark
        except OSError:
            is_shared = False
        if not is_shared:
            raise EngineError(
                f"{self.folder.parent}: what the driver writes there is not seen here; give an output folder"
                " on storage that all machines share"
            )


@dataclass(frozen=True, slots=True)
class RemoteAttempts:
    """In a folder behind a URI."""

    folder: RemoteFolder

    @contextmanager
    def attempt(self) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(prefix="ctr-") as place:
            folder = Path(place, secrets.token_hex(8))
            folder.mkdir()
            yield folder
            (self.folder / folder.name).upload(folder, sorted(path.name for path in folder.iterdir()))
