"""`ctr ps drop` on real servers, also while a job trains."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest

from ctr.ps.wire.keys import Keys
from tests.command_line import Cli
from tests.ctr.cli.ps_jobs import (
    ENDLESS,
    facts_of,
    key_is_in_first_half,
    keys_in,
    make_model,
    named,
    password,
    train,
    trained,
)
from tests.ctr.distributed_jobs import Command
from tests.ps.cut_lines import cut_line
from tests.ps.job_boards import until
from tests.ps.redis_servers import StartRedis, needs_redis

pytestmark = needs_redis


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
        assert re.search(r"job \w+: failed, trained .* of 2,951 examples .*, 0 live workers", shown.out)
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

        kill_drop(kill_drop(1 << 30) - 2_000)
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
        kill_drop(kill_drop(1 << 30) - 2_000)
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
        own.nodes[dead][0].kill()
        alive = own.nodes[1 - dead][0]
        before = keys_in(alive.url)
        shown = cli("ps", "drop", "--store", named(own.url), "--yes")
        assert shown.code == 1
        assert "would remain" in shown.err
        assert keys_in(alive.url) == before
