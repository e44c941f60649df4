"""Several processes that answer on one socket: one that dies, a swap in all, the end of all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from ctr.api.operations import SHARED_FOLDER
from ctr.cli.serving import _shared_folder
from ctr.model import load_model
from ctr.registry import Registry
from tests.api.operations.test_versions import answered, until
from tests.api.test_connection import answer, connect
from tests.api.test_server import server_process
from tests.command_line import Cli
from tests.ctr.distributed_jobs import Command
from tests.serving.changes import replace_file


@contextmanager
def two(registry: Registry) -> Iterator[tuple[Command, str]]:
    with server_process("--registry", registry.place, "--workers", 2) as (process, line):
        yield process, line.split()[-1]


def children(process: Command) -> list[int]:
    pid = process.popen.pid
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def new_client(url: str, **options: Any) -> httpx.Client:
    """A client that is made in no time, as it loads no certificates, which takes 30 ms."""
    return httpx.Client(base_url=url, verify=False, timeout=30, **options)


def fresh(url: str) -> str:
    """The version that answers on a new connection, which any process may take."""
    with new_client(url) as client:
        return answered(client)


def test_one_that_is_killed_is_replaced(registry: Registry, models: list[Path]) -> None:
    with two(registry) as (process, url):
        before = children(process)
        assert len(before) == 2
        for _ in range(20):
            fresh(url)
            assert answer(connect(url, b"no HTTP\r\n\r\n")).startswith(b"HTTP/1.1 400 ")
        until(lambda: requests(url) == 20)  # they are counted once they are answered
        os.kill(before[0], signal.SIGKILL)
        until(lambda: len(children(process)) == 2 and before[0] not in children(process))
        for _ in range(20):
            assert fresh(url) == load_model(models[0]).id
        until(lambda: "another replaces it" in process.said)
        until(lambda: requests(url) == 40)  # of all, also of the one that is dead
        assert requests(url, "connection", 400) == 20
        process.popen.send_signal(signal.SIGTERM)
        assert process.end()[0] == 0
        for pid in [*before, *children_left(process)]:
            assert not Path(f"/proc/{pid}").exists()


def requests(url: str, path: str = "/v1/predict", status: int = 200) -> float:
    """How many requests were answered so, by all processes."""
    name = f'ctr_requests_total{{path="{path}",status="{status}"}} '
    return float(httpx.get(f"{url}/metrics", verify=False).text.split(name)[1].split()[0])


def children_left(process: Command) -> list[int]:
    try:
        return children(process)
    except FileNotFoundError:
        return []


def test_a_child_that_the_server_did_not_start_is_only_reaped(registry: Registry) -> None:
    def have_child() -> None:
        if os.fork() == 0:
            os._exit(0)

    words = "--registry", registry.place, "--workers", 2
    with server_process(*words, preexec_fn=have_child) as (process, line):
        assert len(children(process)) == 2
        assert fresh(line.split()[-1])


def test_all_change_to_another_version(registry: Registry, models: list[Path]) -> None:
    with two(registry) as (process, url):
        before = fresh(url)
        version = registry.publish(models[1], ["stable"])
        process.popen.send_signal(signal.SIGHUP)
        until(lambda: {fresh(url) for _ in range(20)} == {version})
        text = httpx.get(f"{url}/metrics", verify=False).text
        assert f'ctr_model{{id="{version}"}} 1.0' in text
        assert before not in text, "of versions that are gone, nothing is left"

        def serving() -> set[str]:
            """The versions whose weights the processes have in memory."""
            files = {name for pid in children(process) for name in mapped_files(pid)}
            return {Path(name).stem for name in files if name.endswith(".lookup")}

        until(lambda: serving() == {version})
        killed = children(process)[0]
        os.kill(killed, signal.SIGKILL)
        until(lambda: len(children(process)) == 2 and killed not in children(process))
        until(lambda: serving() == {version})
        process.popen.send_signal(signal.SIGINT)
        assert process.end()[0] == 0


def test_files_of_metrics_do_not_grow_with_versions(registry: Registry, models: list[Path]) -> None:
    with two(registry) as (process, url):
        gone = fresh(url)
        (folder,) = {Path(name).parent for name in mapped_files(children(process)[0]) if name.endswith(".db")}
        for path in models[1:]:
            version = registry.publish(path, ["stable"])
            until(lambda version=version: {fresh(url) for _ in range(20)} == {version})
            of_version = {f"{version}-{pid}.predictions" for pid in children(process)}
            until(lambda names=of_version: {each.name for each in folder.glob("*.predictions")} == names)
            assert all(gone.encode() not in each.read_bytes() for each in folder.iterdir())
            gone = version
        text = httpx.get(f"{url}/metrics", verify=False).text
        assert int(text.split(f'ctr_prediction_count{{id="{version}"}} ')[1].split(".")[0]) >= 2 * 20


def mapped_files(pid: int) -> set[str]:
    return {line.split()[-1] for line in Path(f"/proc/{pid}/maps").read_text().splitlines()}


def test_those_that_cannot_begin_end_the_server(
    registry: Registry,
    models: list[Path],
    cli: Cli,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with server_process("--registry", registry.place) as (_, line):
        port = line.rsplit(":", 1)[1].strip()
        ended = cli("serve", "--registry", registry.place, "--workers", 2, "--port", port)
        assert ended.code == 1
        assert "is in use" in ended.err


def test_a_torn_version_right_after_a_good_one(registry: Registry, models: list[Path]) -> None:
    """A process that has not seen the good one serves it, too, in place of the torn one."""
    good, torn = (registry.publish(path) for path in models[1:])
    weights = Path(registry.place, "versions", torn, "weights.safetensors")
    with two(registry) as (process, url):
        behind = children(process)[0]
        os.kill(behind, signal.SIGSTOP)
        registry.label("stable", good)
        until(lambda: f"stable is now version {good}" in process.said)
        replace_file(weights, weights.read_bytes()[:-1])
        registry.label("stable", torn)
        os.kill(behind, signal.SIGCONT)
        until(lambda: process.said.count(f"version {torn} of") >= 2)  # both have tried it
        until(lambda: {fresh(url) for _ in range(20)} == {good})


def test_one_that_takes_anothers_place_starts_with_what_is_served(
    registry: Registry, models: list[Path]
) -> None:
    with two(registry) as (process, url):
        version = registry.publish(models[1], ["stable"])
        until(lambda: {fresh(url) for _ in range(20)} == {version})
        before = children(process)
        os.kill(before[0], signal.SIGKILL)
        until(lambda: len(children(process)) == 2 and before[0] not in children(process))
        assert {fresh(url) for _ in range(40)} == {version}


def test_processes_end_with_their_parent(registry: Registry) -> None:
    with two(registry) as (process, url):
        processes = children(process)
        process.popen.kill()
        until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in processes))
        with pytest.raises(httpx.ConnectError):
            fresh(url)


def test_a_process_that_is_starting_ends_with_its_parent(registry: Registry) -> None:
    with two(registry) as (process, _):
        processes = children(process)
        os.kill(processes[0], signal.SIGKILL)
        until(lambda: len(children(process)) == 2 and processes[0] not in children(process))
        (starting,) = set(children(process)) - set(processes)
        until(lambda: not handles_sigterm(starting))
        until(lambda: handles_sigterm(starting))  # as a server that is not ready yet
        process.popen.kill()
        until(lambda: not Path(f"/proc/{starting}").exists())


STOPPED_WHILE_IT_STARTS = """
import os, signal, time
from ctr.api.operations import run_processes

def work(number, on_ready):
    if number == 0:
        os.kill(os.getppid(), signal.SIGTERM)
    time.sleep(60)

run_processes(20, work, print)
"""


def test_a_server_that_is_stopped_while_it_starts_processes_ends(tmp_path: Path) -> None:
    command = [sys.executable, "-c", STOPPED_WHILE_IT_STARTS]
    subprocess.run(command, check=True, timeout=20, env=os.environ | {SHARED_FOLDER: str(tmp_path)})


def handles_sigterm(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    caught = int(next(line for line in status.splitlines() if line.startswith("SigCgt")).split()[1], 16)
    return bool(caught >> (signal.SIGTERM - 1) & 1)


@pytest.mark.parametrize("words", [(), ("--socket", "ctr.sock")])
def test_one_that_ends_by_itself_leaves_its_address_to_the_next(
    registry: Registry, models: list[Path], tmp_path: Path, words: tuple[str, ...]
) -> None:
    socket = tmp_path / "ctr.sock"
    words = tuple(str(socket) if word == "ctr.sock" else word for word in words)
    with server_process("--registry", registry.place, "--workers", 2, *words) as (process, line):
        first, second = children(process)
        for pid in (first, second):
            os.kill(pid, signal.SIGTERM)
            until(lambda pid=pid: len(children(process)) == 2 and pid not in children(process))
        for _ in range(20):
            transport = httpx.HTTPTransport(verify=False, uds=str(socket) if words else None)
            url = "http://server" if words else line.split()[-1]
            with new_client(url, transport=transport) as client:
                assert answered(client) == load_model(models[0]).id


def test_what_killed_servers_shared_is_removed_by_a_later_one(tmp_path: Path) -> None:
    with _shared_folder(str(tmp_path)) as of_a_living_server:
        abandoned, starting = (tmp_path / f"ctr-served-{name}" for name in ("abandoned", "starting"))
        for folder in (abandoned, starting):
            folder.mkdir()
        for folder in (abandoned, Path(of_a_living_server)):
            (folder / "counter.db").touch()
            os.utime(folder, (0, 0))
        with _shared_folder(str(tmp_path)) as folder:
            assert set(tmp_path.iterdir()) == {Path(of_a_living_server), starting, Path(folder)}
