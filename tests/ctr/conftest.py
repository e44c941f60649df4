"""Small click logs, and the fixtures of jobs. Nothing imports this: pytest would not find them."""

from __future__ import annotations

from pathlib import Path

import pytest

from ctr.synth.log import write_click_log
from tests.ctr.distributed_jobs import job_data, job_log, job_spec, no_command_is_left, start_job

__all__ = ["job_data", "job_log", "job_spec", "no_command_is_left", "start_job"]


@pytest.fixture(scope="session")
def click_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """20,000 synthetic rows in Criteo's columns. Not to be changed by a test."""
    path = tmp_path_factory.mktemp("log") / "clicks.tsv"
    write_click_log(path, 20_000, seed=5)
    return path
