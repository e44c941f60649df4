"""`read_out`, `weights_of`, `converted`: state and weights of a whole model, gathered block by block."""

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
"""That are computed at a time."""


def read_out(store: Store, spool: Path | None = None) -> tuple[Slots, Float32]:
    """All slots of a store that have a state, with it: sorted slots[k] and float32[k, width].

    `spool`: a folder on whose disk they are, see `_gathered`; None: in memory.
    """
    none = no_slots(store.bits), np.empty((0, store.width), np.float32)
    slots, state = _gathered(store.scan, none, spool)
    return slots, state


def weights_of(
    state: tuple[Slots, Float32], optimizer: Optimizer, spool: Path | None = None
) -> tuple[Slots, Float32]:
    """The slots of a state whose weights are not 0, with these: slots[k] and float32[k]. See `read_out`."""
    slots, numbers = state

    def blocks() -> Iterator[tuple[Slots, Float32]]:
        for first in range(0, slots.size, _ROWS):
            weights = optimizer.weights(numbers[first : first + _ROWS])
            kept = weights != 0
            yield slots[first : first + _ROWS][kept], weights[kept]

    kept_slots, weights = _gathered(blocks, (slots[:0], np.empty(0, np.float32)), spool)
    return kept_slots, weights


def converted(state: Float32, convert: Callable[[Float32], Float32], spool: Path | None = None) -> Float32:
    """What `convert` makes of the rows of a state float32[k, width], each by itself. See `read_out`.

    Where there is nothing to convert, it returns what it is given, and so does this.
    """
    if convert(none := state[:0]) is none:
        return state

    def blocks() -> Iterator[tuple[Float32]]:
        for first in range(0, len(state), _ROWS):
            yield (convert(state[first : first + _ROWS]),)

    (result,) = _gathered(blocks, (none,), spool)
    return result


def _gathered(blocks: Callable[[], Iterable[_Arrays]], none: _Arrays, spool: Path | None) -> _Arrays:
    """The arrays of all blocks, one after the other; `none` is an empty block.

    They are written to files without names in the folder `spool`, and mapped: so the model of many servers
    need not fit the memory of one machine. In memory where that is None, or has no room.
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
    """What was written to a file, as an array in its memory; `like` is one without rows."""
    file.flush()
    if isinstance(file, BytesIO):
        content: Any = file.getbuffer()
    else:
        content = mmap(file.fileno(), 0) if file.tell() else bytearray()
    return np.frombuffer(content, like.dtype).reshape(-1, *like.shape[1:])
