"""The compilation of kernels: Numba's `njit` with our own cache, and what the user sees meanwhile."""

from typing import TYPE_CHECKING

from ctr.lazy import lazy_package

if TYPE_CHECKING:
    from ctr.jit.cache import FAST_MATH, SOURCE_NAMES, intrinsic, kernel_digest, njit
    from ctr.jit.compilation import COMPILATION, in_bar, is_cached, show_compilation
    from ctr.jit.packing import pack

__getattr__ = lazy_package(__name__, __file__)
