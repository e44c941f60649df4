"""What a job through Redis held after each of its passes, and how good it was."""

from __future__ import annotations

import json
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from ctr.distributed.checkpointing import CheckpointSettings
from ctr.distributed.run import StoreSettings, train_distributed
from ctr.learn import AfterPass
from ctr.workers.description import JobDescription
from tests.command_line import Cli
from tests.ctr.distributed_jobs import State, describe, in_threads, same, source_of
from tests.ps.redis_servers import needs_redis

pytestmark = needs_redis


def run(job: JobDescription, settings: StoreSettings, until: int = 99) -> tuple[dict[int, State], State]:
    """What the store held after each pass but the last, and in the end; stopped after pass `until`."""
    seen: dict[int, State] = {}
    stop = Event()

    def on_pass(after: AfterPass) -> None:
        seen[after.number] = after.state
        if after.number == until:
            stop.set()

    found, _ = train_distributed(job, source_of(job), settings, start=None, stop=stop, on_pass=on_pass)
    found.store.drop()
    return seen, found.state


def test_in_rounds_a_pass_ends_with_what_a_job_of_so_many_passes_comes_to(
    job_data: Path, redis_url: str
) -> None:
    job = describe(job_data, passes=3, chunk=500)
    seen, _ = run(job, StoreSettings(redis_url))
    assert list(seen) == [1, 2]
    for passes, state in seen.items():
        assert same(state, in_threads(describe(job_data, passes=passes, chunk=500), redis_url, 1)[0])


def test_a_resumed_job_goes_on_with_the_passes_that_are_left(
    job_data: Path, redis_url: str, tmp_path: Path
) -> None:
    job = describe(job_data, passes=3, workers=1, chunk=500)
    whole, end = run(job, StoreSettings(redis_url))
    checkpoints = CheckpointSettings(tmp_path / "checkpoint", 0.05)
    first, _ = run(job, StoreSettings(redis_url, checkpoints), until=2)
    rest, resumed = run(job, StoreSettings(redis_url, checkpoints, resume=True))
    assert list(first) == [1, 2]
    assert list(rest) in ([], [2])  # it may have been stopped before anybody was beyond
    assert same(resumed, end)
    for seen in (first, rest):
        assert all(same(state, whole[number]) for number, state in seen.items())


def summary_of(cli: Cli, log: Path, folder: Path, *flags: object) -> tuple[dict[str, Any], str]:
    path = folder / "summary.json"
    words = ["train", "--spec", "criteo", log, "--holdout-fraction", 0.2, "--json", path]
    done = cli(*words, "--epochs", 3, "--alpha", 0.01, "--model", folder / "model", *flags)
    assert done.code == 0, done.err
    return json.loads(path.read_bytes()), done.out


def test_the_hold_out_after_every_pass_is_that_of_memory(
    cli: Cli, click_log: Path, tmp_path: Path, redis_url: str
) -> None:
    exact, _ = summary_of(cli, click_log, tmp_path, "--chunk", 2_000)  # its size is the same to one worker
    flags = ("--store", redis_url, "--consistency", "bsp", "--chunk", 2_000)
    rounds, said = summary_of(cli, click_log, tmp_path, *flags)
    assert " after pass 2" in said
    assert "started the next" not in said
    # Workers may be three chunks into the next pass when one is over: in chunks of 1,000, a third of it.
    flags = ("--store", redis_url, "--workers", 2, "--chunk", 500)
    clocks, said = summary_of(cli, click_log, tmp_path, *flags)
    assert " after pass 2" in said
    assert "some workers had already started the next one" in said
    # What workers learnt of the next pass makes the first loss better, so less is left to gain.
    for summary, abs_, gain in ((rounds, 2e-4, 5e-3), (clocks, 5e-3, 1e-3)):
        assert [each["pass"] for each in summary["holdout_by_pass"]] == [1, 2]
        for each, expected in zip(summary["holdout_by_pass"], exact["holdout_by_pass"], strict=True):
            assert each["examples"] == expected["examples"]
            assert each["logloss"] == pytest.approx(expected["logloss"], abs=abs_)
        losses = [each["logloss"] for each in (*summary["holdout_by_pass"], summary["holdout"])]
        assert losses[0] - gain > losses[1] > losses[2]
