"""`njit`: Numba's, for our kernels, with a cache on disk that knows all of their sources.

Numba compares a cached kernel with the file that it was written in, not with the files of the kernels that it
calls. After an update such a caller would go on computing the old result: hash to other slots, for instance,
than the kernels compiled afresh. Here a digest of every kernel source is part of the cache's path.
"""

from __future__ import annotations

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

FAST_MATH = {"reassoc", "contract", "arcp", "nsz"}
"""What LLVM may do to float arithmetic where a kernel asks for it: reorder sums, fuse multiply-adds, multiply
by reciprocals. Never the flags that assume NaN and infinity away: a poisoned weight has to stay visible."""

_PACKAGES = ("api", "ctr", "features", "ps")
_KEEP_S = 24 * 3600
"""A folder of other sources stays for this long after its last kernel: another process may run on them."""

_config: Any = numba.config
_Function = TypeVar("_Function", bound=Callable[..., Any])


def njit(**options: Any) -> Callable[[_Function], _Function]:
    """`numba.njit(**options)`, with our cache if it is to be cached."""

    def compiled(function: _Function) -> _Function:
        # Numba chooses a cache's place while it decorates. Other people's functions keep their own places.
        before = _config.CACHE_LOCATOR_CLASSES
        _config.CACHE_LOCATOR_CLASSES = _LOCATORS
        try:
            return numba.njit(**options)(function)  # type: ignore[no-any-return]
        finally:
            _config.CACHE_LOCATOR_CLASSES = before

    return compiled


@cache
def _folder_name() -> str:
    """Of the folder for kernels compiled from the sources as they are now."""
    digest = hashlib.sha256()
    for package in _PACKAGES:
        for folder, folders, files in os.walk(Path(__file__).parents[1] / package):
            folders.sort()
            for name in sorted(files):
                if name.endswith(".py"):
                    source = Path(folder, name).read_bytes()
                    if b"numba" in source:  # kernels import nothing of ours but kernels
                        digest.update(f"{package} {name} {len(source)} ".encode() + source)
    return f"kernels-{digest.hexdigest()[:16]}"


@cache
def _remove_outdated(parent: Path) -> None:
    """Remove folders of other sources from `parent`, except what a running process may still need."""
    with suppress(OSError):  # a folder that cannot be read, or another process that does the same
        for folder in parent.glob("kernels-*"):
            if folder.name != _folder_name() and time.time() - folder.stat().st_mtime > _KEEP_S:
                shutil.rmtree(folder)


class _ByDigest:
    """Puts a locator's cache into a folder that is named after the sources."""

    def get_cache_path(self) -> str:
        parent = Path(super().get_cache_path())  # type: ignore[misc]
        _remove_outdated(parent)
        return str(parent / _folder_name())


class UserProvided(_ByDigest, caching.UserProvidedCacheLocator):
    """In `NUMBA_CACHE_DIR`."""


class InTree(_ByDigest, caching.InTreeCacheLocator):
    """In `__pycache__` beside the source."""


class UserWide(_ByDigest, caching.UserWideCacheLocator):
    """In the user's cache folder, where the others cannot be written to."""


_LOCATORS = ",".join(f"{__name__}.{locator.__name__}" for locator in (UserProvided, InTree, UserWide))
