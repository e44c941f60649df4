"""Folders that are written as a whole or not at all, and what killed processes have left of them."""

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
"""The file that says what is in a folder."""

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_PARTIAL, _REPLACED = ".partial", ".replaced"
_CANNOT_EXCHANGE = (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP)


@contextmanager
def replace_folder(target: str | Path, confirm: Callable[[], object] = lambda: None) -> Iterator[Path]:
    """Yield an empty folder to write into; on leaving, it becomes `target` in one step.

    What is written is on disk before it appears under the target's name, and a folder that stood there is
    removed only afterwards, so whoever opens `target` finds the old or the new one, complete. The folder is
    a hidden sibling of the target while it is written. If the body or the disk fails, or the user interrupts,
    it is removed and the old target stays as it was. The same holds if `confirm` fails, which is called just
    before that step.

    A target that is a symbolic link keeps being one; the folder it points to is replaced. Missing parents are
    made. What killed processes have left of the same target is removed. Raises OSError as the file system
    does, NotADirectoryError when `target` is a file.
    """
    with replace_folders([target], confirm) as (draft,):
        yield draft


@contextmanager
def replace_folders(
    targets: Sequence[str | Path], confirm: Callable[[], object] = lambda: None
) -> Iterator[list[Path]]:
    """As `replace_folder`, for several, none of which lies in another: all become their targets, or none.

    They do so one right after the other, when all are on disk; a process that is killed in between leaves
    the last ones as they were.
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
    # Where two names cannot be swapped at once: only now is there surely something at a place.
    for place in places:
        _remove_leftovers(place.parent, f".{place.name}.", _REPLACED)


def require_replaceable(
    folder: Path, what: str, format_: str, is_part: Callable[[str], object], error: type[CtrError]
) -> None:
    """Raise `error` if `replace_folder` would delete anything but a `what`, such as a model, at `folder`.

    That has no files but its parts, and `format_` in its manifest.
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
        return  # torn, but its files are those of a `what`: to write it again is the remedy
    if kind != format_:
        raise error(f"{folder}: holds a {kind}, not a {what}; give another folder.")


def remove_drafts(target: str | Path) -> None:
    """Remove what killed processes have left of drafts of `target`; `replace_folder` does it, too."""
    place = Path(target).resolve()
    _remove_leftovers(place.parent, f".{place.name}.", _PARTIAL)


@contextmanager
def scratch_folder(parent: Path, prefix: str, suffix: str = "") -> Iterator[Path]:
    """Yield a new folder in `parent`, and remove what is there under its name in the end.

    It is locked as long as this process lives, however that ends: folders with the same prefix and suffix
    that nobody holds a lock on are of killed processes, and are removed first. Where the file system has no
    locks, nothing is. Raises OSError as the file system does.
    """
    _remove_leftovers(parent, prefix, suffix)
    folder, lock = _new_folder(parent, prefix, suffix)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _new_folder(parent: Path, prefix: str, suffix: str) -> tuple[Path, int]:
    """A new folder, and the open handle that locks it."""
    while True:
        folder = parent / f"{prefix}{secrets.token_hex(4)}{suffix}"
        folder.mkdir()
        try:
            lock = os.open(folder, os.O_RDONLY)
        except FileNotFoundError:  # someone took it for a leftover, as it was not locked yet
            continue
        with suppress(OSError):  # a file system without locks
            fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.exists():
            return folder, lock
        os.close(lock)


def _remove_leftovers(parent: Path, prefix: str, suffix: str) -> None:
    name = re.compile(f"{re.escape(prefix)}[0-9a-f]{{8}}{re.escape(suffix)}")
    with suppress(OSError):  # such as a folder that may not be listed
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
    """Make each draft stand at its place; if one cannot, those before it are taken back."""
    done: list[tuple[Path, Path]] = []
    try:
        for draft, place in drafts:
            _put_in_place(draft, place)
            done.append((draft, place))
    except BaseException:
        for draft, place in done:
            if draft.exists():  # what stood at the place before
                _put_in_place(draft, place)
            else:
                os.rename(place, draft)
        raise


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
    """Let two folders swap names in one atomic step (Linux); False where system or file system cannot.

    Python has no call for it, and two renames leave a moment without a folder: a reader would miss it, and if
    the process is killed then, it is gone until the next one writes there.
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
    """Let two folders swap names where the system cannot do it at once: for a moment `place` is absent."""
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
    """Have the disk hold the file's content, or the folder's list of names."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sha256_of(path: Path) -> str:
    """Of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_verified(path: Path, sha256: str, remedy: str) -> bytes:
    """The content of a file whose SHA-256 a manifest names.

    Raises DataError, which ends with the remedy, when it cannot be read or is not the file that was written.
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
    """For the `with` block, the folder that `folder_bytes` took the bytes of."""
    with tempfile.TemporaryDirectory(prefix="ctr-") as folder, ZipFile(BytesIO(content)) as archive:
        archive.extractall(folder)
        yield Path(folder)
