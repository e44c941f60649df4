"""Small click logs, and the command line run in this process."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from ctr.cli.app import main
from ctr.synth.log import write_click_log
from tests.ctr.distributed_jobs import job_data, job_log, job_spec, no_command_is_left, start_job

__all__ = ["job_data", "job_log", "job_spec", "no_command_is_left", "start_job"]


@dataclass(frozen=True)
class Finished:
    """How a command ended."""

    code: int
    out: str
    err: str


SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

Cli = Callable[..., Finished]


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Run `ctr` with the given words, as its entry point does."""

    def run(*words: object) -> Finished:
        monkeypatch.setattr(sys, "argv", ["ctr", *map(str, words)])
        handlers = {number: signal.getsignal(number) for number in SIGNALS}
        try:
            main()
            code = 0
        except SystemExit as stop:
            code = int(stop.code or 0)
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return Finished(code, captured.out, captured.err)

    return run


@pytest.fixture(scope="session")
def click_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """20,000 synthetic rows in Criteo's columns. Not to be changed by a test."""
    path = tmp_path_factory.mktemp("log") / "clicks.tsv"
    write_click_log(path, 20_000, seed=5)
    return path
