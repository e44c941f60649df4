"""`pack`: makes a named tuple of many arrays a cheap argument of a kernel.

At every call, Numba determines the type of each array of a named tuple and reads its fields. That takes
0.15 us, and 8 us for the 58 arrays of `transform_rows`. `pack` writes them once in the kernel's memory
layout, from where the kernel reads them.
"""

from __future__ import annotations

from typing import Any, TypeVar

import numba
import numpy as np
from numba.core import types
from numba.core.datamodel.models import TupleModel
from numba.extending import NativeValue, register_model, unbox

_Values = TypeVar("_Values", bound=tuple[Any, ...])


def pack(values: _Values) -> _Values:
    """A NamedTuple for kernels, with the same attributes; its arrays are not copied.

    It may hold arrays, whose elements may change, integers, booleans, and NamedTuples of these. Any number of
    threads and forked processes may use the result. Raises TypeError for other values.
    """
    return _Packed(values)  # type: ignore[return-value]


class _Packed:
    """The packed values; kernels in plain Python (`NUMBA_DISABLE_JIT=1`) read their attributes."""

    def __init__(self, values: Any) -> None:
        self._values = values  # keeps the arrays alive
        self._memory = np.array(_content(values), _layout(values))
        self.address = self._memory.ctypes.data
        self._numba_type_ = PackedType(numba.typeof(values))  # type: ignore[no-untyped-call]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._values, name)

    def __reduce__(self) -> Any:
        return pack, (self._values,)  # with an address of its own


def _content(value: Any) -> Any:
    """A value in the layout of Numba's data models."""
    if isinstance(value, tuple):
        return tuple(_content(each) for each in value)
    if isinstance(value, np.ndarray):
        no_owner = 0  # no references are counted
        place = (no_owner, no_owner, value.size, value.itemsize, value.ctypes.data)
        return (*place, *value.shape, *value.strides)
    return value


def _layout(value: Any) -> Any:
    """The types of `_content`, aligned as by LLVM."""
    if isinstance(value, tuple):
        return np.dtype([(str(i), _layout(each)) for i, each in enumerate(value)], align=True)
    if isinstance(value, np.ndarray):
        return np.dtype([(str(i), np.int64) for i in range(5 + 2 * value.ndim)], align=True)
    if isinstance(value, (bool, int, np.uint64)):
        return np.array(value).dtype
    raise TypeError(f"a {type(value).__name__} cannot be packed; arrays, integers and booleans can")


class PackedType(types.NamedTuple):
    """A NamedTuple inside kernels, an address outside."""

    def __init__(self, of: types.NamedTuple) -> None:
        super().__init__(of.types, of.instance_class)  # type: ignore[no-untyped-call]
        self.name = f"Packed({self.name})"


register_model(PackedType)(TupleModel)


@unbox(PackedType)  # type: ignore[no-untyped-call]
def _load(kind: PackedType, packed: Any, context: Any) -> NativeValue:
    address = context.pyapi.object_getattr_string(packed, "address")
    pointer = context.pyapi.long_as_voidptr(address)
    context.pyapi.decref(address)
    model = context.context.data_model_manager[kind]
    pointer = context.builder.bitcast(pointer, model.get_data_type().as_pointer())
    return NativeValue(  # type: ignore[no-untyped-call]
        model.load_from_data_pointer(context.builder, pointer)
    )
