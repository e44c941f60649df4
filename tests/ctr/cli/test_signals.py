"""Signals that end a command, whenever they come; and what a killed one leaves for the next to remove."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread

import pytest

from ctr.model.artifact import load_model
from tests.command_line import Cli
from tests.ctr.distributed_jobs import CTR, Command, wait_for


def at_work(log: Path, model: Path) -> tuple[Command, int]:
    """A job that does not end and has learnt something, and the terminal that it shows so on."""
    terminal, its_end = os.openpty()
    words = ("train", "--spec", "criteo", log, "--model", model, "--epochs", 100_000)
    job = Command(*words, files=dict.fromkeys(range(3), its_end))
    os.close(its_end)
    shown = b""
    while b"rows/s" not in shown:
        shown += os.read(terminal, 1 << 16)
    return job, terminal


@pytest.fixture
def nohup() -> Iterator[None]:
    """This process ignores hang-ups, as one that `nohup` has started."""
    handler = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGHUP, handler)


class TestHangUp:
    def test_a_closed_terminal(self, click_log: Path, tmp_path: Path) -> None:
        """What was learnt is saved, though nobody can be told."""
        job, terminal = at_work(click_log, tmp_path / "model")
        os.close(terminal)
        job.popen.send_signal(signal.SIGHUP)  # which the system sends to whom the terminal belongs
        assert job.end()[0] == 130
        assert load_model(tmp_path / "model.interrupted").manifest["training"]["interrupted"]
        assert os.listdir(tmp_path) == ["model.interrupted"]

    @pytest.mark.usefixtures("nohup")
    def test_nohup(self, cli: Cli, click_log: Path, tmp_path: Path) -> None:
        over = Event()

        def hang_up() -> None:
            while not over.wait(0.001):
                os.kill(os.getpid(), signal.SIGHUP)

        caller = Thread(target=hang_up)
        caller.start()
        try:
            assert cli("train", "--spec", "criteo", click_log, "--model", tmp_path / "model").code == 0
        finally:
            over.set()
            caller.join()

    def test_it_is_no_second_request(self, click_log: Path, tmp_path: Path) -> None:
        """A shell that ends sends one more to its jobs."""
        job, terminal = at_work(click_log, tmp_path / "model")
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGHUP):
            job.popen.send_signal(number)
        with suppress(OSError):  # which is how Linux says that the other end was closed
            while shown := os.read(terminal, 1 << 16):
                assert b"Traceback" not in shown
        os.close(terminal)
        assert job.end()[0] == 130
        assert load_model(tmp_path / "model.interrupted").linear.weights.size


def build(log: Path, out: Path) -> Command:
    """A build that takes some time."""
    return Command("features", "build", "--spec", "criteo", *[log] * 100, "--out", out, "--shuffle", 1)


def drafts(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.name.startswith(".")]


def test_a_hang_up_ends_a_build(click_log: Path, tmp_path: Path) -> None:
    job = build(click_log, tmp_path / "h")
    wait_for(lambda: len(drafts(tmp_path)) == 3)
    job.popen.send_signal(signal.SIGHUP)
    code, said = job.end()
    assert code == 130
    assert "was not written" in said
    assert os.listdir(tmp_path) == []


def test_the_next_run_removes_what_a_killed_one_has_left(cli: Cli, click_log: Path, tmp_path: Path) -> None:
    job = build(click_log, tmp_path / "h")
    wait_for(lambda: len(drafts(tmp_path)) == 3)
    before = drafts(tmp_path)
    again = ["features", "build", "--spec", "criteo", click_log, "--out", tmp_path / "h", "--shuffle", 1]
    refused = cli(*again)
    assert refused.code == 1
    assert "another `ctr features build` writes it" in refused.err
    assert drafts(tmp_path) == before  # their maker lives
    job.kill()
    assert drafts(tmp_path) == before
    assert cli(*again).code == 0
    assert os.listdir(tmp_path) == ["h"]


@pytest.mark.parametrize("seen", ["typer", "numpy", "numba.core"])
def test_an_interrupt_before_the_work(click_log: Path, tmp_path: Path, seen: str) -> None:
    """While modules are imported: no traceback, and the exit code of a job that was stopped."""
    command = [CTR, "train", "--spec", "criteo", click_log, "--model", tmp_path / "model"]
    job = subprocess.Popen(
        [*map(str, command)],
        env={**os.environ, "PYTHONPROFILEIMPORTTIME": "1"},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert job.stderr is not None
    while not (line := job.stderr.readline()).split("|")[-1].strip().startswith(seen):
        assert line
    job.send_signal(signal.SIGINT)
    said = job.communicate(timeout=60)[1]
    assert job.returncode == 130, said
    assert "Traceback" not in said
    assert "Stopped." in said
    assert os.listdir(tmp_path) == []


HANGS = """
import time
from ctr.interrupts import stop_requests

with stop_requests():
    print("ready", flush=True)
    try:
        time.sleep(60)
    except KeyboardInterrupt:
        time.sleep(60)  # as cleaning up may hang
"""


def test_a_second_ctrl_c_ends_what_hangs() -> None:
    with subprocess.Popen([sys.executable, "-c", HANGS], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        for _ in range(2):
            process.send_signal(signal.SIGINT)
            time.sleep(0.5)
        assert process.wait(20) == 130


def test_a_killed_build_goes_on(cli: Cli, click_log: Path, tmp_path: Path) -> None:
    words = ["features", "build", "--spec", "criteo", *[click_log] * 40, "--out", tmp_path / "h"]
    job = Command(*words)
    wait_for(lambda: list(tmp_path.glob(".h.unfinished/journal.json")))
    job.kill()
    done = cli(*words, "--json", tmp_path / "summary.json")
    assert done.code == 0
    assert "rows that an interrupted build has written" in done.err
    summary = json.loads((tmp_path / "summary.json").read_bytes())
    assert summary["examples"] == 40 * 20_000 > summary["resumed_behind"] >= 262_144
    assert sorted(os.listdir(tmp_path)) == ["h", "summary.json"]


@pytest.mark.parametrize("closed", ["1", "2"])
def test_a_command_without_an_output_ends_well(closed: str) -> None:
    """As where a daemon starts it."""
    command = f"{shlex.quote(str(CTR))} --help {closed}>&-"
    done = subprocess.run(["sh", "-c", command], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
