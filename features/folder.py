"""`replace_folder`: write a folder as a whole or not at all."""

from __future__ import annotations

import ctypes
import errno
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_CANNOT_EXCHANGE = (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP)


@contextmanager
def replace_folder(target: str | Path) -> Iterator[Path]:
    """Yield an empty folder to write into; on leaving, it becomes `target` in one step.

    What is written is on disk before it appears under the target's name, and a folder that stood there is
    removed only afterwards, so whoever opens `target` finds the old or the new one, complete. The folder is
    a hidden sibling of the target while it is written. If the body or the disk fails, or the user interrupts,
    it is removed and the old target stays as it was.

    A target that is a symbolic link keeps being one; the folder it points to is replaced. Missing parents are
    made. Raises OSError as the file system does, NotADirectoryError when `target` is a file.
    """
    place = Path(target).resolve()
    if place.exists() and not place.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(target))
    place.parent.mkdir(parents=True, exist_ok=True)
    draft = place.with_name(f".{place.name}.{secrets.token_hex(4)}.partial")
    try:
        draft.mkdir()
        yield draft
        _sync_tree(draft)
        _put_in_place(draft, place)
        _sync(place.parent)
    finally:
        # The unfinished folder after a failure, the replaced one after success.
        shutil.rmtree(draft, ignore_errors=True)


def _put_in_place(draft: Path, place: Path) -> None:
    """Make `draft` stand at `place`; a folder that stood there takes the draft's name."""
    try:
        os.rename(draft, place)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        if not _exchange(draft, place):
            _swap_by_renames(draft, place)


def _exchange(one: Path, other: Path) -> bool:
    """Let two folders swap names in one atomic step (Linux); False where system or file system cannot."""
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        return False
    ctypes.set_errno(0)
    if renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in _CANNOT_EXCHANGE:
        return False
    raise OSError(code, os.strerror(code), str(one), None, str(other))


def _swap_by_renames(draft: Path, place: Path) -> None:
    """Let two folders swap names where the system cannot do it at once: for a moment `place` is absent."""
    aside = draft.with_suffix(".replaced")
    os.rename(place, aside)
    try:
        os.rename(draft, place)
    except BaseException:
        os.rename(aside, place)
        raise
    os.rename(aside, draft)


def _sync_tree(folder: Path) -> None:
    for path, _, files in os.walk(folder):
        for name in files:
            _sync(Path(path, name))
        _sync(Path(path))


def _sync(path: Path) -> None:
    """Have the disk hold the file's content, or the folder's list of names."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
