"""A build that is interrupted goes on where it stopped, and comes to the same data set."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ctr.errors import DataError
from ctr.features import Batch, DatasetManifest, RawSource, fit, load_spec
from ctr.features.dataset import DatasetDraft, Unfinished, dataset_folders, kept_fit, key_of, writer
from ctr.features.inputs import input_files
from ctr.synth import write_click_log

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
    with Unfinished(out, key_of(source.spec, source.inputs, BLOCK)) as unfinished:
        before = unfinished.done.rows

        def batches() -> Iterator[Batch]:
            for number, batch in enumerate(source.batches(BLOCK, unfinished.done.position)):
                if number == stop_after:
                    raise _Stop
                yield batch

        with dataset_folders([out]) as (folder,):
            draft = DatasetDraft(source.spec, folder, block_rows=BLOCK, unfinished=unfinished)
            draft.write(batches(), lambda: source.position)
            return draft.finish(), before


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


_KILLED = """
import os, signal, sys
from pathlib import Path
from ctr.features import RawSource, fit, load_spec
from ctr.features.dataset import DatasetDraft, Unfinished, dataset_folders, key_of

spec, log, out = load_spec(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])
source = RawSource(fit(spec, [log]), [log])
keys = [key_of(each, source.inputs, 100) for each in (source.spec, spec)]
with Unfinished(out, keys[0], source.spec, keys[1]) as unfinished:
    with dataset_folders([out]) as (folder,):
        DatasetDraft(source.spec, folder, block_rows=100, unfinished=unfinished).write(
            source.batches(100),
            position=lambda: source.position,
            progress=lambda rows: rows < 900 or os.kill(os.getpid(), signal.SIGKILL),
        )
"""


def test_what_a_killed_build_has_learnt_is_kept_with_its_parts(log: Path, tmp_path: Path) -> None:
    spec, out = tmp_path / "learns.yaml", tmp_path / "h"
    spec.write_text(
        'version: 1\nsource: {format: delimited, delimiter: "\\t", header: false, columns: ['
        + ", ".join(["label", *(f"I{i}" for i in range(1, 14)), *(f"C{i}" for i in range(1, 27))])
        + "]}\nlabel: label\nfields:\n  - {name: I2, type: number, transform: quantiles, buckets: 4}\n"
        "  - {name: C1, type: category, min_count: 2}\n"
    )
    killed = subprocess.run([sys.executable, "-c", _KILLED, spec, log, out], check=False)
    assert killed.returncode == -signal.SIGKILL
    wanted, files = load_spec(spec), input_files([log])
    found = kept_fit(out, wanted, files, BLOCK)
    assert found is not None
    assert found.fingerprint == fit(wanted, [log]).fingerprint
    with Unfinished(out, key_of(found, files, BLOCK)) as unfinished:
        assert unfinished.done.rows >= BLOCK * writer.BLOCKS_PER_PART
    other = wanted.model_copy(update={"seed": 1})
    assert kept_fit(out, other, files, BLOCK) is None
    assert kept_fit(tmp_path / "another", wanted, files, BLOCK) is None
