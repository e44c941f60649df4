"""`RemoteOutput`: a data set that is completed on this machine, then uploaded to a URI."""

from __future__ import annotations

import hashlib
import json
import secrets
import shutil
from pathlib import PurePosixPath

from ctr.errors import DataError
from ctr.features.dataset.cache import cache_folder
from ctr.features.dataset.manifest import FORMAT, is_own_name
from ctr.features.folder import MANIFEST
from ctr.features.inputs import RemoteFolder

ATTEMPTS = ".attempts"
"""The folder, below that of a data set, in which tasks that build it put their output."""


class RemoteOutput:
    """A data set to be published at a URI. The old manifest is removed first and the new one uploaded last,
    so whoever opens the data set finds the old one, none, or the new one.
    """

    def __init__(self, uri: str) -> None:
        self.folder = RemoteFolder(uri)
        name = hashlib.sha256(self.folder.uri.encode()).hexdigest()[:16]
        self.place = cache_folder() / "builds" / name / PurePosixPath(self.folder.uri).name
        """The local folder where it is completed."""

    def require_replaceable(self) -> None:
        """Raises DataError if anything but a data set would be replaced, or if the folder is not writable."""
        uri, names = self.folder.uri, self.folder.names()
        for name in sorted(names):
            if not is_own_name(name) and not name.startswith(ATTEMPTS):
                raise DataError(f"{uri}: holds {name}, which is no part of a data set; give another folder.")
        if MANIFEST in names:
            try:
                kind = json.loads(self.folder.read(MANIFEST))["format"]
            except (ValueError, KeyError, TypeError):
                kind = FORMAT  # torn: rebuilding is the remedy
            if kind != FORMAT:
                raise DataError(f"{uri}: holds a {kind}, not a data set; give another folder.")
        attempt = self.folder / ATTEMPTS / secrets.token_hex(8)
        attempt.write("begun", b"")
        attempt.remove_all()

    def publish(self, uploaded: set[str]) -> None:
        """Uploads all files except the parts that are `uploaded` already, then removes the local folder.

        If that fails, raises DataError, which says where the data set is.
        """
        try:
            own = {path.name for path in self.place.iterdir()} - {MANIFEST}
            old = self.folder.names() - uploaded
            self.folder.remove([MANIFEST])
            self.folder.upload(self.place, sorted(own))
            self.folder.remove(sorted(old - own - {MANIFEST}))
            self.folder.upload(self.place, [MANIFEST])
        except DataError as error:
            raise DataError(
                f"{str(error).removesuffix('.')}; the data set is in {self.place}: copy it, its {MANIFEST}"
                " last, or build it again."
            ) from error
        shutil.rmtree(self.place, ignore_errors=True)
