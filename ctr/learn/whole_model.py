"""`read_out`, `weights_of`, `converted`: state and weights of a whole model, computed block by block."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from io import BytesIO
from mmap import mmap
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctr.optimizers import Float32, Optimizer
from ctr.ps import Slots, Store
from ctr.ps.partitions import no_slots

_Arrays = tuple[NDArray[Any], ...]

_ROWS = 1 << 20
"""Rows that are computed at a time."""


def read_out(store: Store, spool: Path | None = None) -> tuple[Slots, Float32]:
    """All slots of a store that have a state, and their states: sorted slots[k] and float32[k, width].

    `spool`: a folder for the files that hold the arrays, see `_gathered`; None: in memory.
    """
    none = no_slots(store.bits), np.empty((0, store.width), np.float32)
    slots, state = _gathered(store.scan, none, spool)
    return slots, state


def weights_of(
    state: tuple[Slots, Float32], optimizer: Optimizer, spool: Path | None = None
) -> tuple[Slots, Float32]:
    """The slots with non-zero weights, and these weights: slots[k] and float32[k]; see `read_out`."""
    slots, numbers = state

    def blocks() -> Iterator[tuple[Slots, Float32]]:
        for first in range(0, slots.size, _ROWS):
            weights = optimizer.weights(numbers[first : first + _ROWS])
            nonzero = weights != 0
            yield slots[first : first + _ROWS][nonzero], weights[nonzero]

    nonzero_slots, weights = _gathered(blocks, (slots[:0], np.empty(0, np.float32)), spool)
    return nonzero_slots, weights


def converted(state: Float32, convert: Callable[[Float32], Float32], spool: Path | None = None) -> Float32:
    """The state float32[k, width] after `convert`, which converts each row by itself; see `read_out`.

    If `convert` returns its argument, as there is nothing to convert, so does this function.
    """
    none = convert(empty := state[:0])
    if none is empty:
        return state

    def blocks() -> Iterator[tuple[Float32]]:
        for first in range(0, len(state), _ROWS):
            yield (convert(state[first : first + _ROWS]),)

    (result,) = _gathered(blocks, (none,), spool)
    return result


def _gathered(blocks: Callable[[], Iterable[_Arrays]], none: _Arrays, spool: Path | None) -> _Arrays:
    """The arrays of all blocks, one after the other; `none` is an empty block.

    They are written to files without names in the folder `spool`, and mapped, so that the model of many
    servers need not fit into the memory of one machine. If `spool` is None, or has no space, they are in
    memory.
    """
    try:
        with ExitStack() as opened:
            files: list[Any] = [
                BytesIO() if spool is None else opened.enter_context(TemporaryFile(dir=spool)) for _ in none
            ]
            for block in blocks():
                for file, part, like in zip(files, block, none, strict=True):
                    file.write(np.ascontiguousarray(part, like.dtype).data)
            return tuple(_content(file, like) for file, like in zip(files, none, strict=True))
    except OSError:
        if spool is None:
            raise
    return _gathered(blocks, none, None)


def _content(file: Any, like: NDArray[Any]) -> NDArray[Any]:
    """The content of a file as a mapped array; `like` is such an array without rows."""
    file.flush()
    if isinstance(file, BytesIO):
        content: Any = file.getbuffer()
    else:
        content = mmap(file.fileno(), 0) if file.tell() else bytearray()
    return np.frombuffer(content, like.dtype).reshape(-1, *like.shape[1:])
