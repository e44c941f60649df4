"""Machines that do not share the storage of a data set: this is noticed before rows are read."""

from __future__ import annotations

import gzip
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import ctr.engines
from ctr.engines.engine import results_of
from ctr.errors import EngineError
from ctr.features.inputs import RemoteFolder
from ctr.jobs.splits import tasks
from ctr.jobs.splits.attempts import remote_attempts
from tests.command_line import Cli

LEARNS = """
{version: 1, source: {format: delimited, header: true}, label: y,
 fields: [{name: n, type: number, transform: quantiles, buckets: 5}]}
"""
WINDOWS = """
{version: 1, source: {format: delimited, header: true}, label: y, fields: [{name: c, type: category}],
 windows: [{name: c, key: [c], time: n, format: unix, features: [count], spans: [1m]}]}
"""


class Apart:
    """An engine whose tasks do not see what the driver has written."""

    tasks_at_once = 2
    on_this_machine = False

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.maps = 0

    def map(
        self, function: Callable[[Any], Any], tasks: Sequence[Any], on_progress: Callable[[float], None]
    ) -> list[Any]:
        self.maps += 1
        for mark in self._folder.glob(".*/mark"):
            mark.unlink()
        return results_of([function(pickle.loads(pickle.dumps(task))) for task in tasks])

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("spec", "is_compressed"),
    [(LEARNS, True), (WINDOWS, True), (LEARNS, False), (WINDOWS, False)],
    ids=range(4),
)
def test_storage_of_the_driver_alone(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spec: str, is_compressed: bool
) -> None:
    monkeypatch.setattr(tasks, "_LEAST_BYTES", 1 << 20)  # several splits, for which quotes are counted
    monkeypatch.setattr(tasks, "_MOST_BYTES", 1 << 20)
    engine = Apart(tmp_path)
    monkeypatch.setattr(ctr.engines, "open_engine", lambda *_: engine)
    log, out = tmp_path / ("log.csv.gz" if is_compressed else "log.csv"), tmp_path / "hashed"
    text = "y,n,c\n" + "".join(f"{n % 2},{n},v{n**3 % 9973}\n" for n in range(200_000))
    # A torn file: the driver reads its first MiB, and tasks would find that the end is missing.
    log.write_bytes(gzip.compress(text.encode())[:-999] if is_compressed else text.encode())
    (tmp_path / "spec.yaml").write_text(spec)
    done = cli(
        "features", "build", "--spec", tmp_path / "spec.yaml", log, "--out", out, "--engine", "processes"
    )
    assert done.code == 1
    assert (
        f"{tmp_path}: this machine does not see the driver's files there; give an output folder on"
        in done.err
    )
    assert engine.maps == 1
    assert not list(tmp_path.glob(".*"))


def test_a_uri_that_means_another_place_elsewhere(tmp_path: Path) -> None:
    out = RemoteFolder((tmp_path / "out").as_uri())
    with remote_attempts(out) as attempts:
        attempts.require_shared()
        (tmp_path / "out").rename(tmp_path / "elsewhere")
        with pytest.raises(EngineError, match=r"out/.*: this machine does not see the driver's files there"):
            attempts.require_shared()
