"""`njit`: Numba's `njit` for our kernels, with a cache on disk that depends on all kernel sources.

Numba compares a cached kernel with its own source file, but not with the files of the kernels that it calls.
After an update, such a caller would still give the old result, and for instance hash to other slots than
kernels that were compiled again. Here a digest of all kernel sources is part of the cache's path.

Cached kernels are loaded as machine code, without what only compiling needs, which takes longer to load than
the kernels. A kernel that is not in the cache is compiled by one process while others wait for it. Numba
would compile it in each of them, and could store one kernel under the signature of another.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import inspect
import os
import platform
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
import numba.extending
from llvmlite import binding  # type: ignore[import-untyped,unused-ignore]  # what Numba itself links with
from numba.core import caching
from numba.core.compiler_lock import global_compiler_lock
from numba.core.runtime import _nrt_python  # type: ignore[attr-defined]  # in C
from numba.core.types import unliteral

from ctr.jit.compilation import COMPILATION
from ctr.jit.library import kernel_libraries

FAST_MATH = {"reassoc", "contract", "arcp", "nsz"}
"""What LLVM may do to float arithmetic if a kernel allows it: reorder sums, fuse multiply-adds, multiply by
reciprocals. Never the flags that assume no NaN or infinity: a broken weight must stay visible."""

_BASELINE = "x86-64-v3", ("avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe")
"""A processor known to LLVM, and the features that code for it needs, as x86 processors since 2013 have."""

SOURCE_NAMES = ("kernels.py", "byte_masks.py", "hashing.py", "row_status.py")
"""The endings of the names of modules with kernels, or with parts of them."""
_KEEP_S = 24 * 3600
"""How long a folder of other sources stays after its last kernel: a running process may still need it."""
_PATIENCE_S = 120
"""How long to wait for another process that compiles a kernel."""


def _compile_for_baseline() -> None:
    """Compile for a common processor, if this one has its features and the user has not chosen another.

    Results are then bit-identical on all such processors, also in clusters of different machines, and kernels
    compiled on one run on the others. It costs nothing: Numba's code for AVX-512 is not faster.
    """
    config: Any = numba.config
    name, needed = _BASELINE
    if platform.machine() == "x86_64" and config.CPU_NAME is None and config.CPU_FEATURES is None:
        features = binding.get_host_cpu_features()
        if all(features.get(feature, False) for feature in needed):
            config.CPU_NAME, config.CPU_FEATURES = name, ""


_compile_for_baseline()

_writable: set[str] = set()
"""Folders that are known to be writable."""
_Function = TypeVar("_Function", bound=Callable[..., Any])


def njit(*, cache: bool = False, borrows: bool = False, **options: Any) -> Callable[[_Function], _Function]:
    """`numba.njit`, with our cache if `cache` is true.

    `borrows`: the kernel neither creates nor returns arrays, but uses those of its caller, so that references
    need not be counted. Numba counts them atomically at each call of a kernel by another. Without that, the
    scanner of JSON lines, whose kernels call one another for each value, takes a quarter of the time (0.08
    instead of 0.29 ms for 100 rows of Criteo).
    """
    if borrows:
        options["_nrt"] = False

    def compiled(function: _Function) -> _Function:
        kernel = numba.njit(**options)(function)
        if cache and kernel is not function:  # they are the same with NUMBA_DISABLE_JIT
            if not function.__code__.co_filename.endswith(SOURCE_NAMES):
                raise ValueError(f"{function.__module__} holds kernels: name it `kernels` or `..._kernels`")
            kernel._cache = _KernelCache(function)
            kernel.compile = kernel._cache.ends_with(kernel.compile)
            # Numba searches all installed packages for extensions before the first call, which takes 25 ms,
            # and again before it compiles. A compiled kernel needs no extensions.
            kernel._compilation_chain_init_hook = _nothing
            _call_as_part(kernel, options)
        return kernel  # type: ignore[no-any-return]

    return compiled


def _call_as_part(kernel: Any, options: Mapping[str, Any]) -> None:
    """Make this kernel a part of kernels that call it, neither wrapped for Python nor cached."""
    parts: list[Any] = []

    def part() -> Any:
        if not parts:  # created on demand, as few kernels are called by others that have to be compiled
            bare: Any = {**options, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
            parts.append(numba.njit(**bare)(kernel.py_func))
        return parts[0]

    # Numba would compile it again for each literal, as for each type; LLVM knows literals when it inlines.
    kernel.get_call_template = lambda args, kws: part().get_call_template([*map(unliteral, args)], kws)
    kernel.get_overload = lambda signature: part().get_overload(signature)


def _nothing() -> None:
    """In place of what Numba does before a kernel's first call."""


def intrinsic(code: Callable[..., Any], in_python: Callable[..., Any]) -> Any:
    """LLVM instructions for kernels; with `NUMBA_DISABLE_JIT=1` the function `in_python` instead."""
    disabled: bool = numba.config.DISABLE_JIT  # type: ignore[attr-defined,unused-ignore]  # set from outside
    return in_python if disabled else numba.extending.intrinsic(code)


@cache
def kernel_digest() -> str:
    """16 hex digits that identify the sources of all kernels."""
    digest = hashlib.sha256(Path(__file__).read_bytes())  # has options of all kernels
    for name in ("library.py", "packing.py"):
        digest.update(Path(__file__).with_name(name).read_bytes())
    # In a checkout ctr/features, ctr/ps and ctr/api are links.
    for folder, folders, files in os.walk(Path(__file__).parents[1], followlinks=True):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in sorted(files):
            if name.endswith(SOURCE_NAMES):  # kernels import nothing of ours but kernels
                source = Path(folder, name).read_bytes()
                digest.update(f"{name} {len(source)} ".encode() + source)
    return digest.hexdigest()[:16]


def _folder_name() -> str:
    """The name of the folder for kernels compiled from the current sources."""
    return f"kernels-{kernel_digest()}"


@cache
def _remove_outdated(parent: str) -> None:
    """Remove folders of other sources from `parent`, except those that a running process may still need."""
    with suppress(OSError):  # an unreadable folder, or another process that does the same
        for folder in Path(parent).glob("kernels-*"):
            if folder.name != _folder_name() and time.time() - folder.stat().st_mtime > _KEEP_S:
                shutil.rmtree(folder)


class _ByDigest:
    """Puts a locator's cache into a folder named after the digest of the sources."""

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
    """A cache in `NUMBA_CACHE_DIR`, which may be read-only once it has kernels, as in an image."""

    def ensure_cache_path(self) -> None:
        try:
            super().ensure_cache_path()
        except OSError:
            if not os.path.isdir(self.get_cache_path()):
                raise


class InTree(_ByDigest, caching.InTreeCacheLocator):
    """A cache in `__pycache__` beside the source."""


class UserWide(_ByDigest, caching.UserWideCacheLocator):
    """A cache in the user's cache folder, if the other folders are not writable."""


class _Placed(caching.CompileResultCacheImpl):
    """Numba's cache, in our folders."""

    _locator_classes = [UserProvided, InTree, UserWide]  # noqa: RUF012  (as Numba declares it)


@cache
def _link_runtime() -> None:
    """Register the C functions of Numba's runtime with LLVM, which are all that compiled kernels need of it.

    `rtsys.initialize` also compiles functions for inlining, 20 ms, which only happens before compiling here.
    """
    for name, address in _nrt_python.c_helpers.items():
        binding.add_symbol(name if name.startswith("_") else f"NRT_{name}", address)


class _KernelCache(caching.FunctionCache):
    """Numba's cache, which loads kernels without what only compiling needs."""

    _impl_class = _Placed
    _locked: int | None = None
    """The descriptor of the file that is locked while this process compiles."""
    _shipped: caching.IndexDataCacheFile | None = None
    """What a wheel has beside the source, where that cannot be written to."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._is_compiling = False
        self._is_open = False  # until the first call, as a command calls few of the kernels that it imports

    def open(self) -> None:
        """Find the cache on disk."""
        if not self._is_open:
            super().__init__(self._function)  # type: ignore[no-untyped-call]
            self._is_open = True
            if isinstance(self._impl.locator, UserWide):
                in_tree, file, locator = cast(Any, (InTree, caching.IndexDataCacheFile, self._impl.locator))
                shipped = in_tree(self._function, inspect.getfile(self._function)).get_cache_path()
                if os.path.isdir(shipped):
                    self._shipped = file(shipped, self._impl.filename_base, locator.get_source_stamp())

    def _load_overload(self, sig: Any, target_context: Any) -> Any:
        load: Any = super()._load_overload
        overload = load(sig, target_context)
        if overload is None and self._shipped is not None:
            own, self._cache_file = self._cache_file, self._shipped
            try:
                overload = load(sig, target_context)
            finally:
                self._cache_file = own
        return overload

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        self.open()
        # Numba would first load everything that it needs to compile, even SciPy. It does so before compiling.
        _link_runtime()
        with self._guard_against_spurious_io_errors():
            overload = self._load_overload(sig, target_context)
            if overload is None:
                self._begin()
                if self._lock():  # another process may have compiled it meanwhile
                    overload = self._load_overload(sig, target_context)
            return overload

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            super().save_overload(sig, data)  # type: ignore[no-untyped-call]
        except OSError as error:  # the kernel can be used, and the next process will compile it again
            if error.errno not in (errno.EROFS, errno.EACCES):
                raise

    def ends_with(self, compile_kernel: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """`compile_kernel`, which first asks this cache, and afterwards ends what the cache began."""

        def compile_and_end(signature: Any) -> Any:
            with global_compiler_lock:  # as `compile_kernel` does: no other thread may begin before the end
                try:
                    with kernel_libraries():
                        return compile_kernel(signature)
                finally:
                    self._end()

        return compile_and_end

    def _begin(self) -> None:
        self._end()  # if it calls itself
        self._is_compiling = True
        COMPILATION.begin()

    def _end(self) -> None:
        self._unlock()
        if self._is_compiling:
            self._is_compiling = False
            COMPILATION.end()

    def _lock(self) -> bool:
        """Keep other processes from compiling this kernel until `_unlock`; False if that is impossible."""
        deadline = time.monotonic() + _PATIENCE_S
        with suppress(OSError):  # a folder that is not writable, or a file system without locks
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
