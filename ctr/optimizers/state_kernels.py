"""Operations on the two numbers of a slot: copied as one, prefetched, and rounded with a dither."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped,unused-ignore]  # what Numba itself compiles with
from numba import types
from numpy.typing import NDArray

from ctr.jit import intrinsic, njit

_Float32 = NDArray[np.float32]

AHEAD = 80
"""Features between the one that is copied and the one that is prefetched, two examples of Criteo: 40 take
1.05 of the time of 80, and 160 the same time."""

_INT32 = ir.IntType(32)
_BYTES = ir.IntType(8).as_pointer()
_WORD = ir.IntType(64)
_PAIR = ir.VectorType(ir.FloatType(), 2)


def _is_state(array: Any) -> bool:
    """True if pairs of an array of this type are contiguous."""
    return isinstance(array, types.Array) and array.layout == "C" and array.dtype == types.float32


def _place(context: Any, builder: Any, array: tuple[Any, Any], index: Any, kind: Any) -> Any:
    """A pointer to an array's pair, for a load or a store of this kind."""
    data = context.make_array(array[0])(context, builder, array[1]).data
    return builder.bitcast(builder.gep(builder.bitcast(data, _WORD.as_pointer()), [index]), kind)


def _prefetch_code(typing_context: Any, state: Any, index: Any) -> Any:
    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = _place(context, builder, (signature.args[0], arguments[0]), arguments[1], _BYTES)
        type_of_it = ir.FunctionType(ir.VoidType(), [_BYTES, _INT32, _INT32, _INT32])
        prefetch = builder.module.declare_intrinsic("llvm.prefetch", [_BYTES], type_of_it)
        # For reading, in all caches, data; prefetching for writing takes as long.
        builder.call(prefetch, [place, *(ir.Constant(_INT32, number) for number in (0, 3, 1))])
        return context.get_dummy_value()

    return (types.void(state, types.intp), emit) if _is_state(state) else None


def _copy_code(typing_context: Any, state: Any, index: Any, row: Any, j: Any) -> Any:
    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source, target = (
            _place(context, builder, (signature.args[k], arguments[k]), arguments[k + 1], _WORD.as_pointer())
            for k in (0, 2)
        )
        builder.store(builder.load(source, align=4), target, align=4)
        return context.get_dummy_value()

    fit = _is_state(state) and _is_state(row)
    return (types.void(state, types.intp, row, types.intp), emit) if fit else None


def _add_code(typing_context: Any, state: Any, index: Any, first: Any, second: Any) -> Any:
    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = _place(context, builder, (signature.args[0], arguments[0]), arguments[1], _PAIR.as_pointer())
        pair = ir.Constant(_PAIR, ir.Undefined)
        for number, change in enumerate(arguments[2:]):
            pair = builder.insert_element(pair, change, ir.Constant(_INT32, number))
        builder.store(builder.fadd(builder.load(place, align=4), pair), place, align=4)
        return context.get_dummy_value()

    return (types.void(state, types.intp, types.float32, types.float32), emit) if _is_state(state) else None


def _prefetch_in_python(state: _Float32, index: int) -> None:
    pass


def _copy_in_python(state: _Float32, index: int, row: _Float32, j: int) -> None:
    row[2 * j : 2 * j + 2] = state[index]


def _add_in_python(state: _Float32, index: int, first: np.float32, second: np.float32) -> None:
    state[index] += np.array([first, second], np.float32)


_prefetch: Callable[[_Float32, int], None] = intrinsic(_prefetch_code, _prefetch_in_python)
_copy_pair: Callable[[_Float32, int, _Float32, int], None] = intrinsic(_copy_code, _copy_in_python)

add_pair: Callable[[_Float32, int, np.float32, np.float32], None] = intrinsic(_add_code, _add_in_python)
"""In kernels: add two numbers to those of a slot in float32[u, 2], without any checks."""


@njit(nogil=True, cache=True, inline="always")
def gather_pairs(state: _Float32, indices: NDArray[np.uint32], first: int, m: int, row: _Float32) -> None:
    """Copy the pairs of `indices[first : first + m]` to `row`, alternating, and prefetch later ones."""
    ahead = first + AHEAD if first + m + AHEAD <= indices.size else first
    # Slices, as otherwise each index is checked for being negative: training takes 1.1 of the time.
    local, later = indices[first : first + m], indices[ahead : ahead + m]
    for j in range(m):
        _prefetch(state, later[j])
        _copy_pair(state, local[j], row, j)


GOLDEN = np.uint32(0x9E3779B9)  # 2**32 divided by the golden ratio
LAST_PLACE = np.float32(2.0**-55)  # of a number in units of its exponent, for a dither of 32 bits
_EXPONENT = np.uint32(0x7F800000)


@njit(nogil=True, cache=True, inline="always")
def unit(x: np.float32) -> np.float32:
    """The largest power of two that is at most |x|, whose last place is `2**-23` of it; 0 for 0."""
    return np.uint32(np.float32(x).view(np.uint32) & _EXPONENT).view(np.float32)
