"""Spark on this machine, as users have it: in one process, as a small cluster, and as a standalone one."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, sleep
from typing import TypeVar

import pytest

from ctr.engines import forking
from tests.spark.java import java_options

LOCAL = "local[2,4]"  # as many attempts at a task as on a cluster
LOCAL_CLUSTER = "local-cluster[2,1,1024]"
T = TypeVar("T")
_START_S, _END_S = 60.0, 100.0
_EXECUTOR = "CoarseGrainedExecutorBackend"


def why_not() -> str | None:
    """Why nothing can be tested with Spark here; None if it can."""
    try:
        import pyspark  # noqa: F401
    except ImportError:
        return "PySpark is not installed: make spark installs it"
    try:
        subprocess.run(["java", "-version"], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "there is no Java on PATH: Debian's openjdk-17-jre-headless is one"
    return None


def environment(**settings: str) -> dict[str, str]:
    """For a program that uses Spark, on loopback alone."""
    import pyspark

    return {
        **os.environ,
        "SPARK_HOME": os.path.dirname(pyspark.__file__),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_HOSTNAME": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "JAVA_TOOL_OPTIONS": java_options(),
        **settings,
    }


@dataclass
class Finished:
    """How a command ended."""

    code: int
    out: str
    err: str


class Ctr:
    """A running `ctr` command, forked to be there at once, whose Spark belongs to it."""

    def __init__(self, words: Sequence[object], env: Mapping[str, str]) -> None:
        # Files, as a pipe would have to be read all the time.
        self._out, self._err = os.memfd_create("out"), os.memfd_create("err")
        with open(os.devnull) as nothing:
            files = [nothing.fileno(), self._out, self._err]
            self.process = forking.fork_server().fork([*map(str, words)], files, env)

    def end(self, timeout_s: float = _END_S) -> Finished:
        """Wait until it has ended."""
        try:
            self.process.wait(timeout_s)
        finally:
            self.kill()
        out, err = self._read(self._out), self._read(self._err)
        assert "Traceback" not in err, err
        return Finished(self.process.wait(), out, err)

    def said(self, text: str) -> bool:
        """Whether it has shown this so far, such as in its progress."""
        assert self.process.poll() is None, self._read(self._err)
        return text in self._read(self._err)

    @staticmethod
    def _read(file: int) -> str:
        return os.pread(file, os.fstat(file).st_size, 0).decode()

    def kill(self) -> None:
        """End it and all that it has started."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def executors(self) -> list[int]:
        """The processes of its executors, oldest first."""
        return sorted(pid for pid, words in _processes().items() if _EXECUTOR in words)

    def python_workers(self) -> list[int]:
        """The processes that run its tasks."""
        return [pid for pid, words in _processes().items() if "pyspark.daemon" in words and _is_task(pid)]


def start(*words: object, env: Mapping[str, str] | None = None) -> Ctr:
    """Start `ctr` with these words."""
    return Ctr(words, env or environment())


def run(*words: object, env: Mapping[str, str] | None = None) -> Finished:
    """Run `ctr` with these words."""
    return start(*words, env=env).end()


def wait_for(what: Callable[[], T], timeout_s: float = _START_S) -> T:
    """The first answer that is true."""
    deadline = monotonic() + timeout_s
    while not (answer := what()):
        assert monotonic() < deadline, "it did not come"
        sleep(0.02)
    return answer


@dataclass
class Standalone:
    """A master and its workers."""

    url: str
    _processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def close(self) -> None:
        """Stop them."""
        for process in self._processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@contextmanager
def standalone(
    folder: Path,
    workers: int = 2,
    cores: int = 1,
    *,
    host: str = "127.0.0.1",
    places: Sequence[tuple[str, Sequence[str]]] = (),
) -> Iterator[Standalone]:
    """A standalone cluster on loopback.

    `host`: the master's address. `places`: for each worker, its address, and words with which its command
    begins.
    """
    # Spark starts no twin of a task on its own host.
    places = places or [(f"127.0.0.{number + 2}", ()) for number in range(workers)]
    port, env = _free_port(), environment(SPARK_LOCAL_HOSTNAME=host)
    spark_class = str(Path(env["SPARK_HOME"], "bin", "spark-class"))
    cluster = Standalone(f"spark://{host}:{port}")

    def launch(name: str, host: str, *words: str, before: Sequence[str] = ()) -> None:
        with (folder / f"{name}.log").open("wb") as log:
            command = [
                *before,
                spark_class,
                f"org.apache.spark.deploy.{words[0]}",
                "--host",
                host,
                *words[1:],
            ]
            cluster._processes.append(
                subprocess.Popen(
                    command,
                    env={**env, "SPARK_LOCAL_IP": host, **({"SPARK_LOCAL_HOSTNAME": host} if before else {})},
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )

    with closing(cluster):
        launch("master", host, "master.Master", "--port", str(port), "--webui-port", "0")
        wait_for(lambda: _answers(host, port))
        for number, (address, before) in enumerate(places):
            work = folder / f"work-{number}"
            launch(
                f"worker-{number}",
                address,
                "worker.Worker",
                *(
                    "--cores",
                    str(cores),
                    "--memory",
                    f"{cores}g",
                    "--webui-port",
                    "0",
                    "--work-dir",
                    str(work),
                ),
                cluster.url,
                before=before,
            )
        registered = "Registering worker"
        wait_for(lambda: (folder / "master.log").read_text().count(registered) == len(places))
        yield cluster


def spark_settings(folder: Path, settings: Mapping[str, object]) -> dict[str, str]:
    """The environment of a program with these settings of Spark."""
    lines = [f"{name} {value}" for name, value in settings.items()]
    folder.mkdir(exist_ok=True)
    (folder / "spark-defaults.conf").write_text("\n".join(lines) + "\n")
    return environment(SPARK_CONF_DIR=str(folder))


def executors_python(folder: Path, script: str, command: str = "") -> str:
    """A Python for executors alone that first runs these lines of a shell, and is run by this command."""
    path = folder / "python"
    path.write_text(f'#!/bin/sh\n{script}\nexec {command} {sys.executable} "$@"\n')
    path.chmod(0o755)
    return str(path)


def _free_port() -> int:
    with socket.socket() as each:
        each.bind(("127.0.0.1", 0))
        return int(each.getsockname()[1])


def _answers(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), 1).close()
    except OSError:
        return False
    return True


def _processes() -> dict[int, str]:
    """The command lines of all processes."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                found[int(entry.name)] = (entry / "cmdline").read_bytes().decode(errors="replace")
    return found


def _is_task(pid: int) -> bool:
    """Whether it is a fork of Spark's daemon for Python, and not that itself."""
    with suppress(OSError):
        parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        return "pyspark.daemon" in Path(f"/proc/{parent}/cmdline").read_bytes().decode(errors="replace")
    return False


needs_spark = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
