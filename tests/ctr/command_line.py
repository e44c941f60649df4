"""The command line, run in this process."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from ctr.cli.app import main


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
