"""Jobs in Redis that `ctr ps` looks at."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.command_line import Cli
from tests.ctr.cli.ps_jobs import ENDLESS, named, train
from tests.ctr.distributed_jobs import Command


@pytest.fixture
def busy(job_log: Path, tmp_path: Path, redis_url: str) -> Iterator[tuple[str, Command]]:
    """The URL of a Redis with a job of two workers that does not end."""
    with train(job_log, tmp_path, redis_url, *ENDLESS) as job:
        yield redis_url, job


@pytest.fixture
def failed(cli: Cli, job_log: Path, tmp_path: Path, redis_url: str) -> str:
    """The URL of a Redis with what a job has left that met a torn row after 2,950 good ones."""
    torn = tmp_path / "torn.tsv"
    torn.write_bytes(job_log.read_bytes() + b"torn\n")
    words = ["train", "--spec", "criteo", torn, "--model", tmp_path / "trained", "--store", named(redis_url)]
    assert cli(*words, "--chunk", 1_000, "--alpha", 0.05).code == 1
    return redis_url
