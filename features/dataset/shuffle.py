"""`shuffled`: the examples of a source in uniformly random order, however many there are."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctr.errors import DataError
from ctr.features.batches import Batch, Chunk, Slots, join_batches, slice_rows, take_rows
from ctr.features.example_source import ExampleSource
from ctr.features.folder import scratch_folder

BUCKET_ROWS = 1 << 18
_BUCKET_FEATURES = 1 << 24  # 64 MiB of slots; Criteo's 40 features per row stay below it
_MOST_BUCKETS = 1 << 16  # a uint16's values, which NumPy radix-sorts; 1.7e10 rows
_SAMPLE_ROWS = 1_000
_LEAST_PIECE_ROWS = 64


def shuffled(
    source: ExampleSource,
    rows: int,
    seed: int,
    folder: Path,
    *,
    bucket_rows: int = BUCKET_ROWS,
    progress: Callable[[int], None] | None = None,
) -> Generator[Batch, None, None]:
    """All examples of `source` in random order, `rows` per batch; the last may have fewer.

    Every order is equally likely (Rao 1961, Sandelius 1962): a first pass deals each example independently
    to one of K buckets on disk, a second permutes one bucket after the other. The same examples, `rows`,
    `seed` (0 or more) and `bucket_rows` give the same order, as long as NumPy's generators stay the same.

    The buckets are files in a temporary folder inside `folder`, which is created if missing. Together they
    are about as large as the data set that is written from the batches. Each is removed once it has been
    read; closing the iterator removes the rest. Memory holds one bucket: about `bucket_rows` rows, fewer if
    the first examples have very many features. Files of killed processes in `folder` are removed.

    `progress` is called with the number of examples dealt so far, for the last time before the first batch.
    Raises DataError if the disk refuses, and whatever `source` raises.
    """
    if rows < 1 or bucket_rows < 1:
        raise ValueError(f"rows is {rows} and bucket_rows {bucket_rows}: both must be at least 1")
    count = _bucket_count(source, bucket_rows)
    rng = np.random.default_rng(seed)
    with ExitStack() as opened:
        with _disk(folder):
            folder.mkdir(parents=True, exist_ok=True)
            place = opened.enter_context(scratch_folder(folder, ".shuffle-"))
        buckets = _Buckets(place, count)
        # With many buckets, pieces are small, so more rows are dealt at once, up to the size of a bucket.
        at_once = max(rows, min(bucket_rows, _LEAST_PIECE_ROWS * count))
        _deal(source.batches(at_once), buckets, rng, folder, progress)
        yield from _cut(buckets, rows, rng, folder)


def _bucket_count(source: ExampleSource, bucket_rows: int) -> int:
    sample = source.sample(_SAMPLE_ROWS)
    per_row = sample.slots.size / max(len(sample), 1)
    rows_each = max(1, min(bucket_rows, int(_BUCKET_FEATURES / max(per_row, 1.0))))
    return min(max(-(-source.count_rows() // rows_each), 1), _MOST_BUCKETS)


def _deal(
    batches: Iterator[Batch | Chunk],
    buckets: _Buckets,
    rng: np.random.Generator,
    folder: Path,
    progress: Callable[[int], None] | None,
) -> None:
    """The first pass: deals every row to a random bucket."""
    dealt = 0
    for batch in batches:
        with _disk(folder):
            buckets.deal(batch if isinstance(batch, Batch) else batch.to_batch(), rng)
        dealt += len(batch)
        if progress is not None:
            progress(dealt)


def _cut(buckets: _Buckets, rows: int, rng: np.random.Generator, folder: Path) -> Iterator[Batch]:
    """The second pass: the rows of each bucket in random order, `rows` at a time across buckets."""
    parts: list[Batch] = []
    wanted = rows
    for number in range(len(buckets)):
        with _disk(folder):
            bucket = buckets.take(number)
        order = rng.permutation(len(bucket))
        at = 0
        while at < order.size:
            part = order[at : at + wanted]
            parts.append(take_rows(bucket, part))
            at += part.size
            wanted -= part.size
            if wanted == 0:
                yield join_batches(parts)
                parts, wanted = [], rows
        del bucket  # before the next one takes memory
    if parts:
        yield join_batches(parts)


@dataclass(slots=True)
class _Bucket:
    """The file of one bucket: one piece for each batch that was dealt."""

    path: Path
    rows: int = 0
    features: int = 0

    def append(self, piece: Batch) -> None:
        """Writes a header (rows, features, which of the four optional arrays exist), then the arrays.

        Pieces are many and small: at 64 rows, an Arrow IPC stream takes 2.8 times as long to write and read;
        safetensors takes 3 times as long from 65,536 rows on.
        """
        header = [len(piece), piece.slots.size]
        arrays = (piece.values, piece.labels, piece.weights, piece.fields)
        header += [array is not None for array in arrays]
        lengths = np.diff(piece.indptr)
        # Opened anew each time: there may be more buckets than files that a process can have open.
        with self.path.open("ab") as file:
            for array in (np.array(header), lengths, piece.slots, *arrays):
                if array is not None:
                    file.write(array.data)
        self.rows += len(piece)
        self.features += piece.slots.size


class _Buckets:
    """Examples on disk, each in a random bucket."""

    def __init__(self, folder: Path, count: int) -> None:
        self._buckets = [_Bucket(folder / str(number)) for number in range(count)]
        self._dtype: Any = np.uint32
        self._labelled: bool | None = None
        self._has_values = self._has_weights = False
        self._field_dtype: Any = None
        self._has_fields = True

    def __len__(self) -> int:
        return len(self._buckets)

    def deal(self, batch: Batch, rng: np.random.Generator) -> None:
        """Appends each row of the batch to a random bucket."""
        labelled = batch.labels is not None
        if self._labelled not in (None, labelled):
            raise ValueError("some batches have labels and some have none")
        self._labelled = labelled
        self._has_values |= batch.values is not None
        self._has_weights |= batch.weights is not None
        self._dtype = batch.slots.dtype
        if batch.fields is None:
            self._has_fields = False
        else:
            self._field_dtype = batch.fields.dtype
        numbers = rng.integers(0, len(self), len(batch), dtype=np.uint16)
        ordered = take_rows(batch, np.argsort(numbers, kind="stable"))
        ends = np.cumsum(np.bincount(numbers, minlength=len(self))).tolist()
        first = 0
        for bucket, end in zip(self._buckets, ends, strict=True):
            if first < end:
                bucket.append(slice_rows(ordered, first, end))
            first = end

    def take(self, number: int) -> Batch:
        """The rows of a bucket in the order in which they were dealt; removes its file.

        All buckets have the same columns: if only some batches had values or weights, those of the others are
        1; if only some had field ids, these are dropped.
        """
        bucket = self._buckets[number]
        indptr = np.zeros(bucket.rows + 1, np.int64)
        slots: Slots = np.empty(bucket.features, self._dtype)
        values = np.ones(bucket.features, np.float32) if self._has_values else None
        labels = np.empty(bucket.rows, np.float32) if self._labelled else None
        weights = np.ones(bucket.rows, np.float32) if self._has_weights else None
        fields = None if self._field_dtype is None else np.empty(bucket.features, self._field_dtype)
        if bucket.rows:
            with bucket.path.open("rb") as file:
                row = feature = 0
                while row < bucket.rows:
                    header = np.empty(6, np.int64)
                    _fill(file, header)
                    rows, features = slice(row, row + header[0]), slice(feature, feature + header[1])
                    parts = (features, rows, rows, features)
                    _fill(file, indptr[1:][rows])
                    _fill(file, slots[features])
                    for array, part, there in zip(
                        (values, labels, weights, fields), parts, header[2:], strict=True
                    ):
                        if array is not None and there:
                            _fill(file, array[part])
                    row, feature = rows.stop, features.stop
            bucket.path.unlink()
        np.cumsum(indptr, out=indptr)
        return Batch(indptr, slots, values, labels, weights, fields if self._has_fields else None)


def _fill(file: BufferedReader, array: NDArray[Any]) -> None:
    if file.readinto(array.data) != array.nbytes:
        raise OSError(f"{file.name} was cut short")


@contextmanager
def _disk(folder: Path) -> Iterator[None]:
    """Raises DataError for an OSError, as the temporary files are to blame and not the input."""
    try:
        yield
    except OSError as error:
        raise DataError(
            f"{folder}: the temporary files of the shuffle were refused ({error}); they take about as much"
            " room as the data set: make room there, or build without --shuffle."
        ) from error
