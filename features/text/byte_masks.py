"""64 bytes at a time as a bit mask: vector instructions that Numba has no Python form for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped,unused-ignore]  # what Numba itself compiles with
from numba import types
from numpy.typing import NDArray

from ctr.jit import intrinsic

_BYTES = ir.VectorType(ir.IntType(8), 64)
_LANES = ir.VectorType(ir.IntType(32), 64)
_BOOL = ir.IntType(1)


def _equal_bytes(typing_context: Any, buffer: Any, index: Any, byte: Any) -> Any:
    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        place = builder.gep(array.data, [arguments[1]])
        loaded = builder.load(builder.bitcast(place, _BYTES.as_pointer()), align=1)
        undefined = ir.Constant(_BYTES, ir.Undefined)
        single = builder.insert_element(undefined, arguments[2], ir.Constant(ir.IntType(32), 0))
        repeated = builder.shuffle_vector(single, undefined, ir.Constant(_LANES, [0] * 64))
        return builder.bitcast(builder.icmp_unsigned("==", loaded, repeated), ir.IntType(64))

    return types.uint64(buffer, types.intp, types.uint8), emit


def _lowest_bit(typing_context: Any, mask: Any) -> Any:
    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        # "False": the count is defined (64) when no bit is set. "True" would leave it to the processor.
        return builder.cttz(arguments[0], ir.Constant(_BOOL, 0))

    return types.uint64(types.uint64), emit


def _count_bits(typing_context: Any, mask: Any) -> Any:
    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return types.uint64(types.uint64), emit


def _equal_bytes_in_python(buffer: NDArray[np.uint8], index: np.intp | int, byte: np.uint8) -> np.uint64:
    bits = np.packbits(buffer[int(index) : int(index) + 64] == byte, bitorder="little")
    return np.uint64(int.from_bytes(bits.tobytes(), "little"))


def _lowest_bit_in_python(mask: np.uint64) -> np.uint64:
    word = int(mask)
    return np.uint64((word & -word).bit_length() - 1 if word else 64)


def _count_bits_in_python(mask: np.uint64) -> np.uint64:
    return np.uint64(int(mask).bit_count())


equal_bytes: Callable[[NDArray[np.uint8], np.intp | int, np.uint8], np.uint64] = intrinsic(
    _equal_bytes, _equal_bytes_in_python
)
"""In kernels: bit `i` tells whether `buffer[index + i] == byte`, for `i` in 0..63.

The caller sees to it that those 64 bytes exist: nothing is checked.
"""

lowest_bit: Callable[[np.uint64], np.uint64] = intrinsic(_lowest_bit, _lowest_bit_in_python)
"""In kernels: the place of the lowest bit set in a mask; 64 if none is."""

count_bits: Callable[[np.uint64], np.uint64] = intrinsic(_count_bits, _count_bits_in_python)
"""In kernels: how many bits of a mask are set."""
