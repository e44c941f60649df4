"""The command line, run in this process."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest

from ctr.cli.app import start


@dataclass(frozen=True)
class Finished:
    """How a command ended."""

    code: int
    out: str
    err: str


SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

Cli = Callable[..., Finished]


def run_command(monkeypatch: pytest.MonkeyPatch, words: Sequence[object]) -> int:
    """The exit code of `ctr` with these words. It leaves this process's signals as they were."""
    monkeypatch.setattr(sys, "argv", ["ctr", *map(str, words)])
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        start()
    except SystemExit as stop:
        return int(stop.code or 0)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return 0


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Run `ctr` with the given words, as its entry point does."""

    def run(*words: object) -> Finished:
        code = run_command(monkeypatch, words)
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        # In the first tests, kernels may have to be compiled.
        err = "".join(
            line for line in captured.err.splitlines(True) if not line.startswith("compiling kernels")
        )
        return Finished(code, captured.out, err)

    return run
