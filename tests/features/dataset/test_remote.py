"""Data sets behind URIs: a server that speaks S3, the cache on this machine, and what can be wrong."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from ctr.errors import DataError
from ctr.features import DatasetSource, RawSource, is_dataset, load_spec, write_dataset
from ctr.features.dataset import manifest_of
from ctr.features.dataset.cache import CACHE_DIR, CACHE_GB
from ctr.features.inputs.remote import _remote_file, _s3
from ctr.synth.log import write_click_log
from tests.ctr.datasets import rows_of_dataset
from tests.features.inputs.s3_server import S3Server, start_s3

pytestmark = pytest.mark.xdist_group("s3")

ROWS, BLOCK = 1_200, 100
URI = "s3://sets/day 1/hashed"


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set of three parts."""
    folder = tmp_path_factory.mktemp("local")
    write_click_log(folder / "log.tsv", ROWS, seed=1)
    source = RawSource(load_spec("criteo").model_copy(update={"bits": 18}), [folder / "log.tsv"])
    write_dataset(source.batches(BLOCK), source.spec, folder / "hashed", block_rows=BLOCK)
    return folder / "hashed"


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with start_s3() as server:
        server.put("sets")
        yield server


@pytest.fixture(autouse=True)
def cache(server: S3Server, local: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache, and the data set as it was at `URI`."""
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv(CACHE_DIR, str(tmp_path / "cache"))
    monkeypatch.delenv(CACHE_GB, raising=False)
    for path in local.iterdir():
        server.put(f"{URI.removeprefix('s3://')}/{path.name}", path.read_bytes())
    _s3.cache_clear()
    _remote_file.cache_clear()
    yield tmp_path / "cache"
    _s3.cache_clear()


def parts_in(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.glob("*/shard-*"))


def test_the_same_rows(local: Path, cache: Path) -> None:
    assert is_dataset(URI)
    assert not is_dataset("s3://sets/day 1")
    assert manifest_of(URI + "/") == manifest_of(local)
    assert rows_of_dataset(URI) == rows_of_dataset(local)
    assert parts_in(cache) == ["shard-00000.arrow", "shard-00001.arrow", "shard-00002.arrow"]


def test_only_what_is_read_is_fetched_once(local: Path, cache: Path, server: S3Server) -> None:
    def sums(_: int) -> float:
        source = DatasetSource(URI, verify=True)
        return sum(
            float(batch.labels.sum()) for batch in source.batches(50, 450, 750) if batch.labels is not None
        )

    with ThreadPoolExecutor(4) as threads:
        (alone,) = set(threads.map(sums, range(8)))
    assert parts_in(cache) == ["shard-00001.arrow"]
    (path,) = cache.glob("*/shard-00001.arrow")
    before = path.stat().st_ino
    assert sums(0) == alone == sum(row[0] for row in rows_of_dataset(local)[450:750])
    assert path.stat().st_ino == before


def test_the_cache_is_bounded(local: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = manifest_of(local).parts
    most = parts[0].bytes + parts[1].bytes + 10
    monkeypatch.setenv(CACHE_GB, str(most / 1e9))
    source = DatasetSource(URI)
    kept = list(source.chunks())  # what is mapped stays readable
    assert parts_in(cache) == ["shard-00001.arrow", "shard-00002.arrow"]
    assert sum(path.stat().st_size for path in cache.glob("*/shard-*")) <= most
    np.testing.assert_array_equal(kept[0].slots, next(DatasetSource(local).chunks()).slots)
    assert rows_of_dataset(URI) == rows_of_dataset(local)
    monkeypatch.setenv(CACHE_GB, "0.000001")
    with pytest.raises(DataError, match=rf"more than the cache on this machine may hold; raise {CACHE_GB}"):
        rows_of_dataset(URI)


def test_the_least_recently_read_part_is_removed(
    local: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = manifest_of(local).parts
    monkeypatch.setenv(CACHE_GB, str((parts[0].bytes + max(parts[1].bytes, parts[2].bytes) + 10) / 1e9))
    source = DatasetSource(URI)
    for row in (0, 450, 10, 850):
        next(source.batches(10, row, row + 10))
    assert parts_in(cache) == ["shard-00000.arrow", "shard-00002.arrow"]


def test_a_part_that_another_thread_fetches_is_not_removed_to_make_room(
    local: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CACHE_GB, str((max(part.bytes for part in manifest_of(local).parts) + 10) / 1e9))
    source = DatasetSource(URI)
    with ThreadPoolExecutor(3) as threads:
        for _ in range(10):
            rows = threads.map(lambda row: len(next(source.batches(10, row, row + 10))), (0, 450, 850))
            assert list(rows) == [10, 10, 10]


def test_a_data_set_that_is_built_again_is_not_mixed_with_the_old_one(
    local: Path, server: S3Server, tmp_path: Path
) -> None:
    source = DatasetSource(URI)
    next(source.batches(10, 0, 10))
    other = tmp_path / "other"
    rows = DatasetSource(local)
    write_dataset(rows.batches(50, 300), rows.spec, other, block_rows=50)
    for path in other.iterdir():
        server.put(f"sets/day 1/hashed/{path.name}", path.read_bytes())
    with pytest.raises(DataError, match=r"s3://sets/day 1/hashed/manifest\.json: .* start again"):
        next(source.batches(10, 450, 460))
    assert rows_of_dataset(URI) == rows_of_dataset(other)


def test_a_data_set_that_was_built_again_is_kept_for_those_who_read_it(
    local: Path, cache: Path, server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, rows, other = DatasetSource(URI), rows_of_dataset(URI), tmp_path / "other"
    write_dataset(DatasetSource(local).batches(50), source.spec, other, block_rows=50)
    for path in other.iterdir():
        server.put(f"sets/day 1/hashed/{path.name}", path.read_bytes())
    theirs = cache / "own" / "shard-00000.arrow"
    theirs.parent.mkdir()
    theirs.write_bytes(b"0" * 1_000)
    old, new = ([part.bytes for part in each.parts] for each in (source.manifest, manifest_of(other)))
    at_a_time = 2  # one is fetched ahead, while one that had to make room for it is fetched again
    assert len(new) > at_a_time
    monkeypatch.setenv(CACHE_GB, str((sum(old) + at_a_time * max(new)) / 1e9))
    assert rows_of_dataset(URI) == rows
    assert sum(len(batch) for batch in source.batches(50)) == ROWS
    assert theirs.exists()


def test_what_is_wrong_is_said(
    local: Path, cache: Path, server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "sets/day 1/hashed/shard-00002.arrow"
    content = (local / "shard-00002.arrow").read_bytes()
    server.put(name, content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(DataError, match=r"hashed/shard-00002\.arrow: torn or changed .*SHA-256"):
        rows_of_dataset(URI)
    assert parts_in(cache) == ["shard-00000.arrow", "shard-00001.arrow"]
    server.put(name, content[:-9])
    with pytest.raises(DataError, match=r"hashed/shard-00002\.arrow: torn .* bytes, the manifest says"):
        DatasetSource(URI)
    server.delete(name)
    with pytest.raises(DataError, match=r"hashed/shard-00002\.arrow: torn .* there is no such file"):
        DatasetSource(URI)
    server.put("sets/day 1/hashed/manifest.json", b"{")
    with pytest.raises(
        DataError, match=r"s3://sets/day 1/hashed/manifest\.json: not the manifest of a whole"
    ):
        DatasetSource(URI)
    with pytest.raises(DataError, match=r"s3://sets/none: there is no such file or folder"):
        DatasetSource("s3://sets/none")
    with pytest.raises(DataError, match=r"s3://nowhere/none: there is no such bucket"):
        DatasetSource("s3://nowhere/none")
    monkeypatch.setenv(CACHE_GB, "much")
    for path in local.iterdir():
        server.put(f"sets/day 1/hashed/{path.name}", path.read_bytes())
    with pytest.raises(DataError, match=rf"{CACHE_GB} is 'much': give how many GB"):
        rows_of_dataset(URI)
    shutil.rmtree(cache)
    cache.write_text("a file")
    with pytest.raises(DataError, match=rf"cannot be written .*; set {CACHE_DIR} to a folder"):
        DatasetSource(URI)
