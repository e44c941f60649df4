"""The commands in docker/ run here: as processes, with the words, variables and scripts of the files."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic, sleep

import pytest
from redis import Redis

from ctr.ps.servers.redis_server import find_redis_server, free_ports
from ctr.synth import write_click_log
from tests.ctr.distributed_jobs import wait_for
from tests.docker.files import DOCKER, SECRETS, compose, container
from tests.ps.redis_servers import needs_redis

pytestmark = [needs_redis, pytest.mark.xdist_group("docker")]

PASSWORD = SECRETS["CTR_REDIS_PASSWORD"]
SERVERS = [f"redis-{number}" for number in range(6)]
SCRIPT = DOCKER / "k8s" / "form-cluster.sh"
BIN = Path(sys.executable).parent


@contextmanager
def redis_cluster(folder: Path, words_of: Callable[[str], Sequence[str]]) -> Iterator[dict[str, int]]:
    """Six servers with these words of a file, each on a port of its own; a cluster if they were one here."""
    binary = find_redis_server()
    ports, running = {}, []
    try:
        for name, port in zip(SERVERS, free_ports(len(SERVERS), bus=True), strict=True):
            words = [str(binary), *words_of(name)[1:], "--bind", "127.0.0.1"]
            words[words.index("--port") + 1] = str(port)
            if "--cluster-announce-ip" in words:
                words[words.index("--cluster-announce-ip") + 1] = "127.0.0.1"
            (folder / name).mkdir(parents=True, exist_ok=True)
            with (folder / name / "log").open("wb") as log:
                running.append(subprocess.Popen(words, cwd=folder / name, stdout=log, stderr=log))
            ports[name] = port
        yield ports
    finally:
        for process in running:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, int]]:
    services = compose(SECRETS | {"CTR_DATA": "/unused"})["services"]
    with redis_cluster(tmp_path_factory.mktemp("redis"), lambda name: services[name]["command"]) as ports:
        yield ports


def here(word: str, ports: Mapping[str, int], data: Path) -> str:
    """A word of a file, with the addresses and the folder that there are here."""
    for name, port in ports.items():
        word = word.replace(f"{name}.redis:6379", f"127.0.0.1:{port}").replace(
            f"{name}:6379", f"127.0.0.1:{port}"
        )
    return word.replace("/data", str(data))


def form(
    ports: Mapping[str, int], words: Sequence[str], **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run the script with these words of a file."""
    path = os.pathsep.join([str(find_redis_server().parent), os.environ["PATH"]])
    command = ["sh", str(SCRIPT), *(here(word, ports, Path("/unused")) for word in words[2:])]
    env = {**os.environ, "PATH": path, "CTR_REDIS_PASSWORD": PASSWORD, **variables}
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=120)


def form_words() -> list[str]:
    return list(compose(SECRETS | {"CTR_DATA": "/unused"})["services"]["form-cluster"]["command"])


@pytest.fixture(scope="module")
def cluster(ports: dict[str, int]) -> dict[str, int]:
    """The six servers as a cluster."""
    done = form(ports, form_words())
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "formed a cluster of 6 servers\nthe cluster is ready\n"
    return ports


def environment() -> dict[str, str]:
    return {
        **os.environ,
        "PATH": os.pathsep.join([str(BIN), os.environ["PATH"]]),
        "CTR_REDIS_PASSWORD": PASSWORD,
    }


def test_a_server_that_is_missing_is_named(ports: dict[str, int]) -> None:
    done = form({**ports, "redis-3": 9}, form_words(), FORM_CLUSTER_WAIT_S="1")
    assert done.returncode == 1
    assert done.stderr.startswith("form-cluster: 127.0.0.1:9 does not answer (")


def test_a_wrong_password_is_named(ports: dict[str, int]) -> None:
    done = form(ports, form_words(), CTR_REDIS_PASSWORD="wrong")
    assert done.returncode == 1
    assert "refuses the password in CTR_REDIS_PASSWORD" in done.stderr


def test_three_primaries_have_a_replica_each(cluster: dict[str, int]) -> None:
    with Redis(port=cluster["redis-0"], password=PASSWORD) as client:
        roles = [each["flags"].replace("myself,", "") for each in client.cluster("NODES").values()]
    assert sorted(roles) == ["master"] * 3 + ["slave"] * 3


def test_a_cluster_is_formed_once(cluster: dict[str, int]) -> None:
    words = container("CronJob", "form-cluster")["command"]
    done = form(cluster, words)
    assert (done.returncode, done.stdout, done.stderr) == (0, "the cluster is ready\n", "")


def test_servers_with_new_addresses_find_each_other_again(tmp_path: Path) -> None:
    words = container("CronJob", "form-cluster")["command"]
    secret = {"$(POD_IP)": "127.0.0.1", "$(CTR_REDIS_PASSWORD)": PASSWORD}
    command = [secret.get(word, word) for word in container("StatefulSet", "redis")["command"]]
    for _ in range(2):
        with redis_cluster(tmp_path, lambda _: command) as ports:
            done = form(ports, words, FORM_CLUSTER_WAIT_S="30")
            assert done.returncode == 0, done.stderr
            with Redis(port=ports["redis-5"], password=PASSWORD) as client:
                wait_for(lambda: {*addresses_of(client)} == {*ports.values()})


def addresses_of(client: Redis) -> list[int]:
    """The ports of the servers that a server is connected with."""
    nodes = client.cluster("NODES")
    return [int(each.split("@")[0].split(":")[1]) for each, of in nodes.items() if of["connected"]]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a hashed data set, as users have one."""
    folder = tmp_path_factory.mktemp("data")
    write_click_log(folder / "train.tsv", 20_000, seed=1)
    words = ["features", "build", "--spec", "criteo", folder / "train.tsv", "--out", folder / "hashed"]
    subprocess.run([BIN / "ctr", *words], check=True, capture_output=True)
    return folder


@pytest.mark.slow
def test_compose_trains_with_more_workers(cluster: dict[str, int], data: Path) -> None:
    services = compose(SECRETS | {"CTR_DATA": str(data)})["services"]
    train, worker = (
        [str(BIN / "ctr"), *(here(word, cluster, data) for word in services[name]["command"])]
        for name in ("train", "worker")
    )
    train += ["--chunk", "500", "--epochs", "5"]
    job = subprocess.Popen(
        train, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    joined = None
    while job.poll() is None and joined is None:  # as `restart: on-failure` does
        more = subprocess.run(worker, env=environment(), capture_output=True, text=True, check=False)
        joined = more.stdout if more.returncode == 0 else None
    out, err = job.communicate()
    assert job.returncode == 0, err
    assert "trained on 100,000 examples" in out
    assert joined is not None
    assert joined.startswith("trained ")
    assert (data / "model" / "manifest.json").exists()


@pytest.mark.slow
def test_kubernetes_trains_and_resumes(cluster: dict[str, int], data: Path) -> None:
    shutil.rmtree(data / "model.checkpoint", ignore_errors=True)
    *shell, script = container("Job", "train")["command"]
    script = here(script, cluster, data).replace(
        "--checkpoint ", "--lease 2 --chunk 500 --epochs 3 --checkpoint-every 0.2s --checkpoint "
    )
    first = subprocess.Popen(
        [*shell, script], env=environment(), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    deadline = monotonic() + 60
    while not (data / "model.checkpoint" / "manifest.json").exists() and monotonic() < deadline:
        sleep(0.02)
    first.send_signal(signal.SIGKILL)
    first.wait()
    again = subprocess.run(
        [*shell, script], env=environment(), capture_output=True, text=True, check=False, timeout=120
    )
    assert again.returncode == 0, again.stderr
    assert "resumed from the checkpoint of" in again.stdout
    script = script.replace("--epochs 3 --checkpoint-every 0.2s", "--epochs 1")
    next_day = subprocess.run(
        [*shell, script], env=environment(), capture_output=True, text=True, check=False, timeout=120
    )
    assert next_day.returncode == 0, next_day.stderr
    assert "resumed" not in next_day.stdout


@pytest.mark.slow
def test_both_serve_the_model(cluster: dict[str, int], data: Path) -> None:
    served = [
        ["ctr", *compose(SECRETS | {"CTR_DATA": str(data)})["services"]["serve"]["command"]],
        container("Deployment", "serve")["command"],
    ]
    assert served[0] == served[1]
    words = [here(word, cluster, data).replace("0.0.0.0", "127.0.0.1") for word in served[0]]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words[words.index("--port") + 1] = str(port)
    server = subprocess.Popen(
        [str(BIN / words[0]), *words[1:]], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        deadline, answer = monotonic() + 60, b""
        while not answer and monotonic() < deadline:
            with (
                suppress(OSError),
                urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=2) as ready,
            ):
                answer = ready.read()
        assert b'"ready"' in answer
        assert _health_check(server.pid, port).returncode == 0
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            unheard = _health_check(server.pid, unused.getsockname()[1])
        assert unheard.returncode == 1
        assert "Connection refused" in unheard.stderr
        assert _health_check(os.getpid(), port).returncode == 0, "of another command, nothing is asked"
    finally:
        server.send_signal(signal.SIGTERM)
        assert server.wait(30) == 0


def _health_check(command: int, port: int) -> subprocess.CompletedProcess[str]:
    """The image's, with that process as the container's command."""
    return subprocess.run(
        [sys.executable, DOCKER / "health.py", str(command)],
        env=os.environ | {"CTR_SERVE_PORT": str(port)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_cluster_with_a_slot_that_nobody_serves(cluster: dict[str, int], data: Path) -> None:
    """The last test here, as the cluster does not recover."""
    for port in cluster.values():
        with Redis(port=port, password=PASSWORD) as client, suppress(Exception):
            client.execute_command("CLUSTER DELSLOTS 7")
    done = form(cluster, form_words())
    assert done.returncode == 1
    assert done.stderr.startswith(
        "form-cluster: of 16384 hash slots 1 are served by nobody; repair it with redis-cli"
    )
    addresses = ",".join(f"127.0.0.1:{port}" for port in cluster.values())
    words = [
        "train",
        data / "hashed",
        "--model",
        data / "m",
        "--store",
        f"redis+cluster://{addresses}?model=x",
    ]
    job = subprocess.run(
        [BIN / "ctr", *words], env=environment(), capture_output=True, text=True, check=False
    )
    assert job.returncode == 1
    assert job.stderr.count("\n") == 1, job.stderr
    assert "no node serves 1 of the cluster's hash slots; assign them, such as with `redis-cli" in job.stderr
