"""`ctr ps status` on real servers, also while a job trains; and the help of all of `ctr ps`."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import threading
from contextlib import closing
from pathlib import Path
from time import sleep
from typing import Any

import pytest

from ctr.model.artifact import load_model
from ctr.ps import parse_redis_url
from ctr.ps.board.job_board import JobBoard
from ctr.ps.wire.keys import Keys
from tests.command_line import Cli
from tests.ctr.cli.ps_jobs import (
    ENDLESS,
    facts_of,
    key_is_in_first_half,
    make_model,
    named,
    password,
    paused,
    train,
    trained,
)
from tests.ctr.distributed_jobs import Command
from tests.ps.job_boards import until
from tests.ps.redis_servers import StartRedis, needs_redis

pytestmark = needs_redis


def watch(url: str, **options: Any) -> Command:
    """`ctr ps status --watch` in a process of its own."""
    return Command("ps", "status", "--store", named(url), "--watch", "--every", 0.1, **options)


def interrupted(watching: Command) -> tuple[int, str]:
    """Its exit code after Ctrl-C, and what it said on standard error."""
    watching.popen.send_signal(signal.SIGINT)
    return watching.end()


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

    def test_a_finished_job_whose_model_is_being_saved(self, cli: Cli, redis_url: str) -> None:
        """Its command is still alive, and needs the store."""
        with (
            closing(make_model(redis_url)) as store,
            closing(JobBoard(store.url, lease_s=60.0)) as board,
        ):
            board.create("job", b"", shards=1)
            board.finish()
            shown = cli("ps", "status", "--store", named(redis_url))
            assert "finished" in shown.out
            assert "no process works on it" not in shown.out
            store.drop()

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
        dead = own.nodes[key_is_in_first_half(Keys("ads").meta)][0]
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
        with paused(url, finished=16):  # a pass has 15 chunks
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
            trained(cli, own.url, job)

            def first_pass_is_over() -> bool:
                return all(rank["pushed"] >= 8 for rank in facts_of(cli, own.url)["job"]["ranks"])

            until(first_pass_is_over, timeout_s=90)
            with paused(own.url):
                facts = facts_of(cli, own.url)["job"]
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
        assert progressive["examples"] == 2_950
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
        assert "running, but nobody leads it, ssp" in dead
        assert "with --resume goes on" in dead
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


def numbers_of(text: str) -> list[int]:
    """`1, 4-6` as 1, 4, 5, 6."""
    ends = [part.split("-") for part in text.split(", ")]
    return [number for pair in ends for number in range(int(pair[0]), int(pair[-1]) + 1)]


@pytest.mark.parametrize("command", ["", "plan", "check", "status", "export", "drop"])
def test_help(cli: Cli, command: str) -> None:
    shown = cli("ps", *command.split(), "--help")
    assert shown.code == 0
    for name in (command,) if command else ("plan", "check", "status", "export", "drop"):
        assert name in shown.out
