"""`file_digests`: by what the same inputs are recognised later, also under another name."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence

from ctr.features.inputs.input_file import InputFile
from ctr.features.inputs.standard_input import StandardInput

MOST_FILES = 1_000
"""Of one command's inputs that have a digest: the first."""
_END_BYTES = 1 << 20  # 1 MiB


def file_digests(files: Sequence[InputFile]) -> list[str]:
    """12 hex digits for each of the first `MOST_FILES` files; none for standard input. Raises DataError.

    Those of a file on a disk are of its size and the MiB at either end; those of one behind a URI, of
    which nothing is read for it, of its URI, size and time of modification.
    """
    return [_digest(file) for file in files[:MOST_FILES] if not isinstance(file, StandardInput)]


def _digest(file: InputFile) -> str:
    found = hashlib.sha256(f"{file.size} ".encode())
    if file.is_remote:
        found.update(f"{file.state.modified_ns} {file.location}".encode())
        return found.hexdigest()[:12]
    with file.open() as opened:
        found.update(opened.read(_END_BYTES))
        opened.seek(max(file.size - _END_BYTES, 0), os.SEEK_SET)
        found.update(opened.read(_END_BYTES))
    return found.hexdigest()[:12]
