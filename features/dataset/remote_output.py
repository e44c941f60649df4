"""`RemoteOutput`: a data set that is completed on this machine, and then put behind a URI."""

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
"""Below this folder of a data set, tasks that build it put what they have written."""


class RemoteOutput:
    """The data set that becomes one at a URI. Its manifest is the first file to go and the last to come, so
    whoever opens it finds the old one, none, or the new one.
    """

    def __init__(self, uri: str) -> None:
        self.folder = RemoteFolder(uri)
        name = hashlib.sha256(self.folder.uri.encode()).hexdigest()[:16]
        self.place = cache_folder() / "builds" / name / PurePosixPath(self.folder.uri).name
        """The local folder where it is completed."""

    def require_replaceable(self) -> None:
        """Raises DataError if anything but a data set would be replaced, or nothing can be written."""
        uri, names = self.folder.uri, self.folder.names()
        for name in sorted(names):
            if not is_own_name(name) and not name.startswith(ATTEMPTS):
                raise DataError(f"{uri}: holds {name}, which is no part of a data set; give another folder.")
        if MANIFEST in names:
            try:
                kind = json.loads(self.folder.read(MANIFEST))["format"]
            except (ValueError, KeyError, TypeError):
                kind = FORMAT  # torn: to write it again is the remedy
            if kind != FORMAT:
                raise DataError(f"{uri}: holds a {kind}, not a data set; give another folder.")
        attempt = self.folder / ATTEMPTS / secrets.token_hex(8)
        attempt.write("begun", b"")
        attempt.remove_all()

    def publish(self, uploaded: set[str]) -> None:
        """Put it there, but for the parts that have been `uploaded`, and remove the local folder.

        Raises DataError, which says where it is, if that fails.
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
