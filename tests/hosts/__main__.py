"""Train across hosts that are apart: how fast, and whether every update counts once.

`make hosts`, or `python -m tests.hosts [SCENARIO...]`, as root.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from time import monotonic, sleep

import numpy as np
from safetensors.numpy import load_file

from ctr.errors import CtrError
from ctr.features import load_spec
from tests.hosts.network import ROOT, Network, every, remove_left, why_not
from tests.hosts.servers import RedisOnHosts
from tests.hosts.switch import Conditions, Line
from tests.ps.breakable_redis import BreakableRedis, BreakableServer

CTR = Path(sys.executable).with_name("ctr")
LEADER, WORKERS, SERVERS = 0, (1, 2), (3, 4, 5)
HOSTS = 6
ROWS, SPEED_ROWS = 300_000, 2_000_000
NEAR = Line(delay_s=0.0005, bit_s=1e9)
"""1 ms there and back, and 1 Gbit/s."""
_ADDITIVE = ("--alpha", 1, "--beta", 1e20, "--epochs", 3, "--chunk", 2_000, "--lease", 3)
"""Steps so small that the state is the sum of all updates, in whatever order they come."""
_BSP = ("--consistency", "bsp", "--chunk", 30_000)
_LONGEST_S = 600.0
_CUT_AFTER_S, _CUT_S = 4.0, 8.0


@dataclass(frozen=True)
class Scenario:
    """What happens to the lines while a job with workers on three hosts trains."""

    name: str
    conditions: Conditions
    replicas: int = 0
    cut: frozenset[tuple[int, int]] = frozenset()
    """Is cut for some seconds, in the middle of the job."""
    small_packets: tuple[int, ...] = ()
    asked: str = ""
    """What is asked of the speed, beside that on one host; empty: it is not measured."""
    spark: bool = False
    """Workers are tasks of Spark, whose executors are on these hosts."""


def _apart(*hosts: int) -> frozenset[tuple[int, int]]:
    """These hosts and all others do not reach each other."""
    others = set(range(HOSTS)) - set(hosts)
    return frozenset((a, b) for one in hosts for other in others for a, b in ((one, other), (other, one)))


def _mute(host: int) -> frozenset[tuple[int, int]]:
    """What this host sends reaches nobody."""
    return frozenset((host, other) for other in range(HOSTS) if other != host)


_ALL_NEAR = Conditions(every(range(HOSTS), NEAR))
SCENARIOS = (
    Scenario("1 ms", _ALL_NEAR, asked="asked: at least 0.6"),
    Scenario("20 ms", Conditions(every(range(HOSTS), Line(delay_s=0.01))), asked="nothing is asked"),
    Scenario("slow host", Conditions(every(range(HOSTS), NEAR, {WORKERS[0]: Line(delay_s=0.01, bit_s=1e8)}))),
    Scenario(
        "2% loss",
        Conditions(every(range(HOSTS), Line(0.0005, 1e9, 0.02))),
        small_packets=tuple(range(HOSTS)),
        asked="nothing is asked",
    ),
    Scenario("server cut off", _ALL_NEAR, replicas=1, cut=_apart(SERVERS[0])),
    Scenario("server mute", _ALL_NEAR, replicas=1, cut=_mute(SERVERS[0])),
    Scenario("worker cut off", _ALL_NEAR, cut=_apart(WORKERS[0])),
    Scenario("worker mute", _ALL_NEAR, cut=_mute(WORKERS[0])),
    Scenario("spark", _ALL_NEAR, spark=True),
)


class Trial:
    """Jobs over data sets in a folder, and what they come to on one host."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # Without a bias, which begins at the rate of clicks, every gradient of `_ADDITIVE` is a half.
        spec = load_spec("criteo").model_copy(update={"bias": False})
        (folder / "spec.yaml").write_text(spec.to_yaml())
        for name, rows, of in (("small", ROWS, folder / "spec.yaml"), ("large", SPEED_ROWS, "criteo")):
            _ctr("synth", "--rows", rows, "--out", folder / f"{name}.tsv")
            _ctr("features", "build", "--spec", of, folder / f"{name}.tsv", "--out", folder / name)
            (folder / f"{name}.tsv").unlink()
        with closing(BreakableRedis(len(SERVERS))) as redis:
            self.near = self._speed(redis.url, [[], []])
            self._expected = self._sums(redis.url, [[], []])
            self._bsp = self._train("small", redis.url, [[], []], *_BSP).id

    def play(self, scenario: Scenario) -> list[str]:
        """Go through a scenario; what was wrong."""
        problems = []
        with Network(HOSTS) as network:
            workers = [network.enter(host) for host in WORKERS]
            redis = RedisOnHosts(network, SERVERS, scenario.replicas, {"cluster-node-timeout": "2000"})
            with closing(redis):
                network.set(scenario.conditions)
                network.small_packets(scenario.small_packets)
                if scenario.spark:
                    return self._play_spark(network, redis.url)
                if scenario.asked:
                    ratio = self._speed(redis.url, workers) / self.near
                    print(f"  {ratio:.2f} of the examples/s on one host ({scenario.asked})", flush=True)
                if not scenario.cut:
                    bsp = self._train("small", redis.url, workers, *_BSP).id
                    if bsp != self._bsp:
                        problems.append(f"BSP came to model {bsp}, and on one host to {self._bsp}")
                began = monotonic()
                with self._faults(network, scenario):
                    sums = self._sums(redis.url, workers)
                wrong = _differing(sums, self._expected)
                took = f"updates of a job of {monotonic() - began:.0f} s"
                print(f"  {took}: {f'WRONG in {wrong:,} slots' if wrong else 'each counts once'}", flush=True)
                if scenario.replicas:
                    promoted = sum(_is_primary(server) for server in redis.servers[len(SERVERS) :])
                    print(f"  {promoted} replicas took their primary's place", flush=True)
                    if not promoted:
                        problems.append("no replica took the place of the primary that was cut off")
                if wrong:
                    problems.append(f"an update was lost, or counted twice: {wrong:,} slots have other sums")
        return problems

    def _play_spark(self, network: Network, url: str) -> list[str]:
        """A job whose workers are tasks of executors on two hosts."""
        if find_spec("pyspark") is None:
            print("  skipped: PySpark is not installed (make spark installs it)", flush=True)
            return []
        from tests.spark.clusters import standalone

        leader = network.address(LEADER)
        of_spark = {"SPARK_LOCAL_IP": leader, "SPARK_LOCAL_HOSTNAME": leader}
        places = [(network.address(host), network.enter(host)) for host in WORKERS]
        work = self._folder / "spark"
        work.mkdir()
        with standalone(work, host=leader, places=places) as cluster:
            words = ["train", self._folder / "small", "--model", self._folder / "model", "--workers", 2]
            words += [
                "--store",
                f"{url}?model=hosts",
                "--engine",
                "spark",
                "--master",
                cluster.url,
                *_ADDITIVE,
            ]
            _ctr(*words, env={**of_spark, "PYSPARK_PYTHON": sys.executable})
        wrong = _differing(load_file(self._folder / "model/state.safetensors"), self._expected)
        print(f"  executors on two hosts: {wrong:,} slots with wrong sums", flush=True)
        return [f"{wrong:,} slots have other sums"] if wrong else []

    @contextmanager
    def _faults(self, network: Network, scenario: Scenario) -> Iterator[None]:
        """Cut lines in a while, and heal them after that."""
        if not scenario.cut:
            yield
            return
        cut = Conditions(scenario.conditions.lines, scenario.cut)
        pid = os.fork()  # of a thread, the host would be another
        if pid == 0:
            with suppress(BaseException):
                sleep(_CUT_AFTER_S)
                network.set(cut)
                sleep(_CUT_S)
                network.set(scenario.conditions)
            os._exit(0)
        try:
            yield
        finally:
            os.waitpid(pid, 0)

    def _speed(self, url: str, workers: _Workers) -> float:
        """Examples/s of two workers with the settings that a user gets."""
        return max(self._train("large", url, workers).speed for _ in range(2))

    def _sums(self, url: str, workers: _Workers) -> dict[str, np.ndarray]:
        """All updates of a job, added up."""
        model = self._train("small", url, workers, *_ADDITIVE).model
        return load_file(model / "state.safetensors")

    def _train(self, data: str, url: str, workers: _Workers, *words: object) -> _Trained:
        """A job that this host leads, with a worker for each of these beginnings of commands."""
        model = self._folder / "model"
        store = f"{url}{'&' if '?' in url else '?'}model=hosts"
        command = ["train", self._folder / data, "--model", model, "--store", store, "--engine", "processes"]
        command += ["--workers", len(workers), *words, "--json", "-"]
        leader = [sys.executable, "-m", "tests.hosts.leader", json.dumps(workers)]
        return _Trained(model, json.loads(_output([*leader, *map(str, command)])))


_Workers = Sequence[Sequence[str]]


@dataclass(frozen=True)
class _Trained:
    model: Path
    facts: dict[str, object]

    @property
    def speed(self) -> float:
        return float(str(self.facts["examples_per_second"]))

    @property
    def id(self) -> str:
        return str(self.facts["model"])


def _is_primary(server: BreakableServer) -> bool:
    return str(server.call("INFO", "replication")["role"]) == "master"


def _differing(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> int:
    """How many slots have other sums, of squared gradients that are quarters; the store has a dither."""
    if not np.array_equal(one["slots"], other["slots"]):
        return max(one["slots"].size, other["slots"].size)
    n, expected = one["state"][:, 1], other["state"][:, 1]
    return int(np.count_nonzero(np.abs(n - expected) > 0.1))


def _ctr(*words: object, env: Mapping[str, str] | None = None) -> None:
    _output([str(CTR), *map(str, words)], env or {})


def _output(command: Sequence[str], env: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | dict(env or {}),
        capture_output=True,
        text=True,
        timeout=_LONGEST_S,
        check=False,
    )
    if done.returncode:
        raise CtrError(f"{' '.join(command)}: {done.stderr[-2_000:]}")
    return done.stdout


def main(words: Sequence[str] | None = None) -> int:
    """The exit code: 1 when something was wrong, 2 where there can be no hosts."""
    parser = argparse.ArgumentParser(prog="python -m tests.hosts", description=__doc__)
    names = [scenario.name for scenario in SCENARIOS]
    parser.add_argument("scenario", nargs="*", help=f"of: {', '.join(names)}; all by default")
    wanted = parser.parse_args(words).scenario or names
    if unknown := set(wanted) - set(names):
        parser.error(f"there is no scenario {sorted(unknown)[0]!r}")
    if (reason := why_not()) is not None:
        print(f"make hosts: {reason}", file=sys.stderr)
        return 2
    problems: list[str] = []
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that hosts and what runs on them end
    remove_left()
    with tempfile.TemporaryDirectory(prefix="ctr-hosts-") as folder:
        trial = Trial(Path(folder))
        print(f"on one host: {trial.near:,.0f} examples/s", flush=True)
        for scenario in SCENARIOS:
            if scenario.name in wanted:
                print(f"{scenario.name}:", flush=True)
                try:
                    wrong = trial.play(scenario)
                except CtrError as error:
                    wrong = [str(error)]
                problems += [f"{scenario.name}: {problem}" for problem in wrong]
    for problem in problems:
        print(f"WRONG  {problem}")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
