"""Folders that are written as a whole or not at all, and the removal of leftovers of killed processes."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from io import BytesIO
from pathlib import Path
from zipfile import ZipFile

from ctr.errors import CtrError, DataError

MANIFEST = "manifest.json"
"""The file that describes the content of a folder."""

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_PARTIAL, _REPLACED = ".partial", ".replaced"
_CANNOT_EXCHANGE = (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP)


@contextmanager
def replace_folder(target: str | Path, confirm: Callable[[], object] = lambda: None) -> Iterator[Path]:
    """Yields an empty folder to write to; on leaving the `with` block, it becomes `target` in one step.

    Its content is on disk before it appears under the target's name, and the previous folder is removed only
    afterwards, so whoever opens `target` finds the old or the new one, complete. While it is written, the
    folder is a hidden sibling of the target. If the body or the disk fails, or the user interrupts, it is
    removed, and the old target does not change. The same applies if `confirm`, which is called just before
    that step, fails.

    A target that is a symbolic link remains one; the folder it points to is replaced. Missing parents are
    created. Drafts of the same target that killed processes left are removed. Raises OSError as the file
    system does, and NotADirectoryError if `target` is a file.
    """
    with replace_folders([target], confirm) as (draft,):
        yield draft


@contextmanager
def replace_folders(
    targets: Sequence[str | Path], confirm: Callable[[], object] = lambda: None
) -> Iterator[list[Path]]:
    """As `replace_folder`, for several targets, none inside another: all are replaced, or none.

    When all are on disk, they are replaced one right after the other; if the process is killed in between,
    the last targets do not change.
    """
    places = [Path(target).resolve() for target in targets]
    for place, target in zip(places, targets, strict=True):
        if place.exists() and not place.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(target))
        place.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as opened:
        drafts = [
            opened.enter_context(scratch_folder(place.parent, f".{place.name}.", _PARTIAL))
            for place in places
        ]
        yield drafts
        for draft in drafts:
            _sync_tree(draft)
        confirm()
        _put_all_in_place(list(zip(drafts, places, strict=True)))
        for place in places:
            _sync(place.parent)
    # Left if two names cannot be swapped in one step; only now does every target certainly exist.
    for place in places:
        _remove_leftovers(place.parent, f".{place.name}.", _REPLACED)


def require_replaceable(
    folder: Path, what: str, format_: str, is_part: Callable[[str], object], error: type[CtrError]
) -> None:
    """Raises `error` if `replace_folder` would delete anything but a `what`, such as a model, at `folder`.

    The folder of a `what` has only files for which `is_part` is true, and `format_` in its manifest.
    """
    if not folder.exists():
        return
    if not folder.is_dir():
        raise error(f"{folder}: there is a file of that name; give another folder for the {what}.")
    if folder.resolve().is_mount():
        raise error(
            f"{folder}: is a mount point, and a {what} replaces its folder as a whole; give one in it."
        )
    for name in sorted(os.listdir(folder)):
        if not is_part(name):
            raise error(
                f"{folder}: holds {name}, which is no part of a {what}; move it, or give another folder."
            )
    try:
        kind = json.loads((folder / MANIFEST).read_bytes())["format"]
    except (OSError, ValueError, KeyError, TypeError):
        return  # damaged, but its files are those of a `what`, and writing it again repairs it
    if kind != format_:
        raise error(f"{folder}: holds a {kind}, not a {what}; give another folder.")


def remove_drafts(target: str | Path) -> None:
    """Removes drafts of `target` that killed processes left; `replace_folder` does this, too."""
    place = Path(target).resolve()
    _remove_leftovers(place.parent, f".{place.name}.", _PARTIAL)


@contextmanager
def scratch_folder(parent: Path, prefix: str, suffix: str = "") -> Iterator[Path]:
    """Yields a new folder in `parent`; on leaving the `with` block, removes what then has its name.

    The folder is locked until then, or until the process ends. So folders with the same prefix and suffix
    that nobody has locked were left by killed processes; they are removed first, unless the file system has
    no locks. Raises OSError as the file system does.
    """
    _remove_leftovers(parent, prefix, suffix)
    folder, lock = _new_folder(parent, prefix, suffix)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _new_folder(parent: Path, prefix: str, suffix: str) -> tuple[Path, int]:
    """Creates a folder; returns it, and the open handle that locks it."""
    while True:
        folder = parent / f"{prefix}{secrets.token_hex(4)}{suffix}"
        folder.mkdir()
        try:
            lock = os.open(folder, os.O_RDONLY)
        except FileNotFoundError:  # another process removed it as a leftover, as it was not locked yet
            continue
        with suppress(OSError):  # a file system without locks
            fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.exists():
            return folder, lock
        os.close(lock)


def _remove_leftovers(parent: Path, prefix: str, suffix: str) -> None:
    name = re.compile(f"{re.escape(prefix)}[0-9a-f]{{8}}{re.escape(suffix)}")
    with suppress(OSError):  # for example, the folder may not be readable
        for path in [path for path in parent.iterdir() if name.fullmatch(path.name)]:
            _remove_unlocked(path)


def _remove_unlocked(folder: Path) -> None:
    with suppress(OSError):
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(lock)


def _put_all_in_place(drafts: Sequence[tuple[Path, Path]]) -> None:
    """Moves each draft to its place; if one fails, undoes the others."""
    done: list[tuple[Path, Path]] = []
    try:
        for draft, place in drafts:
            _put_in_place(draft, place)
            done.append((draft, place))
    except BaseException:
        for draft, place in done:
            if draft.exists():  # the previous folder
                _put_in_place(draft, place)
            else:
                os.rename(place, draft)
        raise


def _put_in_place(draft: Path, place: Path) -> None:
    """Moves `draft` to `place`; a folder that was there gets the draft's name."""
    try:
        os.rename(draft, place)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        if not _exchange(draft, place):
            _swap_by_renames(draft, place)


def _exchange(one: Path, other: Path) -> bool:
    """Swaps the names of two folders in one atomic step (Linux); False if system or file system cannot.

    Python has no call for this. Between two renames, no folder would have the name: a reader would miss it,
    and if the process were killed then, it would be missing until it is written again.
    """
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
    """Swaps the names of two folders if the system has no atomic step; for a moment, `place` is absent."""
    aside = draft.with_suffix(_REPLACED)
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
    """Waits until the file's content, or the folder's list of names, is on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_verified(path: Path, sha256: str, remedy: str) -> bytes:
    """The content of a file whose SHA-256 is in a manifest.

    Raises DataError, which ends with `remedy`, if it cannot be read or has another SHA-256.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); {remedy}.") from None
    if hashlib.sha256(content).hexdigest() != sha256:
        raise DataError(
            f"{path}: torn or changed since it was written; {remedy}. (Its SHA-256 is not the manifest's.)"
        )
    return content


def folder_bytes(save: Callable[[Path], None]) -> bytes:
    """The files of the folder that `save` writes, as a zip archive."""
    with tempfile.TemporaryDirectory(prefix="ctr-") as scratch, BytesIO() as content:
        save(folder := Path(scratch, "folder"))
        with ZipFile(content, "w") as archive:
            for path in sorted(folder.iterdir()):
                archive.write(path, path.name)
        return content.getvalue()


@contextmanager
def folder_of_bytes(content: bytes) -> Iterator[Path]:
    """A temporary folder, for the `with` block, with the files in `content`, which is of `folder_bytes`."""
    with tempfile.TemporaryDirectory(prefix="ctr-") as folder, ZipFile(BytesIO(content)) as archive:
        archive.extractall(folder)
        yield Path(folder)
