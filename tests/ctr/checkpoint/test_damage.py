"""Checkpoints that are damaged, or none at all."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ctr.checkpoint.checkpoint import read_checkpoint
from ctr.checkpoint.writer import require_checkpoint_or_nothing
from ctr.errors import DataError, ModelError
from tests.ctr.checkpoint.checkpoints import opened, train, write
from tests.ps.redis_servers import needs_redis

pytestmark = needs_redis


def edited(**changes: Any) -> Callable[[Path], None]:
    """Change what the manifest says."""

    def edit(folder: Path) -> None:
        path = folder / "manifest.json"
        path.write_text(json.dumps(json.loads(path.read_bytes()) | changes))

    return edit


def cut_short(folder: Path) -> None:
    os.truncate(folder / "partitions-00.arrow", (folder / "partitions-00.arrow").stat().st_size - 1)


def flipped(name: str) -> Callable[[Path], None]:
    def flip(folder: Path) -> None:
        raw = bytearray((folder / name).read_bytes())
        raw[len(raw) // 2] ^= 1
        (folder / name).write_bytes(raw)

    return flip


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda c: (c / "manifest.json").unlink(), "has no manifest.json, so it is not a checkpoint"),
        (lambda c: os.truncate(c / "manifest.json", 40), "manifest.json is torn"),
        (lambda c: (c / "manifest.json").write_text("[]"), "manifest.json is torn"),
        (edited(format="ctr model"), "is a ctr model, not a checkpoint"),
        (edited(format_version=1), "has format version 1, this program reads 4 to 6"),
        (edited(files={}), r"manifest.json is damaged \(it names no files, not partitions-00.arrow, reports"),
        (
            edited(ranges=2),
            r"damaged \(it names partitions-00.arrow, reports.arrow, not .*partitions-01.arrow",
        ),
        (edited(ranges=0), r"manifest.json is damaged \(ranges: "),
        (edited(store={"bits": "12"}), r"manifest.json is damaged \(store.bits: "),
        (edited(more=1), r"manifest.json is damaged \(more: "),
        (lambda c: (c / "partitions-00.arrow").unlink(), "partitions-00.arrow: cannot be read"),
        (cut_short, r"partitions-00.arrow: is torn \(\d+ bytes instead of \d+\)"),
        (
            flipped("partitions-00.arrow"),
            r"partitions-00.arrow: is not the file .* \(SHA-256 \w{12} instead of",
        ),
        (flipped("reports.arrow"), "reports.arrow: is not the file"),
    ],
)
def test_a_damaged_checkpoint(
    tmp_path: Path, redis_url: str, damage: Callable[[Path], None], told: str
) -> None:
    store = opened(redis_url)
    train(store, 0)
    write(tmp_path / "c", store)
    damage(tmp_path / "c")
    with pytest.raises(ModelError, match=told):
        read_checkpoint(tmp_path / "c")
    if "ctr model" not in told:
        write(tmp_path / "c", store, 1)  # and the next one may replace it
        assert read_checkpoint(tmp_path / "c").manifest.position == {"n": 1}


def test_what_is_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    for name, told in (("none", "there is no checkpoint"), ("empty", "has no manifest"), ("file", "has no")):
        with pytest.raises(ModelError, match=told):
            read_checkpoint(tmp_path / name)


def test_a_place_for_checkpoints(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for good in ("empty", "new/folder"):
        require_checkpoint_or_nothing(tmp_path / good)
    (tmp_path / "file").write_text("x")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "manifest.json").write_text('{"format": "ctr hashed data set"}')
    for place, told in (
        (tmp_path / "file", "there is a file of that name"),
        (tmp_path / "mine", "holds thesis.tex, which is no part of a checkpoint"),
        (tmp_path / "data", "holds a ctr hashed data set, not a checkpoint"),
        (Path("/"), "is a mount point"),
    ):
        with pytest.raises(ModelError, match=told):
            require_checkpoint_or_nothing(place)
    with pytest.raises(DataError, match="cannot be written to"):
        require_checkpoint_or_nothing(tmp_path / "file" / "c")
    assert (tmp_path / "mine" / "thesis.tex").read_text() == "x"
