"""What is told of a job that ends early: what is left of it, and the commands that go on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ctr.jobs import Remains
from ctr.settings import TrainJob

REDIS = "redis://:secret@localhost:6379/0?model=ads"


def remains_of(store: str, model: Path, **settings: Any) -> Remains:
    return Remains(TrainJob(inputs=["log"], store=store, model=model, **settings))


@pytest.mark.parametrize("store", ["memory://", "embedded://", REDIS])
def test_before_training(tmp_path: Path, store: str) -> None:
    assert str(remains_of(store, tmp_path / "m")) == "Nothing was learnt yet, and nothing was written."


@pytest.mark.parametrize("store", ["memory://", "embedded://?shards=2"])
def test_what_was_in_memory_is_gone(tmp_path: Path, store: str) -> None:
    remains = remains_of(store, tmp_path / "m")
    remains.begin()
    assert str(remains) == "Nothing was written: what was learnt so far was in memory alone."


def test_what_is_in_redis_can_be_saved_or_removed(tmp_path: Path) -> None:
    remains = remains_of(REDIS, tmp_path / "my model")
    remains.begin()
    url = "'redis://localhost:6379/0?model=ads'"
    assert f"`ctr ps export --store {url} --out '{tmp_path}/my model'` saves it" in str(remains)
    assert f"`ctr ps drop --store {url}` removes it" in str(remains)
    assert "with resume" not in str(remains)


@pytest.mark.parametrize("store", ["embedded://", REDIS])
def test_a_checkpoint_of_the_job_can_be_resumed(tmp_path: Path, store: str) -> None:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    (folder / "manifest.json").write_text("of an earlier job")
    remains, resumed = (
        remains_of(store, tmp_path / "m", checkpoint=folder, resume=again) for again in (False, True)
    )
    for job in (remains, resumed):
        job.begin()
    assert "with resume" not in str(remains)
    assert "with resume" in str(resumed)
    (folder / "manifest.json").unlink()
    (folder / "manifest.json").write_text("of this one")
    assert f"with resume to go on from the checkpoint in {folder}" in str(remains)
    assert ("ctr ps export" in str(remains)) == (store == REDIS)


def test_a_saved_model_is_not_lost(tmp_path: Path) -> None:
    remains = remains_of(REDIS, tmp_path / "m")
    remains.begin()
    remains.saved_to = tmp_path / "m"
    assert str(remains).startswith(f"The model is in {tmp_path}/m, but was not evaluated.")
    assert "ctr ps drop" in str(remains)
    assert "ctr ps export" not in str(remains)
