"""`njit`: Numba's, for our kernels, with a cache on disk that knows all of their sources.

Numba compares a cached kernel with the file that it was written in, not with the files of the kernels that it
calls. After an update such a caller would go on computing the old result: hash to other slots, for instance,
than the kernels compiled afresh. Here a digest of every kernel source is part of the cache's path.

And what is in the cache is loaded without all that Numba could compile, which takes longer than the kernels.
What is not, one process compiles while others that need it wait. Numba would compile it in each of them, and
could file what one has compiled under the signature of another.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numba
from numba.core import caching
from numba.core.runtime.nrt import rtsys

FAST_MATH = {"reassoc", "contract", "arcp", "nsz"}
"""What LLVM may do to float arithmetic where a kernel asks for it: reorder sums, fuse multiply-adds, multiply
by reciprocals. Never the flags that assume NaN and infinity away: a poisoned weight has to stay visible."""

_PACKAGES = ("api", "ctr", "features", "ps")
_KEEP_S = 24 * 3600
"""A folder of other sources stays for this long after its last kernel: another process may run on them."""
_PATIENCE_S = 120
"""For so long another process may compile a kernel that is waited for."""

_writable: set[str] = set()
"""Folders that have been found to be."""
_Function = TypeVar("_Function", bound=Callable[..., Any])


def njit(*, cache: bool = False, **options: Any) -> Callable[[_Function], _Function]:
    """`numba.njit`, with our cache if it is to be cached."""

    def compiled(function: _Function) -> _Function:
        kernel = numba.njit(**options)(function)
        if cache and kernel is not function:  # as it is with NUMBA_DISABLE_JIT
            kernel._cache = _KernelCache(function)  # type: ignore[no-untyped-call]
        return kernel  # type: ignore[no-any-return]

    return compiled


@cache
def _folder_name() -> str:
    """Of the folder for kernels compiled from the sources as they are now."""
    digest = hashlib.sha256()
    for package in _PACKAGES:
        for folder, folders, files in os.walk(Path(__file__).parents[1] / package):
            folders[:] = sorted(name for name in folders if name != "__pycache__")
            for name in sorted(files):
                if name.endswith(".py"):
                    source = Path(folder, name).read_bytes()
                    if b"numba" in source:  # kernels import nothing of ours but kernels
                        digest.update(f"{package} {name} {len(source)} ".encode() + source)
    return f"kernels-{digest.hexdigest()[:16]}"


@cache
def _remove_outdated(parent: str) -> None:
    """Remove folders of other sources from `parent`, except what a running process may still need."""
    with suppress(OSError):  # a folder that cannot be read, or another process that does the same
        for folder in Path(parent).glob("kernels-*"):
            if folder.name != _folder_name() and time.time() - folder.stat().st_mtime > _KEEP_S:
                shutil.rmtree(folder)


class _ByDigest:
    """Puts a locator's cache into a folder that is named after the sources."""

    def get_cache_path(self) -> str:
        parent: str = super().get_cache_path()  # type: ignore[misc]
        _remove_outdated(parent)
        return os.path.join(parent, _folder_name())

    def ensure_cache_path(self) -> None:
        path = self.get_cache_path()
        if path not in _writable or not os.path.isdir(path):  # once per folder, not for every kernel in it
            super().ensure_cache_path()  # type: ignore[misc]
            _writable.add(path)


class UserProvided(_ByDigest, caching.UserProvidedCacheLocator):
    """In `NUMBA_CACHE_DIR`."""


class InTree(_ByDigest, caching.InTreeCacheLocator):
    """In `__pycache__` beside the source."""


class UserWide(_ByDigest, caching.UserWideCacheLocator):
    """In the user's cache folder, where the others cannot be written to."""


class _Placed(caching.CompileResultCacheImpl):
    """Numba's, in our places."""

    _locator_classes = [UserProvided, InTree, UserWide]  # noqa: RUF012  (as Numba declares it)


class _KernelCache(caching.FunctionCache):
    """Numba's, except that what is in it is loaded without what only compiling needs."""

    _impl_class = _Placed
    _locked: int | None = None
    """The descriptor of the file that is locked while this process compiles."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        # Numba first loads all that it could compile, and SciPy for that. When it does compile, it does so
        # once more; for what is compiled already, its runtime is enough.
        rtsys.initialize(target_context)
        with self._guard_against_spurious_io_errors():
            found = self._load_overload(sig, target_context)  # type: ignore[no-untyped-call]
            if found is None and self._lock():  # and then it may have been compiled
                found = self._load_overload(sig, target_context)  # type: ignore[no-untyped-call]
                if found is not None:
                    self._unlock()
            return found

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            super().save_overload(sig, data)  # type: ignore[no-untyped-call]
        finally:
            self._unlock()

    def _lock(self) -> bool:
        """Keep other processes from compiling this kernel until `_unlock`; False where that is impossible."""
        deadline = time.monotonic() + _PATIENCE_S
        with suppress(OSError):  # a folder that cannot be written to, or a file system without locks
            self._unlock()  # if it could not be compiled the last time
            file = os.open(f"{self._cache_path}/{self._impl.filename_base}.lock", os.O_RDWR | os.O_CREAT)
            while self._locked is None:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    self._locked = file
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        os.close(file)
                        return False
                    time.sleep(0.02)
        return self._locked is not None

    def _unlock(self) -> None:
        if self._locked is not None:
            os.close(self._locked)
            self._locked = None
