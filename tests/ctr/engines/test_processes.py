"""Tasks in processes of this machine."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from time import sleep

import pytest

from ctr.engines import Failure, Processes
from ctr.errors import DataError


def run(file: Path) -> Failure | None:
    """The third task fails at once, and the first a while later."""
    file.touch()
    number = int(file.name)
    sleep(0 if number == 2 else 0.2)
    return Failure(f"task {number}") if number in (0, 2) else None


def test_no_more_tasks_begin_after_a_failure(tmp_path: Path) -> None:
    with closing(Processes()) as engine:
        tasks = [tmp_path / str(number) for number in range(20 * engine.tasks_at_once)]
        with pytest.raises(DataError, match=r"^task 0$"):
            engine.map(run, tasks, lambda _: None)
        assert len(list(tmp_path.iterdir())) < len(tasks)
