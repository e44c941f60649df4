from __future__ import annotations

import gc
from weakref import ref

import numpy as np

from ctr.features.columns import Columns
from ctr.features.text import cells_of_rows


def test_rows_leave_memory_with_their_last_reference() -> None:
    cells = cells_of_rows([{"a": "1", "b": "2"}], ["a", "b"], numbers=())
    columns = Columns(cells, np.zeros(1, np.uint8), slice(None), ["a", "b"])
    beside = columns["a"].beside
    assert beside is not None
    assert beside["b"].numbers.values.tolist() == [2.0]
    alive = ref(columns)
    gc.disable()
    try:
        del columns
        assert alive() is None
    finally:
        gc.enable()
