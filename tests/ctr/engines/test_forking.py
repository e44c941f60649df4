"""Processes that are forked from one that has everything loaded, and begin as any other command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ctr.engines.forking import Forked, ForkServer
from ctr.errors import CtrError
from tests.ctr.distributed_jobs import Command, wait_for
from tests.ps.redis_servers import needs_redis


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    started = ForkServer.start()
    yield started
    started.close()


def run(server: ForkServer, folder: Path, *words: object, **settings: str) -> Forked:
    """A command whose output goes to files in `folder`."""
    with open(os.devnull) as nothing, (folder / "out").open("w") as out, (folder / "said").open("w") as said:
        files = [each.fileno() for each in (nothing, out, said)]
        return server.fork([*map(str, words)], files, {**os.environ, **settings}, folder)


def test_a_command_runs_as_if_started_anew(server: ForkServer, tmp_path: Path) -> None:
    ended = run(server, tmp_path, "synth", "--rows", 10, "--out", "clicks.tsv", "--json", "-")
    assert ended.wait(60) == 0
    assert len((tmp_path / "clicks.tsv").read_text().splitlines()) == 10
    assert '"rows": 10' in (tmp_path / "out").read_text()
    assert run(server, tmp_path, "synth", "--rows", 0, "--out", "clicks.tsv").wait(60) == 2
    assert "--rows" in (tmp_path / "said").read_text()
    wide = run(server, tmp_path, "synth", "--help", COLUMNS="133")
    assert wide.wait(60) == wide.poll() == 0
    assert max(map(len, (tmp_path / "out").read_text().splitlines())) == 133


def test_signals_end_it(server: ForkServer, tmp_path: Path) -> None:
    words = ("synth", "--rows", 10**9, "--out", "clicks.tsv")
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 130), (signal.SIGKILL, -9)):
        job = run(server, tmp_path, *words)
        wait_for(lambda: [path for path in tmp_path.iterdir() if "clicks" in path.name])
        with pytest.raises(subprocess.TimeoutExpired):
            job.wait(0.1)
        assert job.poll() is None
        assert os.getpgid(job.pid) == job.pid
        job.send_signal(number)
        assert job.wait(60) == code
        job.kill()  # is no error


def test_several_at_once(server: ForkServer, tmp_path: Path) -> None:
    jobs = []
    for number in range(4):
        folder = tmp_path / str(number)
        folder.mkdir()
        jobs.append(run(server, folder, "synth", "--rows", number, "--out", "clicks.tsv"))
    assert len({job.pid for job in jobs}) == 4
    assert [job.wait(60) for job in reversed(jobs)] == [0, 0, 0, 2]


def test_a_server_that_was_killed(tmp_path: Path) -> None:
    """What it forked goes on; what it was asked for afterwards is an error."""
    server = ForkServer.start()
    job = run(server, tmp_path, "synth", "--rows", 10**9, "--out", "clicks.tsv")
    os.kill(parent(job.pid), signal.SIGKILL)
    wait_for(lambda: server.has_ended)
    assert job.poll() is None
    with pytest.raises(CtrError, match="no worker process could be started: the fork server has ended"):
        run(server, tmp_path, "synth", "--help")
    job.kill()
    assert job.wait(60) == -9
    server.close()


def test_a_server_that_cannot_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "numpy.py").write_text("raise SystemExit('this is not numpy')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    server = ForkServer.start()
    with pytest.raises(CtrError, match="no worker process could be started: this is not numpy"):
        run(server, tmp_path, "synth", "--help")
    server.close()


LEAVES = """
import os, sys
from ctr.engines import fork_server

server = fork_server()
pid = server.fork(["--version"], [0, 1, 2], os.environ).pid
(parent,) = (line.split()[1] for line in open(f"/proc/{pid}/status") if line.startswith("PPid:"))
print(parent, flush=True)
os.kill(os.getpid(), int(sys.argv[1]))
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_it_ends_with_the_process_that_started_it(number: int) -> None:
    command = [sys.executable, "-c", LEAVES, str(int(number))]
    said = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    (server,) = (int(line) for line in said.splitlines() if line.isdigit())
    wait_for(lambda: not _status(server), 10)


@needs_redis
def test_what_was_forked_forks_from_the_same_server(click_log: Path, tmp_path: Path, redis_url: str) -> None:
    words = ("--spec", "criteo", "--model", tmp_path / "model", "--store", redis_url, "--epochs", 10_000)
    job = Command("train", click_log, *words, "--workers", 2)
    wait_for(lambda: len(job.workers()) == 2)
    assert len({parent(pid) for pid in [job.popen.pid, *job.workers()]}) == 1
    job.kill()


def parent(pid: int) -> int:
    """Who has forked a process."""
    (found,) = (line.split()[1] for line in _status(pid) if line.startswith("PPid:"))
    return int(found)


def _status(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/status").read_text().splitlines()
    except FileNotFoundError:
        return []
