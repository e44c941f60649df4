"""`shuffled`: the same rows, in an order in which each is as likely as any other."""

from __future__ import annotations

import os
import resource
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ctr.errors import DataError
from ctr.features import Batch, DatasetSource, parse_spec, shuffled, slot_dtype, write_dataset
from ctr.features.batches import localize
from tests.ctr.sources import BatchSource, rows_between
from tests.examples import random_batch

SPEC = parse_spec("{version: 1, source: {format: libsvm}, bits: 22}", "test.yaml")


def source_of(batch: Batch) -> BatchSource:
    return BatchSource(batch, SPEC)


def numbered(rows: int) -> Batch:
    """Row `i` has the one feature `i`, so that the slots are the order of the rows."""
    return Batch(np.arange(rows + 1), np.arange(rows, dtype=np.uint32), labels=np.zeros(rows, np.float32))


def order_of(rows: int, folder: Path, seed: int, **options: Any) -> list[int]:
    batches = shuffled(source_of(numbered(rows)), 10, seed, folder, **options)
    return [slot for batch in batches for slot in batch.slots.tolist()]


def as_tuples(batches: list[Batch]) -> list[tuple[Any, ...]]:
    """Every row as (slots, values, label, weight); None stays None."""
    found = []
    for batch in batches:
        for i in range(len(batch)):
            a, b = batch.indptr[i], batch.indptr[i + 1]
            found.append(
                (
                    tuple(batch.slots[a:b].tolist()),
                    None if batch.values is None else tuple(batch.values[a:b].tolist()),
                    None if batch.labels is None else batch.labels[i].item(),
                    None if batch.weights is None else batch.weights[i].item(),
                )
            )
    return found


# --- which rows, and in which pieces ---


@pytest.mark.parametrize("bucket_rows", [7, 100, 5_000])
@pytest.mark.parametrize(("values", "weights"), [(False, False), (True, True), (True, False), (False, True)])
@pytest.mark.parametrize("bits", [10, 40])
def test_the_same_rows_in_exact_batches(
    tmp_path: Path, bits: int, values: bool, weights: bool, bucket_rows: int
) -> None:
    whole = random_batch(997, bits=bits, values=values, weights=weights)
    whole.slots[-1:] = (1 << bits) - 1
    batches = list(shuffled(source_of(whole), 64, 1, tmp_path, bucket_rows=bucket_rows))
    assert [len(batch) for batch in batches] == [64] * 15 + [37]
    for batch in batches:
        assert batch.indptr[0] == 0
        assert batch.indptr[-1] == batch.slots.size
        assert batch.slots.dtype == slot_dtype(bits)
        for array in (batch.values, batch.labels, batch.weights):
            assert array is None or array.dtype == np.float32
    before, after = as_tuples([whole]), as_tuples(batches)
    assert before != after
    assert Counter(before) == Counter(after)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("rows", [1, 2, 10, 11])
def test_few_rows(tmp_path: Path, rows: int) -> None:
    for bucket_rows in (1, 1000):
        assert sorted(order_of(rows, tmp_path, 3, bucket_rows=bucket_rows)) == list(range(rows))


def test_no_rows(tmp_path: Path) -> None:
    assert order_of(0, tmp_path, 3) == []
    assert os.listdir(tmp_path) == []


def test_rows_without_features(tmp_path: Path) -> None:
    labels = np.arange(40, dtype=np.float32)
    bare = Batch(np.zeros(41, np.int64), np.empty(0, np.uint32), labels=labels)
    batches = list(shuffled(source_of(bare), 40, 0, tmp_path, bucket_rows=9))
    assert len(batches) == 1
    assert batches[0].indptr.tolist() == [0] * 41
    assert batches[0].labels is not None
    assert sorted(batches[0].labels.tolist()) == labels.tolist()


def test_without_labels(tmp_path: Path) -> None:
    whole = random_batch(50)
    bare = Batch(whole.indptr, whole.slots)
    batches = list(shuffled(source_of(bare), 20, 0, tmp_path, bucket_rows=9))
    assert Counter(as_tuples(batches)) == Counter(as_tuples([bare]))


class Pieces(BatchSource):
    """Serves these batches as they are."""

    def __init__(self, *pieces: Any) -> None:
        super().__init__(numbered(sum(map(len, pieces))), SPEC)
        self.pieces = pieces

    def batches(self, rows: int, start: int = 0, stop: int | None = None) -> Iterator[Batch]:
        yield from self.pieces


def test_columns_that_only_some_batches_have_become_ones_in_the_others(tmp_path: Path) -> None:
    plain, full = random_batch(60), random_batch(60, seed=1, values=True, weights=True)
    ones = Batch(
        plain.indptr,
        plain.slots,
        np.ones(plain.slots.size, np.float32),
        plain.labels,
        np.ones(60, np.float32),
    )
    for pieces in ((plain, full), (full, plain)):
        batches = list(shuffled(Pieces(*pieces), 50, 0, tmp_path, bucket_rows=11))
        assert Counter(as_tuples(batches)) == Counter(as_tuples([ones, full]))


def test_labels_in_only_some_batches_are_refused(tmp_path: Path) -> None:
    whole = random_batch(10)
    with pytest.raises(ValueError, match="some have none"):
        list(shuffled(Pieces(whole, Batch(whole.indptr, whole.slots)), 5, 0, tmp_path))
    assert os.listdir(tmp_path) == []


def test_a_data_set_can_be_shuffled_too(tmp_path: Path) -> None:
    whole = random_batch(95, values=True)
    pieces = (rows_between(whole, at, min(at + 10, 95)) for at in range(0, 95, 10))
    write_dataset(pieces, SPEC, tmp_path / "set", block_rows=10)
    batches = list(shuffled(DatasetSource(tmp_path / "set"), 10, 0, tmp_path, bucket_rows=30))
    assert Counter(as_tuples(batches)) == Counter(as_tuples([whole]))
    chunks = list(shuffled(Pieces(localize(whole)), 10, 0, tmp_path, bucket_rows=30))
    assert Counter(as_tuples(chunks)) == Counter(as_tuples([whole]))


@pytest.mark.parametrize("options", [{"rows": 0}, {"bucket_rows": 0}])
def test_misuse(tmp_path: Path, options: dict[str, int]) -> None:
    given = {"source": source_of(numbered(5)), "rows": 1, "seed": 0, "folder": tmp_path, **options}
    with pytest.raises(ValueError, match="at least 1"):
        next(shuffled(**given))  # type: ignore[arg-type]


# --- the order ---


@pytest.mark.parametrize("bucket_rows", [50, 10_000])
def test_the_seed_decides_the_order(tmp_path: Path, bucket_rows: int) -> None:
    orders = [order_of(1_000, tmp_path, seed, bucket_rows=bucket_rows) for seed in (1, 1, 2, 1 << 63)]
    assert orders[0] == orders[1]
    assert orders[0] != orders[2]
    assert orders[0] != orders[3]
    assert orders[0] != list(range(1_000))


@pytest.mark.parametrize("bucket_rows", [1, 2, 100])
def test_every_order_of_four_rows_is_equally_likely(tmp_path: Path, bucket_rows: int) -> None:
    """Chi-square over the 24 orders; the seeds are fixed, so this passes always or never."""
    orders = Counter(tuple(order_of(4, tmp_path, seed, bucket_rows=bucket_rows)) for seed in range(240))
    assert len(orders) == 24
    assert (
        sum((times - 10) ** 2 / 10 for times in orders.values()) < 49.73
    )  # p = 0.001, 23 degrees of freedom


def test_where_a_row_comes_to_stand_does_not_depend_on_where_it_stood(tmp_path: Path) -> None:
    """Chi-square over (tenth of the input, tenth of the output), 20,000 rows in 40 buckets."""
    rows = 20_000
    order = np.array(order_of(rows, tmp_path, 5, bucket_rows=500))
    table = np.zeros((10, 10))
    np.add.at(table, (order * 10 // rows, np.arange(rows) * 10 // rows), 1)
    assert ((table - rows / 100) ** 2 / (rows / 100)).sum() < 124.84  # p = 0.001, 81 degrees of freedom
    # Nor do neighbours stay together.
    after = np.corrcoef(order[:-1], order[1:])[0, 1]
    assert abs(after) < 4 / np.sqrt(rows)


# --- the disk ---


def test_there_are_as_many_buckets_as_memory_asks_for(tmp_path: Path) -> None:
    """Rows of 100,000 features: 2**24 features, which is 167 rows, fill a bucket."""

    class Wide(BatchSource):
        def sample(self, rows: int) -> Batch:
            return Batch(np.array([0, 100_000]), np.zeros(100_000, np.uint32))

    files = 0

    def look(_: int) -> None:
        nonlocal files
        (folder,) = tmp_path.iterdir()
        files = len(os.listdir(folder))

    for source, options, expected in (
        (source_of(numbered(340)), {}, 1),
        (Wide(numbered(340), SPEC), {}, 3),
        (source_of(numbered(340)), {"bucket_rows": 35}, 10),
    ):
        list(shuffled(source, 10, 0, tmp_path, progress=look, **options))
        assert files == expected


def test_progress_counts_the_rows_dealt_before_the_first_batch(tmp_path: Path) -> None:
    seen: list[int] = []
    with closing(shuffled(source_of(numbered(95)), 10, 0, tmp_path, progress=seen.append)) as batches:
        assert seen == []
        next(batches)
        assert seen == [64, 95]  # pieces of 64 rows, since a bucket takes more than a batch
        list(batches)
        assert seen == [64, 95]


def test_files_are_removed_as_they_are_read_and_at_the_end(tmp_path: Path) -> None:
    left = []
    for _ in shuffled(source_of(numbered(1_000)), 10, 0, tmp_path, bucket_rows=100):
        (folder,) = tmp_path.iterdir()
        left.append(len(os.listdir(folder)))
    assert left[0] == 9
    assert left[-1] == 0
    assert left == sorted(left, reverse=True)
    assert os.listdir(tmp_path) == []


def test_a_reader_that_stops_early_leaves_nothing(tmp_path: Path) -> None:
    with closing(shuffled(source_of(numbered(1_000)), 10, 0, tmp_path, bucket_rows=100)) as batches:
        next(batches)
        assert len(os.listdir(tmp_path)) == 1
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("error", [DataError("line 7"), OSError("not a gzipped file"), KeyboardInterrupt()])
def test_a_source_that_fails_leaves_nothing(tmp_path: Path, error: BaseException) -> None:
    class Failing(BatchSource):
        def batches(self, rows: int, start: int = 0, stop: int | None = None) -> Iterator[Batch]:
            yield rows_between(self.batch, 0, 50)
            raise error

    with pytest.raises(type(error)) as caught:
        list(shuffled(Failing(numbered(100), SPEC), 10, 0, tmp_path))
    assert caught.value is error
    assert os.listdir(tmp_path) == []


def test_a_disk_that_refuses_leaves_nothing(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 12, limits[1]))
    try:
        with pytest.raises(DataError, match=rf"{tmp_path}: .*refused .*File too large.*--shuffle"):
            list(shuffled(source_of(numbered(5_000)), 10, 0, tmp_path))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert os.listdir(tmp_path) == []


def test_the_folder_is_made_or_refused(tmp_path: Path) -> None:
    assert len(order_of(20, tmp_path / "new" / "one", 0)) == 20
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="file: the temporary files"):
        order_of(20, tmp_path / "file", 0)


@pytest.mark.parametrize("change", ["cut", "gone"])
def test_a_bucket_that_someone_touched_is_an_error(tmp_path: Path, change: str) -> None:
    batches = shuffled(source_of(numbered(100)), 10, 0, tmp_path, bucket_rows=20)
    next(batches)
    (folder,) = tmp_path.iterdir()
    for path in folder.iterdir():
        if change == "cut":
            path.write_bytes(path.read_bytes()[:-1])
        else:
            path.unlink()
    with pytest.raises(DataError, match=r"cut short|No such file"):
        list(batches)
    assert os.listdir(tmp_path) == []
