"""`arrow_array`: Arrow arrays of NumPy arrays, without pandas."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from numpy.typing import NDArray


def arrow_array(values: NDArray[Any], type_: pa.DataType) -> pa.Array:
    """An array over the memory of contiguous `values`, whose items have the width of `type_`.

    `pa.array` would import pandas first, if that is installed: 0.3 s.
    """
    return pa.Array.from_buffers(type_, values.size, [None, pa.py_buffer(values)])
