"""Workers that train one data shard while the pushes of another are on their way."""

from __future__ import annotations

import os
import signal
from collections import Counter
from contextlib import closing
from itertools import count
from pathlib import Path

import pytest

from ctr.distributed.checkpointing import CheckpointSettings
from ctr.distributed.position import JobPosition
from ctr.features.batches import localize
from ctr.learn.rounds import read_out
from ctr.optimizers.ftrl import Ftrl
from ctr.ps import DEFAULT_FILTERS, BoardView, Filters, RedisStore, Token, parse_redis_url
from ctr.workers.description import JobDescription
from tests.ctr.distributed_jobs import (
    ADDITIVE,
    ROWS,
    StartJob,
    State,
    describe,
    in_memory,
    in_threads,
    same,
    same_sums,
    wait_for,
)
from tests.ps.redis_servers import needs_redis

pytestmark = needs_redis


def one_after_the_other(job: JobDescription, url: str) -> State:
    """What a job of one worker comes to if everything is waited for."""
    plan, learner = job.plan(), job.learner()
    facts = {"bits": job.feature_spec().bits, "width": Ftrl.width, "z_bits": job.z_bits}
    with closing(RedisStore(parse_redis_url(url), **facts)) as store:
        for shard in range(plan.shards):
            pass_ = plan.pass_of(shard)
            for number, batch in enumerate(job.open_source().batches(job.chunk, *plan.rows_of(shard))):
                chunk = localize(batch)
                before = store.pull(chunk.slots)
                delta = learner.learn(
                    chunk,
                    before,
                    job.optimizer_in(pass_),
                    number=shard * plan.shard_chunks + number,
                    first_pass=pass_ == 0,
                    peers=1,
                )
                store.push(chunk.slots, delta, Token("sequential", shard, number), before)
        state = read_out(store)
        store.drop()
    return state


@pytest.mark.parametrize(("shard_chunks", "filters"), [(1, DEFAULT_FILTERS), (2, Filters())])
def test_one_worker_comes_to_the_same_bits(
    job_data: Path, redis_url: str, shard_chunks: int, filters: Filters
) -> None:
    flags = {"workers": 1, "passes": 1, "shard_chunks": shard_chunks, "filters": filters}
    job = describe(job_data, consistency="ssp", **flags)
    state, report = in_threads(job, redis_url, 1)
    assert same(state, one_after_the_other(job, redis_url))
    assert report.progressive.examples == report.examples == ROWS


def test_rows_that_leave_data_shards_empty(job_log: Path, job_spec, redis_url: str, tmp_path: Path) -> None:
    """Some end without their last chunk, or have none, while others train."""
    log, bad = tmp_path / "clicks.tsv", [*range(200, 401), *range(600, 1_000)]
    rows = job_log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join(b"bad\n" if n in bad else row for n, row in enumerate(rows)))
    flags = {"consistency": "ssp", "on_bad_rows": "skip", "shard_chunks": 1, "ftrl": ADDITIVE, "passes": 2}
    job = describe(log, job_spec, **flags)
    state, report = in_threads(job, redis_url, 2)
    assert same_sums(state, in_memory(job)[0])
    assert report.examples == 2 * (ROWS - len(bad))
    assert report.bad_rows.count == len(bad)


def holders(view: BoardView) -> list[str]:
    """The workers that have two data shards or more."""
    held = Counter(each.owner for each in view.unfinished.values() if each.owner is not None)
    return [owner for owner, count in held.items() if count > 1]


@pytest.mark.parametrize(("shard_chunks", "workers"), [(1, 2), (2, 3)])
def test_a_worker_that_is_killed_with_two_data_shards(
    start_job: StartJob, job_data: Path, redis_url: str, shard_chunks: int, workers: int
) -> None:
    """All of its data shards go to others, and every chunk counts once."""
    flags = {"ftrl": ADDITIVE, "filters": DEFAULT_FILTERS, "workers": workers, "passes": 3}
    job = describe(job_data, consistency="asp", shard_chunks=shard_chunks, **flags)
    running = start_job(job, redis_url)
    running.gather()
    view = running.once(lambda view: view.finished >= 4 and bool(holders(view)))
    assert view is not None
    (host,) = (worker.host for worker in view.workers if worker.id == holders(view)[0])
    os.kill(int(host.rpartition(":")[2]), signal.SIGKILL)
    result = running.result()
    assert same_sums(result.state, in_memory(job)[0])
    assert result.result.examples == 3 * ROWS
    assert len(running.facts().dead_workers) == 1


def test_a_pause_while_two_data_shards_are_held(start_job: StartJob, job_data: Path, redis_url: str) -> None:
    """Then the store has what the board says, and nothing else; and it comes to the same bits."""
    flags = {"workers": 1, "passes": 2, "shard_chunks": 1, "filters": DEFAULT_FILTERS}
    job = describe(job_data, consistency="ssp", **flags)
    running = start_job(job, redis_url)
    held = 0
    with running.board() as board:
        found = board.job()
        assert found is not None
        facts = {"bits": job.feature_spec().bits, "width": Ftrl.width, "z_bits": job.z_bits}
        with closing(RedisStore(parse_redis_url(redis_url), join=True, **facts)) as store:
            for pause in count(-1, -1):
                after = board.look().finished + 3
                if after + 10 > job.plan().shards:  # or it may be over before it hears of the pause
                    break
                assert running.once(lambda view, after=after: view.finished >= after)
                board.pause(pause)
                (worker,) = (worker.id for worker in board.look().workers)
                name = f"paused:{worker}"
                wait_for(lambda pause=pause, name=name: board.reports([name]).get(name) == b"%d" % pause)
                view = board.look()
                held += len(view.unfinished) > 1
                position = JobPosition.of(view)
                for shard in range(view.started):
                    last = position.watermarks(job.plan()).get(shard, -1)
                    assert set(store.applied(found.id, shard).tolist()) == {last}
                board.pause(None)
    assert held
    assert same(running.result().state, one_after_the_other(job, redis_url))


def test_a_stop_while_two_data_shards_are_held(
    start_job: StartJob, job_data: Path, redis_url: str, tmp_path: Path
) -> None:
    """It goes on from its checkpoint to the same bits."""
    flags = {"workers": 1, "passes": 2, "shard_chunks": 1, "filters": DEFAULT_FILTERS}
    job = describe(job_data, consistency="ssp", **flags)
    settings = CheckpointSettings(tmp_path / "checkpoint", every_s=0.1)
    running = start_job(job, redis_url, checkpoints=settings)
    assert running.once(lambda view: view.finished > 7 and bool(holders(view)))
    running.stop.set()
    first = running.result()
    assert first.result.interrupted
    again = start_job(job, redis_url, checkpoints=settings, resume=True)
    assert same(again.result().state, one_after_the_other(job, redis_url))
    report = again.facts().report
    assert (report.progressive.examples, report.later_passes.examples) == (ROWS, ROWS)
