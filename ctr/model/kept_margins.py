"""`KeptMargins`: what a model says of rows, and their labels, without reading the rows again."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import numpy as np

from ctr.errors import DataError
from ctr.optimizers import Float32

_IN_MEMORY = 64 << 20  # bytes: 5.6 million rows with weights; what is more goes to a temporary file


@contextmanager
def _room() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DataError(
            f"the margins of the rows cannot be kept in {tempfile.gettempdir()} ({error}): make room, or let "
            "TMPDIR name another folder."
        ) from error


class KeptMargins:
    """Batches of margins, labels and weights, in a file that stays in memory while it is small.

    Leaving the `with` block deletes it.
    """

    def __init__(self, in_memory: int = _IN_MEMORY) -> None:
        self._file = tempfile.SpooledTemporaryFile(in_memory)  # noqa: SIM115  (closed by __exit__)
        self._batches: list[tuple[int, bool]] = []

    def __enter__(self) -> KeptMargins:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # on a full disk it tries to write what is left once more
            self._file.close()

    def add(self, margins: Float32, labels: Float32, weights: Float32 | None) -> None:
        """Keep a batch, float32[n] each. Raises DataError when there is no room for it."""
        arrays = (margins, labels) if weights is None else (margins, labels, weights)
        with _room():
            for array in arrays:
                self._file.write(np.ascontiguousarray(array, np.float32).data)
        self._batches.append((margins.size, weights is not None))

    def batches(self) -> Iterator[tuple[Float32, Float32, Float32 | None]]:
        """All that was kept, in that order. Raises DataError when there is no room for it."""
        with _room():  # for what is not written yet
            self._file.seek(0)
        for rows, weighted in self._batches:
            yield self._read(rows), self._read(rows), self._read(rows) if weighted else None

    def _read(self, rows: int) -> Float32:
        return np.frombuffer(bytearray(self._file.read(4 * rows)), np.float32)
