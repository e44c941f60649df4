"""Hashed data sets: what is written is read back, and what is torn is noticed."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numba import njit

from ctr.errors import DataError
from ctr.features.batches.batch import Batch, Chunk, slot_dtype
from ctr.features.dataset.source import DatasetSource
from ctr.features.dataset.writer import DatasetDraft, dataset_folders, write_dataset
from ctr.features.spec import FeatureSpec, parse_spec

AGAIN = "ctr features build"


def spec_of(bits: int = 22) -> FeatureSpec:
    return parse_spec(f"{{version: 1, source: {{format: libsvm}}, bits: {bits}}}", "test.yaml")


def random_batch(
    rows: int, *, bits: int = 22, seed: int = 0, values: bool = False, weights: bool = False
) -> Batch:
    """Rows of 0 to 12 features, the largest slot among them."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, 13, rows)
    slots = rng.integers(0, 1 << bits, lengths.sum(), dtype=np.uint64).astype(slot_dtype(bits))
    slots[-1:] = (1 << bits) - 1
    return Batch(
        indptr=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        slots=slots,
        values=rng.normal(size=slots.size).astype(np.float32) if values else None,
        labels=(rng.random(rows) < 0.3).astype(np.float32),
        weights=rng.exponential(size=rows).astype(np.float32) + 1 if weights else None,
    )


def cut(batch: Batch, rows: int) -> Iterator[Batch]:
    """The batch `rows` rows at a time."""
    for a in range(0, len(batch), rows):
        b = min(a + rows, len(batch))
        yield rows_between(batch, a, b)


def rows_between(batch: Batch, a: int, b: int) -> Batch:
    cells = slice(batch.indptr[a], batch.indptr[b])
    return Batch(
        indptr=batch.indptr[a : b + 1] - batch.indptr[a],
        slots=batch.slots[cells],
        values=None if batch.values is None else batch.values[cells],
        labels=None if batch.labels is None else batch.labels[a:b],
        weights=None if batch.weights is None else batch.weights[a:b],
    )


def same(read: Batch | Chunk, wrote: Batch) -> None:
    slots = read.slots[read.indices] if isinstance(read, Chunk) else read.slots
    assert slots.dtype == wrote.slots.dtype
    assert np.array_equal(slots, wrote.slots)
    assert np.array_equal(read.indptr, wrote.indptr)
    for name in ("values", "labels", "weights"):
        mine, theirs = getattr(read, name), getattr(wrote, name)
        assert (mine is None) == (theirs is None)
        if mine is not None:
            assert mine.dtype == np.float32
            assert np.array_equal(mine, theirs)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Batch]:
    """A data set of 205 rows in blocks of 10, that is files of 40, and what was written. For readers only."""
    path, whole = tmp_path_factory.mktemp("kept") / "set", random_batch(205, values=True, weights=True)
    write_dataset(cut(whole, 10), spec_of(), path, block_rows=10)
    return path, whole


@pytest.fixture
def built(kept: tuple[Path, Batch], tmp_path: Path) -> tuple[Path, Batch]:
    """A copy of it."""
    return shutil.copytree(kept[0], tmp_path / "set"), kept[1]


@pytest.mark.parametrize("bits", [1, 22, 32, 33, 40])
@pytest.mark.parametrize("values", [False, True])
@pytest.mark.parametrize("weights", [False, True])
def test_write_then_read_is_the_identity(tmp_path: Path, bits: int, values: bool, weights: bool) -> None:
    whole = random_batch(95, bits=bits, values=values, weights=weights)
    seen: list[int] = []
    with dataset_folders([tmp_path / "set"]) as (folder,):
        draft = DatasetDraft(spec_of(bits), folder, block_rows=10)
        assert draft.write(cut(whole, 10), progress=seen.append) == 95
        manifest = draft.finish()
    assert seen == [*range(10, 91, 10), 95]
    assert manifest.rows == 95
    assert manifest.positives == np.sum(whole.labels == 1)
    assert manifest.features == whole.slots.size
    assert (manifest.has_values, manifest.has_weights, manifest.has_labels) == (values, weights, True)
    assert [part.rows for part in manifest.parts] == [40, 40, 15]

    source = DatasetSource(tmp_path / "set", verify=True)
    assert source.manifest == manifest
    assert source.spec == spec_of(bits)
    assert source.count_rows() == 95
    assert source.bad_rows.count == 0
    read = list(source.batches(10))
    assert len(read) == 10
    for chunk, wrote in zip(read, cut(whole, 10), strict=True):
        assert isinstance(chunk, Chunk)
        same(chunk, wrote)
        assert np.array_equal(chunk.slots, np.unique(wrote.slots))


@pytest.mark.parametrize("rows", [1, 3, 10, 20, 37, 40, 41, 100, 205, 999])
@pytest.mark.parametrize(
    ("start", "stop"), [(0, None), (10, 90), (13, 14), (7, 199), (39, 41), (200, 9999), (90, 90)]
)
def test_any_rows_can_be_read_in_any_pieces(
    kept: tuple[Path, Batch], rows: int, start: int, stop: int | None
) -> None:
    path, whole = kept
    source = DatasetSource(path)
    end = min(205, 205 if stop is None else stop)
    pieces = list(source.batches(rows, start, stop))
    assert [len(piece) for piece in pieces] == [min(rows, end - a) for a in range(start, end, rows)]
    for piece, wrote in zip(pieces, cut(rows_between(whole, start, end), rows), strict=True):
        same(piece, wrote)
        assert np.array_equal(piece.slots, np.unique(wrote.slots))
    assert source.fraction_read == end / 205


def test_sample_is_the_first_rows(built: tuple[Path, Batch]) -> None:
    path, whole = built
    same(DatasetSource(path).sample(16), rows_between(whole, 0, 16))
    same(DatasetSource(path).sample(1000), whole)


def test_nonsense_pieces_are_refused(built: tuple[Path, Batch]) -> None:
    with pytest.raises(ValueError, match="rows is 0"):
        next(DatasetSource(built[0]).batches(0))
    with pytest.raises(ValueError, match="start -1"):
        next(DatasetSource(built[0]).batches(10, start=-1))


def test_only_some_blocks_have_values(tmp_path: Path) -> None:
    plain, valued = random_batch(10), random_batch(10, values=True, seed=1)
    write_dataset([plain, valued], spec_of(), tmp_path / "set", block_rows=10)
    source = DatasetSource(tmp_path / "set")
    first, second = source.batches(10)
    same(first, plain)
    same(second, valued)
    (both,) = source.batches(20)
    assert both.values is not None
    assert both.values.tolist() == [1.0] * plain.slots.size + valued.values.tolist()  # type: ignore[union-attr]


def test_rows_without_any_feature(tmp_path: Path) -> None:
    empty = Batch(np.zeros(11, np.int64), np.empty(0, np.uint32), labels=np.zeros(10, np.float32))
    write_dataset([empty], spec_of(), tmp_path / "set", block_rows=10)
    source = DatasetSource(tmp_path / "set")
    same(next(source.batches(10)), empty)
    same(next(source.batches(3)), rows_between(empty, 0, 3))


def test_data_without_labels_opens_for_prediction_only(tmp_path: Path) -> None:
    batch = random_batch(5)
    bare = Batch(batch.indptr, batch.slots)
    assert not write_dataset([bare], spec_of(), tmp_path / "set").has_labels
    same(next(DatasetSource(tmp_path / "set", labels="ignored").batches(5)), bare)
    with pytest.raises(DataError, match="no labels"):
        DatasetSource(tmp_path / "set")


def test_ignored_labels_are_dropped(built: tuple[Path, Batch]) -> None:
    path, whole = built
    source = DatasetSource(path, labels="ignored")
    bare = Batch(whole.indptr, whole.slots, whole.values, None, whole.weights)
    same(source.sample(1000), bare)
    for rows in (10, 15):
        for piece, wrote in zip(source.batches(rows), cut(bare, rows), strict=True):
            same(piece, wrote)


# --- the zero-copy path ---


def files_mapped(path: Path) -> int:
    maps = Path("/proc/self/maps").read_text()
    return len({line.split()[-1] for line in maps.splitlines() if f"{path}/shard-" in line})


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="counts memory maps in /proc")
def test_a_file_stays_mapped_only_while_its_chunks_are_in_use(built: tuple[Path, Batch]) -> None:
    path = built[0].resolve()
    source = DatasetSource(path)
    batches = source.batches(10)
    mapped = []
    while (chunk := next(batches, None)) is not None:
        mapped.append(files_mapped(path))
        labels = chunk.labels
    assert len(mapped) == 21
    assert max(mapped) <= 2  # the file just left, whose last chunk is still in hand, and the next
    del chunk
    assert files_mapped(path) == 1
    del labels
    assert files_mapped(path) == 0


def test_chunks_may_be_written_to_without_touching_the_file(built: tuple[Path, Batch]) -> None:
    path, whole = built
    source = DatasetSource(path)
    for chunk in source.batches(10):
        assert chunk.labels is not None
        chunk.labels[:] = 7
        chunk.slots[:] = 7
    for chunk, wrote in zip(DatasetSource(path, verify=True).batches(10), cut(whole, 10), strict=True):
        same(chunk, wrote)


def test_a_kernel_is_not_compiled_anew_for_mapped_arrays(built: tuple[Path, Batch]) -> None:
    path, whole = built

    @njit
    def touch(indptr: Any, slots: Any, values: Any, labels: Any) -> float:
        return slots[0] + values[0] + labels[0] + indptr[0]

    touch(whole.indptr, whole.slots, whole.values, whole.labels)
    for chunk in DatasetSource(path).batches(10):
        touch(chunk.indptr, chunk.slots, chunk.values, chunk.labels)
        assert chunk.slots.flags.aligned
    assert len(touch.signatures) == 1


# --- what was done to the files ---


def torn(path: Path, message: str, *, verify: bool = False) -> None:
    """Reading it all must fail with a DataError that says this, names the folder and the remedy."""
    with pytest.raises(DataError, match=message) as caught:
        list(DatasetSource(path, verify=verify).batches(10))
    assert str(path) in str(caught.value)
    assert AGAIN in str(caught.value)


def test_a_missing_folder_or_another_thing(tmp_path: Path) -> None:
    torn(tmp_path / "nowhere", "does not exist")
    torn(tmp_path, "without manifest.json")
    (tmp_path / "file").write_text("")
    torn(tmp_path / "file", "is a file")


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '{"format": "ctr hashed data set"}', "\x00\xff"])
def test_a_torn_manifest(built: tuple[Path, Batch], text: str) -> None:
    (built[0] / "manifest.json").write_text(text)
    torn(built[0], "not the manifest")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("format", "ctr model", "is a ctr model"),
        ("format_version", 3, "format version 3"),
        ("rows", 206, "do not add up"),
        ("rows", "205", "rows: '205' is not what this program writes there"),
        ("rows", "9" * 400, "rows: '9{79} is not what"),
        ("bits", 41, "bits: 41 is not what"),
        ("block_rows", 7, "do not fit together"),
        ("spec_fingerprint", "0" * 64, "gives the transform"),
        ("surprise", 1, "surprise: "),
    ],
)
def test_an_edited_manifest(built: tuple[Path, Batch], key: str, value: object, message: str) -> None:
    edit(built[0], lambda data: data.update({key: value}))
    torn(built[0], message)


def edit(path: Path, change: Any) -> None:
    data = json.loads((path / "manifest.json").read_text())
    change(data)
    (path / "manifest.json").write_text(json.dumps(data))


def test_a_manifest_that_points_out_of_the_folder(built: tuple[Path, Batch]) -> None:
    edit(built[0], lambda data: data["shards"][0].update(name="../shard-00000.arrow"))
    torn(built[0], "shards.0.name")


def test_another_or_no_spec(built: tuple[Path, Batch]) -> None:
    (built[0] / "features.yaml").write_text(spec_of(21).to_yaml())
    torn(built[0], "gives the transform")
    (built[0] / "features.yaml").write_text("version: [")
    torn(built[0], "features.yaml")
    (built[0] / "features.yaml").unlink()
    torn(built[0], "cannot be read")


def test_a_file_cut_short_or_gone_is_noticed_on_opening(built: tuple[Path, Batch]) -> None:
    part = built[0] / "shard-00003.arrow"
    whole = part.read_bytes()
    part.write_bytes(whole[:-1])
    with pytest.raises(DataError, match=rf"shard-00003.*{len(whole) - 1} bytes.*{AGAIN}"):
        DatasetSource(built[0])
    part.unlink()
    with pytest.raises(DataError, match=rf"shard-00003.*No such file.*{AGAIN}"):
        DatasetSource(built[0])


def test_a_file_lost_while_reading(built: tuple[Path, Batch]) -> None:
    batches = DatasetSource(built[0]).batches(10)
    next(batches)
    (built[0] / "shard-00001.arrow").unlink()
    with pytest.raises(DataError, match=r"shard-00001.*No such file"):
        list(batches)


def test_one_flipped_bit_is_found_by_verify(built: tuple[Path, Batch]) -> None:
    flip(built[0] / "shard-00002.arrow", -2000)
    torn(built[0], r"shard-00002.*SHA-256", verify=True)


def test_verify_reads_only_the_files_that_are_used(built: tuple[Path, Batch]) -> None:
    flip(built[0] / "shard-00002.arrow", -2000)
    assert sum(map(len, DatasetSource(built[0], verify=True).batches(10, stop=80))) == 80


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x80
    path.write_bytes(data)


def test_damage_never_leads_a_kernel_out_of_its_arrays(built: tuple[Path, Batch]) -> None:
    """Whatever byte is changed, reading either fails cleanly or gives chunks that fit together."""
    part = built[0] / "shard-00000.arrow"
    whole = part.read_bytes()
    refused = 0
    for position in range(0, len(whole), 23):
        flip(part, position)
        try:
            for chunk in DatasetSource(built[0]).batches(10, stop=40):
                assert isinstance(chunk, Chunk)
                assert chunk.indptr[-1] == chunk.indices.size
                assert np.all(np.diff(chunk.indptr) >= 0)
                assert np.all(chunk.indices < chunk.slots.size)
                assert np.all(chunk.slots < 1 << 22)
                assert chunk.labels is not None
                assert len(chunk) == chunk.labels.size == 10
        except DataError:
            refused += 1
        part.write_bytes(whole)
    assert refused > 20


# --- what writing must not do ---


def test_an_old_data_set_is_replaced(built: tuple[Path, Batch]) -> None:
    write_dataset([random_batch(5)], spec_of(), built[0])
    assert DatasetSource(built[0]).count_rows() == 5
    assert sorted(os.listdir(built[0])) == ["features.yaml", "manifest.json", "shard-00000.arrow"]
    assert os.listdir(built[0].parent) == ["set"]


def test_a_data_set_that_is_built_again_is_not_mixed_with_the_one_being_read(
    built: tuple[Path, Batch],
) -> None:
    path, whole = built
    source = DatasetSource(path)
    batches = source.batches(40)
    same(next(batches), rows_between(whole, 0, 40))
    write_dataset(cut(whole, 10), spec_of(), path, block_rows=10)  # of equal size, and equal content
    with pytest.raises(DataError, match="changed or built again while it was read"):
        list(batches)
    assert DatasetSource(path).manifest.digest == source.manifest.digest
    write_dataset(cut(random_batch(205, seed=1), 10), spec_of(), path, block_rows=10)
    assert DatasetSource(path).manifest.digest != source.manifest.digest


def test_a_file_that_is_written_over_is_noticed(built: tuple[Path, Batch]) -> None:
    path, _ = built
    batches = DatasetSource(path).batches(40)
    next(batches)
    (path / "shard-00001.arrow").write_bytes((path / "shard-00001.arrow").read_bytes())
    with pytest.raises(DataError, match="changed or built again while it was read"):
        list(batches)


def test_a_torn_data_set_may_be_built_again(built: tuple[Path, Batch]) -> None:
    (built[0] / "manifest.json").write_text("{")
    write_dataset([random_batch(5)], spec_of(), built[0])
    assert DatasetSource(built[0]).count_rows() == 5


def test_anything_else_is_not_overwritten(built: tuple[Path, Batch], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    with pytest.raises(DataError, match="a file of that name"):
        write_dataset([random_batch(5)], spec_of(), tmp_path / "file")
    (built[0] / "notes.txt").write_text("precious")
    with pytest.raises(DataError, match=r"notes\.txt"):
        write_dataset([random_batch(5)], spec_of(), built[0])
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "manifest.json").write_text('{"format": "something else"}')
    with pytest.raises(DataError, match="something else"):
        write_dataset([random_batch(5)], spec_of(), tmp_path / "other")
    assert sorted(os.listdir(tmp_path)) == ["file", "other", "set"]


def test_no_rows(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no row"):
        write_dataset([], spec_of(), tmp_path / "set")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("error", [DataError("line 7"), KeyboardInterrupt()])
def test_a_source_that_fails_leaves_the_old_data_set(built: tuple[Path, Batch], error: BaseException) -> None:
    def source() -> Iterator[Batch]:
        yield from cut(random_batch(60), 10)
        raise error

    with pytest.raises(type(error)):
        write_dataset(source(), spec_of(), built[0], block_rows=10)
    assert DatasetSource(built[0], verify=True).count_rows() == 205
    assert os.listdir(built[0].parent) == ["set"]


def test_an_unreadable_input_is_not_reported_as_a_full_disk(tmp_path: Path) -> None:
    def source() -> Iterator[Batch]:
        yield random_batch(10)
        raise OSError("not a gzipped file")

    with pytest.raises(DataError, match=r"input could not be read \(not a gzipped file\)"):
        write_dataset(source(), spec_of(), tmp_path / "set", block_rows=10)


@pytest.mark.parametrize("old", [True, False])
def test_a_disk_that_refuses_leaves_nothing_half_written(tmp_path: Path, old: bool) -> None:
    target = tmp_path / "set"
    if old:
        write_dataset([random_batch(5)], spec_of(), target)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, limits[1]))
    try:
        with pytest.raises(DataError, match=f"{target}.*could not be written .*File too large"):
            write_dataset([random_batch(20_000)], spec_of(), target)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert os.listdir(tmp_path) == (["set"] if old else [])
    assert not old or DatasetSource(target, verify=True).count_rows() == 5


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ([random_batch(5), random_batch(10)], "a batch of 10 rows after 5"),
        ([random_batch(11)], "a batch of 11 rows"),
        ([random_batch(10, bits=40)], "slots are uint64"),
        ([random_batch(10, bits=23)], "out of range"),
        ([replace(random_batch(5), values=np.full(random_batch(5).slots.size, np.nan, "f4"))], "not finite"),
        ([replace(random_batch(5), weights=np.full(5, np.inf, np.float32))], "weight is not finite"),
        ([replace(random_batch(5), weights=np.zeros(5, np.float32))], "and above 0"),
        ([random_batch(10), Batch(random_batch(10).indptr, random_batch(10).slots)], "some have none"),
    ],
)
def test_misuse(tmp_path: Path, batches: list[Batch], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        write_dataset(batches, spec_of(), tmp_path / "set", block_rows=10)
    assert os.listdir(tmp_path) == []
