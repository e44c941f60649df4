"""`ctr ps status`, `export` and `drop` on real servers, also while a job trains."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from time import sleep
from typing import Any

import numpy as np
import pytest
import redis

from api.app import create_app
from ctr.learn.ftrl import Ftrl
from ctr.learn.rounds import read_out
from ctr.model.artifact import load_model, load_state
from ps import BoardView, Token, parse_redis_url
from ps.board.job_board import JobBoard
from ps.redis.store import RedisStore
from ps.wire.keys import Keys
from tests.api.running import run_server
from tests.ctr.conftest import Cli
from tests.ctr.distributed_jobs import Command
from tests.ps.cut_lines import cut_line
from tests.ps.job_boards import until
from tests.ps.redis_servers import StartRedis, needs_redis

pytestmark = needs_redis

ENDLESS = ("--epochs", 10_000, "--chunk", 200, "--workers", 2)


def named(url: str) -> str:
    return f"{url}?model=ads"


def password(url: str) -> str:
    return url.partition("@")[0].rpartition(":")[2]


def make_model(url: str) -> RedisStore:
    store = RedisStore(parse_redis_url(named(url)), bits=12, width=2, facts={"fingerprint": "f" * 64})
    slots = np.arange(100, dtype=np.uint32)
    store.push(slots, np.ones((100, 2), np.float32), Token("job", 0, 0))
    return store


def keys_in(url: str) -> int:
    with redis.Redis.from_url(url) as client:
        return int(client.dbsize())


@contextmanager
def train(log: Path, folder: Path, url: str, *options: object) -> Iterator[Command]:
    """A job in processes of its own, killed at the end of the block."""
    words = ("train", "--spec", "criteo", log, "--model", folder / "trained", "--store", named(url))
    job = Command(*words, *options)
    try:
        yield job
    finally:
        job.kill()


@contextmanager
def paused(url: str) -> Iterator[JobBoard]:
    """The board of a job that has begun; in the block, its workers wait, but go on reporting."""
    with closing(JobBoard(parse_redis_url(named(url)))) as board:
        seen: dict[str, int] = {}
        until(lambda: board.job() is not None and all_move(board.look(), seen), timeout_s=90)
        board.pause(-1)
        yield board
        board.pause(None)


def all_move(view: BoardView, seen: dict[str, int]) -> bool:
    """Whether both workers have pushed since they were `seen`, for which this fills in their first clocks."""
    moves = [w.clock is not None and w.clock > seen.setdefault(w.id, w.clock) for w in view.workers]
    return sum(moves) == 2 or (len(view.ranks) == 2 and all(rank.pushed >= 0 for rank in view.ranks))


def watch(url: str, **options: Any) -> Command:
    """`ctr ps status --watch` in a process of its own."""
    return Command("ps", "status", "--store", named(url), "--watch", "--every", 0.1, **options)


def interrupted(watching: Command) -> tuple[int, str]:
    """Its exit code after Ctrl-C, and what it said on standard error."""
    watching.popen.send_signal(signal.SIGINT)
    return watching.end()


def facts_of(cli: Cli, url: str) -> dict[str, Any]:
    shown = cli("ps", "status", "--store", named(url), "--json", "-")
    return json.loads(shown.out)


def trained(cli: Cli, url: str, job: Command) -> dict[str, Any]:
    """The status of a job whose two workers have told of examples that they have trained."""

    def reported() -> bool:
        assert job.popen.poll() is None, job.said
        sleep(0.1)  # they report every two seconds
        workers = (facts_of(cli, url)["job"] or {}).get("workers", [])
        return sum(bool(worker["examples"]) for worker in workers) == 2

    with paused(url):
        until(reported)
    return facts_of(cli, url)


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


class TestStatus:
    def test_no_model(self, cli: Cli, redis_url: str) -> None:
        shown = cli("ps", "status", "--store", named(redis_url))
        assert shown.code == 1
        assert "no model 'ads'" in shown.err
        assert "Redis" in shown.out  # the node is shown all the same
        assert facts_of(cli, redis_url)["model"] is None

    def test_a_model_without_a_job(self, cli: Cli, redis_url: str) -> None:
        make_model(redis_url).close()
        shown = cli("ps", "status", "--store", named(redis_url))
        assert shown.code == 0, shown.err
        assert "model ads: 2**12 slots in 16 partitions" in shown.out
        assert "no job" in shown.out
        assert "transform ffffffffffff," in shown.out
        assert password(redis_url) not in shown.out
        facts = facts_of(cli, redis_url)
        assert facts["job"] is None
        assert facts["nodes"][0]["partitions"] == list(range(16))
        assert facts["partition_balance"] == 1

    def test_a_cluster(self, cli: Cli, cluster_url: str) -> None:
        make_model(cluster_url).close()
        shown = cli("ps", "status", "--store", named(cluster_url))
        assert shown.code == 0, shown.err
        assert "balance (the busiest node over the mean)" in shown.out
        facts = facts_of(cli, cluster_url)
        assert sorted(p for node in facts["nodes"] for p in node["partitions"]) == list(range(16))
        assert password(cluster_url) not in shown.out + json.dumps(facts)

    def test_a_dead_node_is_named_with_its_partitions(self, cli: Cli, start_redis: StartRedis) -> None:
        own = start_redis(2, config={"cluster-require-full-coverage": "no"})
        make_model(own.url).close()
        facts = facts_of(cli, own.url)
        dead = own.shards[key_is_in_first_half(Keys("ads").meta)][0]
        address = f"{dead.host}:{dead.port}"
        lost = next(node["partitions"] for node in facts["nodes"] if node["address"] == address)
        dead.kill()
        shown = cli("ps", "status", "--store", named(own.url))
        assert shown.code == 1
        line = next(each for each in shown.out.splitlines() if "cannot be reached" in each)
        assert numbers_of(line.partition(": ")[2]) == lost
        assert f"{address}: " in shown.out
        assert f"{len(lost)} of 16 partitions cannot be reached" in shown.err

    def test_a_running_job(self, cli: Cli, busy: tuple[str, Command]) -> None:
        url, job = busy
        self.look_at(cli, url, trained(cli, url, job)["job"])
        until(lambda: facts_of(cli, url)["job"]["later_pass"])
        shown = cli("ps", "status", "--store", named(url))
        assert re.search(r"pass \d+ of 10000, training loss 0\.", shown.out)
        assert "log loss" not in shown.out
        assert job.popen.poll() is None

    def look_at(self, cli: Cli, url: str, facts: dict[str, Any]) -> None:
        assert (facts["state"], facts["consistency"], facts["staleness"]) == ("running", "ssp", 2)
        assert facts["coordinator_alive"]
        assert (facts["pause"], facts["message"], facts["problem"], facts["ranks"]) == (None, "", None, [])
        assert 0 < facts["examples"] < facts["examples_in_all"] == 2_950 * 10_000
        assert (facts["passes"], facts["begun"] - facts["finished"]) == (10_000, len(facts["unfinished"]))
        ids = {worker["id"] for worker in facts["workers"]}
        for worker in facts["workers"]:
            assert 0 < worker["lease_left_s"] <= 10
            assert 0 < worker["logloss"] < 1
            assert worker["lag"] is None or worker["lag"] >= 0
        lags = [worker["lag"] for worker in facts["workers"] if worker["lag"] is not None]
        assert min(lags, default=0) == 0
        for shard in facts["unfinished"]:
            assert shard["owner"] in ids | {None}
            assert 0 <= shard["pushed"] <= shard["chunks"]
        shown = cli("ps", "status", "--store", named(url))
        assert shown.code == 0
        assert (
            f"job {facts['id']}: running, ssp with staleness 2; coordinator alive, 2 live workers"
            in shown.out
        )
        for worker in facts["workers"]:
            assert worker["host"] in shown.out

    def test_a_job_in_rounds(self, cli: Cli, job_log: Path, tmp_path: Path, start_redis: StartRedis) -> None:
        own = start_redis()
        with train(job_log, tmp_path, own.url, *ENDLESS, "--consistency", "bsp") as job:
            facts = trained(cli, own.url, job)["job"]
            shown = cli("ps", "status", "--store", named(own.url))
            folder = tmp_path / "snapshot"
            assert cli("ps", "export", "--store", named(own.url), "--model", folder).code == 0
        assert facts["consistency"] == "bsp"
        assert [rank["rank"] for rank in facts["ranks"]] == [0, 1]
        for rank in facts["ranks"]:
            assert rank["pushed"] <= rank["prepared"] <= rank["pushed"] + 1
            assert rank["rounds"] == 10_000 * 15 // 2
        assert 0 < facts["examples"] < facts["examples_in_all"]
        assert "rounds prepared" in shown.out
        # here what was predicted is not in the workers' reports, but with the ranks' moves
        progressive = load_model(folder).manifest["metrics"]["progressive"]
        assert 0 < progressive["examples"] <= 2_950
        assert progressive["auc"] > 0.5

    def test_a_job_that_was_killed(self, cli: Cli, job_log: Path, tmp_path: Path, redis_url: str) -> None:
        """Nobody is alive any more, and nobody has noticed yet; the table adds up to what was trained."""
        flags = ("--epochs", 10_000, "--chunk", 200, "--workers", 1, "--lease", 3)
        with train(job_log, tmp_path, redis_url, *flags) as job:

            def at_work() -> bool:
                found = facts_of(cli, redis_url)["job"]
                return found is not None and any(worker["examples"] for worker in found["workers"])

            until(at_work, timeout_s=90)
            job.popen.kill()
            job.popen.wait()

        def status(words: str) -> str | None:
            sleep(0.1)
            shown = cli("ps", "status", "--store", named(redis_url))
            assert shown.code == 0, shown.err
            return shown.out if words in shown.out else None

        silent = until(lambda: status("coordinator silent for"))
        assert "coordinator alive" not in silent
        dead = until(lambda: status("coordinator dead, 0 live workers, 1 whose lease has run out"))
        assert "no process works on it" in dead
        facts = facts_of(cli, redis_url)["job"]
        rows = [
            line for line in dead.splitlines() if line.startswith(("others", facts["workers"][0]["host"]))
        ]
        counts = [
            max(int(number.replace(",", "")) for number in re.findall(r" ([\d,]+)\b", row)) for row in rows
        ]
        assert sum(counts) == facts["examples"] > 0
        assert not facts["coordinator_alive"]
        assert cli("ps", "drop", "--store", named(redis_url), "--yes").code == 0

    def test_what_a_failed_job_says(self, cli: Cli, failed: str) -> None:
        shown = cli("ps", "status", "--store", named(failed))
        assert shown.code == 0
        assert "failed" in shown.out
        assert "torn.tsv" in shown.out
        assert "`ctr ps export` saves" in shown.out

    def test_a_description_of_another_version(self, cli: Cli, redis_url: str) -> None:
        make_model(redis_url).close()
        with closing(JobBoard(parse_redis_url(named(redis_url)))) as board:
            board.create("new-1", b'{"version": 99}', shards=3)
            shown = cli("ps", "status", "--store", named(redis_url))
            assert shown.code == 0
            assert "another version" in shown.out
            assert "job new-1: running" in shown.out

    def test_json_takes_one_look(self, cli: Cli) -> None:
        assert cli("ps", "status", "--store", "redis://127.0.0.1:1/0", "--watch", "--json", "-").code == 2

    def test_nobody_there(self, cli: Cli) -> None:
        shown = cli("ps", "status", "--store", "redis://127.0.0.1:1/0")
        assert shown.code == 1
        assert "cannot be reached" in shown.err


class TestWatch:
    def test_plain_lines_where_there_is_no_terminal(self, redis_url: str) -> None:
        make_model(redis_url).close()
        watching = watch(redis_url)
        until(lambda: watching.out.count("\nmodel ads:") >= 3)
        assert interrupted(watching) == (0, "")
        assert "\x1b" not in watching.out

    def test_in_place_on_a_terminal(self, redis_url: str) -> None:
        store = make_model(redis_url)
        ours, theirs = pty.openpty()
        wide = {"TERM": "xterm-256color", "COLUMNS": "200", "LINES": "50"}
        watching = watch(redis_url, files=dict.fromkeys(range(3), theirs), variables=wide)
        os.close(theirs)
        shown = Terminal(ours)
        until(lambda: "model ads" in shown.text)
        store.drop()  # it goes on watching
        until(lambda: "no model 'ads'" in shown.text)
        assert interrupted(watching)[0] == 0
        assert "Traceback" not in shown.end()
        assert "\x1b[1A" in shown.text  # the cursor went up: it was drawn over

    def test_it_waits_for_a_store_that_is_away(self, start_redis: StartRedis) -> None:
        own = start_redis()
        make_model(own.url).close()
        watching = watch(own.url)
        until(lambda: "\nmodel ads:" in watching.out)
        own.servers[0].kill()
        until(lambda: "\nerror: redis://" in watching.out)
        own.servers[0].restart()
        until(lambda: "\nerror: there is no model 'ads'" in watching.out)
        assert interrupted(watching) == (0, "")


class TestExport:
    def test_from_a_running_job(
        self,
        cli: Cli,
        busy: tuple[str, Command],
        job_log: Path,
        tmp_path: Path,
    ) -> None:
        url, job = busy
        before = trained(cli, url, job)["job"]
        folder = tmp_path / "snapshot"
        shown = cli("ps", "export", "--store", named(url), "--model", folder, "--json", "-")
        assert shown.code == 0, shown.err
        facts = json.loads(shown.out)
        model = load_model(folder)
        assert (facts["model"], facts["job"], facts["state"]) == (model.id, before["id"], "running")
        training, exported = model.manifest["training"], model.manifest["exported"]
        assert training["interrupted"]
        assert before["examples"] <= training["examples"] == facts["examples"]
        assert training["inputs"] == [str(job_log)]
        assert (exported["job"], exported["live_workers"]) == (before["id"], 2)
        assert password(url) not in (folder / "manifest.json").read_text() + shown.out + shown.err
        with paused(url):
            self.use(cli, folder, job_log, before["id"])
        assert job.popen.poll() is None

    def use(self, cli: Cli, folder: Path, log: Path, job: str) -> None:
        """It is a model like any other."""
        evaluated = cli("evaluate", "--model", folder, log, "--json", "-")
        assert json.loads(evaluated.out)["auc"] > 0.6
        with run_server(create_app(load_model(folder))) as server:
            answer = server.client.post("/v1/predict", json={"rows": [{"I1": 5}]}).json()
            assert 0 < answer["predictions"][0] < 1
            assert server.client.get("/v1/model").json()["exported"]["job"] == job
        words = [
            "train",
            "--spec",
            "criteo",
            log,
            "--warm-start",
            folder,
            "--model",
            folder.with_name("next"),
        ]
        assert cli(*words).code == 0

    def test_from_a_failed_job(self, cli: Cli, failed: str, tmp_path: Path) -> None:
        """To the bit what the store holds, with the settings of the job."""
        folder = tmp_path / "rescued"
        before = keys_in(failed)
        shown = cli("ps", "export", "--store", named(failed), "--model", folder)
        assert shown.code == 0, shown.err
        assert "is failed: " in shown.out
        assert keys_in(failed) == before
        model = load_model(folder)
        assert model.manifest["exported"]["state"] == "failed"
        saved = load_state(folder, model.spec)
        assert (saved.optimizer, saved.passes) == (Ftrl(alpha=0.05), 1)
        url = parse_redis_url(named(failed))
        facts = {
            "fingerprint": model.spec.fingerprint,
            **{k: str(v) for k, v in saved.optimizer.to_json().items()},
        }
        z_bits = saved.optimizer.z_bits
        with closing(
            RedisStore(url, bits=model.spec.bits, width=2, facts=facts, z_bits=z_bits, join=True)
        ) as store:
            slots, state = read_out(store)
        np.testing.assert_array_equal(saved.slots, slots)
        np.testing.assert_array_equal(saved.state, state)
        weights = saved.optimizer.weights(state)
        np.testing.assert_array_equal(model.linear.weights, weights[weights != 0])

    def test_nothing_tells_what_the_weights_mean(self, cli: Cli, redis_url: str, tmp_path: Path) -> None:
        make_model(redis_url).close()
        shown = cli("ps", "export", "--store", named(redis_url), "--model", tmp_path / "model")
        assert shown.code == 1
        assert "no job" in shown.err
        assert "ctr ps drop" in shown.err
        assert list(tmp_path.iterdir()) == []

    def test_no_model(self, cli: Cli, redis_url: str, tmp_path: Path) -> None:
        shown = cli("ps", "export", "--store", named(redis_url), "--model", tmp_path / "model")
        assert shown.code == 1
        assert "no model 'ads'" in shown.err
        assert keys_in(redis_url) == 0  # nor was one made

    def test_it_replaces_models_only(self, cli: Cli, redis_url: str, tmp_path: Path) -> None:
        (tmp_path / "thesis.txt").write_text("years of work")
        shown = cli("ps", "export", "--store", named(redis_url), "--model", tmp_path)
        assert shown.code == 1
        assert "thesis.txt" in shown.err

    def test_half_a_model_is_none(self, cli: Cli, start_redis: StartRedis, tmp_path: Path) -> None:
        own = start_redis(2, config={"cluster-require-full-coverage": "no"})
        make_model(own.url).close()
        own.shards[key_is_in_first_half(Keys("ads").meta)][0].kill()
        shown = cli("ps", "export", "--store", named(own.url), "--model", tmp_path / "model")
        assert shown.code == 1
        assert "partitions cannot be reached" in shown.err


class TestDrop:
    def answer(self, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
        monkeypatch.setattr("sys.stdin", io.StringIO(text))

    @pytest.mark.parametrize(("text", "gone"), [("n\n", False), ("", False), ("y\n", True)])
    def test_it_asks(
        self, cli: Cli, redis_url: str, monkeypatch: pytest.MonkeyPatch, text: str, gone: bool
    ) -> None:
        make_model(redis_url).close()
        self.answer(monkeypatch, text)
        shown = cli("ps", "drop", "--store", named(redis_url))
        assert shown.code == (0 if gone else 1)
        assert "model 'ads' in redis://" in shown.out
        assert "2**12 slots in 16 partitions" in shown.out
        assert ("deleted 16 partitions" in shown.out) == gone
        assert (keys_in(redis_url) == 0) == gone
        assert password(redis_url) not in shown.out + shown.err

    def test_the_job_goes_too(self, cli: Cli, failed: str) -> None:
        shown = cli("ps", "drop", "--store", named(failed), "--yes")
        assert shown.code == 0
        assert re.search(r"job \w+: failed, .* of 2,951 examples trained, 0 live workers", shown.out)
        assert keys_in(failed) == 0
        assert cli("ps", "drop", "--store", named(failed), "--yes").code == 1

    def test_killed_on_the_way(self, cli: Cli, job_log: Path, tmp_path: Path, redis_url: str) -> None:
        """The rest is seen, and the next job of that name learns what it would have learnt without."""

        def kill_drop(most: int) -> int:
            make_model(redis_url).close()
            with cut_line(redis_url, most, silent=True) as line:
                drop = Command("ps", "drop", "--store", named(line.url), "--yes")
                until(lambda: drop.popen.poll() is not None or line.cut, timeout_s=60)
                drop.kill()
                return line.passed

        kill_drop(kill_drop(1 << 30) - 700)
        assert keys_in(redis_url) > 1
        shown = cli("ps", "status", "--store", named(redis_url))
        assert shown.code == 1
        assert "is being dropped" in shown.err
        assert facts_of(cli, redis_url)["model"]["state"] == "dropping"
        exported = cli("ps", "export", "--store", named(redis_url), "--model", tmp_path / "exported")
        assert exported.code == 1
        assert "is being dropped" in exported.err
        words = ("train", "--spec", "criteo", job_log, "--model", tmp_path / "model", "--json", "-")
        ids = [json.loads(cli(*words, "--store", named(redis_url)).out)["model"]]
        assert keys_in(redis_url) == 0
        ids += [json.loads(cli(*words, "--store", named(redis_url)).out)["model"]]
        assert ids[0] == ids[1]
        kill_drop(kill_drop(1 << 30) - 700)
        shown = cli("ps", "drop", "--store", named(redis_url), "--yes")
        assert shown.code == 0
        assert "its removal is not finished" in shown.out
        assert keys_in(redis_url) == 0

    def test_a_running_job_is_warned_of(
        self,
        cli: Cli,
        job_log: Path,
        tmp_path: Path,
        start_redis: StartRedis,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        own = start_redis()
        with train(job_log, tmp_path, own.url, *ENDLESS) as job:
            facts = trained(cli, own.url, job)["job"]
            self.answer(monkeypatch, "n\n")
            asked = cli("ps", "drop", "--store", named(own.url))
            assert asked.code == 1
            assert f"The job {facts['id']} is running, with 2 live workers" in asked.out
            assert job.popen.poll() is None
            assert facts_of(cli, own.url)["job"]["state"] == "running"
            assert cli("ps", "drop", "--store", named(own.url), "--yes").code == 0
            code, said = job.end()
        assert code == 1
        assert "gone" in said or "dropped" in said or "lost the data" in said
        assert keys_in(own.url) == 0

    def test_not_while_a_part_would_be_left(self, cli: Cli, start_redis: StartRedis) -> None:
        own = start_redis(2, config={"cluster-require-full-coverage": "no"})
        make_model(own.url).close()
        dead = key_is_in_first_half(Keys("ads").meta)
        own.shards[dead][0].kill()
        alive = own.shards[1 - dead][0]
        before = keys_in(alive.url)
        shown = cli("ps", "drop", "--store", named(own.url), "--yes")
        assert shown.code == 1
        assert "would be left behind" in shown.err
        assert keys_in(alive.url) == before


class Terminal:
    """What a process has written to the other end of a pseudo-terminal."""

    def __init__(self, descriptor: int) -> None:
        self.text = ""
        self._descriptor = descriptor
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def end(self) -> str:
        self._reader.join()
        os.close(self._descriptor)
        return self.text

    def _read(self) -> None:
        while True:
            try:
                read = os.read(self._descriptor, 65_536)
            except OSError:  # Linux says so when the other end is closed
                return
            if not read:
                return
            self.text += read.decode(errors="replace")


def key_is_in_first_half(key: bytes) -> bool:
    """Of the hash slots: so as a number, the shard of two that does not have it."""
    return redis.crc.key_slot(key) < 8_192


def numbers_of(text: str) -> list[int]:
    """`1, 4-6` as 1, 4, 5, 6."""
    ends = [part.split("-") for part in text.split(", ")]
    return [number for pair in ends for number in range(int(pair[0]), int(pair[-1]) + 1)]


@pytest.mark.parametrize("command", ["", "plan", "status", "export", "drop"])
def test_help(cli: Cli, command: str) -> None:
    shown = cli("ps", *command.split(), "--help")
    assert shown.code == 0
    for name in (command,) if command else ("plan", "status", "export", "drop"):
        assert name in shown.out
