"""A build that is interrupted goes on where it stopped, and comes to the same data set."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ctr.errors import DataError
from ctr.synth import write_click_log
from features import Batch, DatasetManifest, RawSource, load_spec, write_dataset
from features.dataset import Unfinished, key_of, writer

BLOCK = 100
ROWS = 4 * BLOCK * writer.BLOCKS_PER_PART + 50  # four parts, and one that is not full


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("log") / "clicks.tsv"
    write_click_log(path, ROWS, seed=3)
    return path


class _Stop(Exception):  # noqa: N818  (no fault of the program)
    pass


def build(log: Path, out: Path, *, stop_after: int | None = None) -> tuple[DatasetManifest, int]:
    """The manifest, and how many rows an earlier build had written."""
    source = RawSource(load_spec("criteo"), [log])
    with Unfinished(out, key_of(source.spec, source.files, BLOCK)) as unfinished:
        before = unfinished.done.rows

        def batches() -> Iterator[Batch]:
            for number, batch in enumerate(source.batches(BLOCK, unfinished.done.position)):
                if number == stop_after:
                    raise _Stop
                yield batch

        manifest = write_dataset(
            batches(),
            source.spec,
            out,
            block_rows=BLOCK,
            unfinished=unfinished,
            position=lambda: source.position,
        )
    return manifest, before


def test_it_goes_on_to_the_same(log: Path, tmp_path: Path) -> None:
    whole, _ = build(log, tmp_path / "whole")
    out, part = tmp_path / "h", BLOCK * writer.BLOCKS_PER_PART
    for stop_after in (2 * writer.BLOCKS_PER_PART + 1, writer.BLOCKS_PER_PART):
        with pytest.raises(_Stop):
            build(log, out, stop_after=stop_after)
        assert not out.exists()
    found, before = build(log, out)
    assert before == 3 * part
    assert found.model_copy(update={"created": whole.created}) == whole
    assert sorted(os.listdir(tmp_path)) == ["h", "whole"]
    for name in os.listdir(out):
        if name != "manifest.json":
            assert (out / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_before_the_first_part_nothing_is_kept(log: Path, tmp_path: Path) -> None:
    with pytest.raises(_Stop):
        build(log, tmp_path / "h", stop_after=1)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("what", ["part", "journal", "input"])
def test_what_has_changed_is_not_gone_on_from(log: Path, tmp_path: Path, what: str) -> None:
    own = tmp_path / "clicks.tsv"
    own.write_bytes(log.read_bytes())
    with pytest.raises(_Stop):
        build(own, tmp_path / "h", stop_after=9)
    kept = tmp_path / ".h.unfinished"
    if what == "part":
        path = kept / "shard-00001.arrow"
        raw = bytearray(path.read_bytes())
        raw[len(raw) // 2] ^= 1
        path.write_bytes(raw)
    elif what == "journal":
        (kept / "journal.json").write_text('{"key": "torn')
    else:
        os.utime(own, ns=(1, 1))
    manifest, before = build(own, tmp_path / "h")
    assert (manifest.rows, before) == (ROWS, 0)
    assert sorted(os.listdir(tmp_path)) == ["clicks.tsv", "h"]


def test_two_builds_of_one_data_set(log: Path, tmp_path: Path) -> None:
    with (
        Unfinished(tmp_path / "h", None),
        pytest.raises(DataError, match="another `ctr features build` writes it"),
        Unfinished(tmp_path / "h", None),
    ):
        pass
    assert os.listdir(tmp_path) == []
    build(log, tmp_path / "h")
