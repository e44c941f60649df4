"""The drill: what it breaks, that it notices when something is lost, and what it says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread
from time import monotonic

import pytest

from ctr.drill import DrillSettings
from ctr.drill.drill import run_drill
from ctr.drill.fault_plan import FAULTS, FaultReport, PlannedFault, plan_faults, went_on
from ctr.drill.freezes import freeze_servers
from ctr.drill.ledger import Push
from ctr.drill.proof import Proof
from ctr.drill.report import DrillReport, JobReport
from ctr.workers.description import Consistency
from tests.command_line import Cli
from tests.ps.redis_servers import needs_redis

SMALL = DrillSettings(
    rows=10_000, workers=2, chunk=500, freezes=0, allowance_s=20.0, tolerance=0.02, fault_s=2.0
)
"""Few rows have much noise, and the allowance is for machines that are busy with other tests."""


def small(faults: tuple[str, ...], consistency: Consistency = "ssp") -> DrillSettings:
    return replace(SMALL, faults=faults, consistency=consistency)


def test_a_seed_decides_order_and_moments() -> None:
    kinds = tuple(FAULTS)
    planned = plan_faults(kinds, "1:0")
    assert planned == plan_faults(kinds, "1:0")
    assert sorted(fault.kind for fault in planned) == sorted(kinds)
    fractions = [fault.fraction for fault in planned]
    assert fractions == sorted(fractions)
    assert 0 < fractions[0] < fractions[-1] < 0.9
    others = [plan_faults(kinds, f"1:{number}") for number in range(20)]
    assert len({tuple(fault.kind for fault in each) for each in others}) > 10
    assert {each[-1].kind for each in others} == {"memory"}  # which ends the job
    assert plan_faults(["worker"], "0") == [PlannedFault("worker", pytest.approx(0.25, abs=0.2))]
    assert plan_faults([], "0") == []


def test_pushes_go_on_with_the_first_that_was_sent_since() -> None:
    def push(sent: float, acknowledged: float | None, shard: int = 0) -> Push:
        return Push("one", shard, 0, sent, {}, acknowledged)

    pushes = [push(1.0, 9.0), push(3.0, None), push(4.0, 5.0, 1), push(5.5, 8.0), push(6.0, 7.0)]
    assert went_on(pushes, 2.0, lambda each: True) == 5.0
    assert went_on(pushes, 2.0, lambda each: each.shard == 0) == 7.0
    assert went_on(pushes, 6.5, lambda each: True) is None
    assert went_on([], 0.0, lambda each: True) is None


@needs_redis
class TestWhole:
    def test_a_small_one_passes(self, tmp_path: Path) -> None:
        told: list[str] = []
        kinds = ("kill", "worker", "memory")
        report = run_drill(small(kinds), tmp_path, Event(), told.append)
        assert report.problems == []
        (job,) = report.disturbed
        assert sorted(fault.kind for fault in job.faults) == sorted(kinds)
        assert all(fault.recovery_s is not None and fault.recovery_s > 0 for fault in job.faults)
        killed = next(fault for fault in job.faults if fault.kind == "kill")
        assert killed.recovery_s is not None
        assert killed.recovery_s > 1.0  # the others have to notice first
        assert 0 < len(killed.partitions) < 16
        assert list(job.proofs) == ["when memory was full", "in the checkpoint", "at the end"]
        for proof in job.proofs.values():
            assert proof.partitions == 16
            assert 0 < proof.acknowledged <= proof.pushes
        assert any("memory limit" in line for line in told)
        assert {line.split(": ")[-1].split()[0] for line in told} >= {"killed", "filled"}
        assert (tmp_path / "round-1" / "checkpoint").exists()

    def test_rounds_give_the_same_bits(self, tmp_path: Path) -> None:
        """While partitions move, and a primary dies whose replica is behind."""
        report = run_drill(small(("lag", "reshard"), "bsp"), tmp_path, Event())
        assert report.problems == []
        (job,) = report.disturbed
        lag, reshard = sorted(job.faults, key=lambda fault: fault.kind)
        assert lag.sent_again > 0
        assert job.proofs["at the end"].sent_again >= lag.sent_again
        assert "which is new" in reshard.what
        assert 0 < len(reshard.partitions) < 8
        assert report.undisturbed is not None
        assert report.undisturbed.sums is not None
        assert job.sums is not None
        assert job.sums.state() == report.undisturbed.sums.state()

    def test_a_push_that_is_nowhere_fails_it(self, cli: Cli, tmp_path: Path) -> None:
        """Somebody says that the store has acknowledged a push which it does not have."""
        keep, out = tmp_path / "kept", tmp_path / "report.json"
        words = ["drill", "--rows", 10_000, "--workers", 2, "--faults", "worker", "--freezes", 0]
        with adding_to(keep / "round-1" / "ledger"):
            done = cli(*words, "--keep", keep, "--json", out)
        assert done.code == 1
        assert "FAILED: 1 problem" in done.out
        problem = "round 1, at the end: LOST: chunk 888 of data shard 0 was acknowledged, and is not in"
        assert f"{problem} partition 5" in done.out
        found = json.loads(out.read_bytes())
        assert not found["passed"]
        assert found["problems"][0].startswith(problem)
        assert found["jobs"]["round 1"]["faults"][0]["kind"] == "worker"
        assert cli(*words, "--keep", keep).code == 2  # there is something

    def test_servers_are_frozen_while_clients_push(self, tmp_path: Path) -> None:
        report = freeze_servers(5, "0", tmp_path, freeze_s=2.5, stop=Event())
        assert report.problems == []
        assert (report.freezes, report.servers, len(report.recoveries_s)) == (5, 5, 5)
        assert report.in_flight >= 1
        assert all(proof.pushes >= 4 and proof.pushes == proof.acknowledged for proof in report.proofs)

    def test_it_can_be_stopped(self, tmp_path: Path) -> None:
        stop = Event()

        def tell(line: str) -> None:
            if "killed" in line:
                stop.set()

        began = monotonic()
        with pytest.raises(KeyboardInterrupt):
            run_drill(small(("worker", "freeze")), tmp_path, stop, tell)
        assert monotonic() - began < 60


@contextmanager
def adding_to(folder: Path) -> Iterator[None]:
    """Meanwhile, put a ledger of nobody's into a folder as soon as it is there."""
    over = Event()

    def add() -> None:
        while not folder.exists():
            if over.wait(0.01):
                return
        sent = '{"push":0,"at":0.5,"shard":0,"chunk":888,"adds":[[5,6,7]]}\n'
        done = '{"done":0,"at":0.6,"arrived":[5]}\n'
        (folder / "nobody.jsonl").write_text(sent + done)

    thread = Thread(target=add)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--faults", "kill,flood"], "flood"),
        (["--shards", 2], "3"),
        (["--replicas", 0], "1"),
        (["--workers", 1], "2"),
        (["--rows", 10], "10000"),
    ],
)
def test_wrong_use(cli: Cli, words: list[object], said: str) -> None:
    done = cli("drill", *words)
    assert done.code == 2
    assert said in done.err


class TestReport:
    def report(self, logloss: float, **more: object) -> DrillReport:
        fault = FaultReport("kill", "killed node 1", 0.25, 12.0, recovered=14.5, sent_again=3)
        settings = {
            **{"rows": 1000, "seed": 7, "workers": 3, "consistency": "ssp", "nodes": 3, "replicas": 1},
            **{"node_timeout_s": 1.5, "freeze_s": 7.0, "tolerance": 0.003},
        }
        proof = Proof(partitions=64, chunks=10, pushes=11, acknowledged=10)
        return DrillReport(
            settings,
            JobReport(logloss=0.5),
            [JobReport([fault], {"at the end": proof}, 10.0, None, logloss, **more)],  # type: ignore[arg-type]
        )

    def test_what_a_person_reads(self) -> None:
        text = "\n".join(self.report(0.501).lines())
        assert "killed node 1" in text
        assert "2.0 s" in text  # after the first push
        assert "2.50 s" in text
        assert "+0.200% (allowed: +0.3%)" in text
        assert "PASSED" in text

    def test_a_worse_model_fails(self) -> None:
        for logloss in (0.502, float("nan")):
            report = self.report(logloss)
            assert len(report.problems) == 1
            assert "log loss" in report.problems[0]
            assert "FAILED: 1 problem" in report.lines()[-1]

    def test_every_problem_fails(self) -> None:
        report = self.report(0.5, problems=["the job failed: no more"])
        assert report.problems == ["round 1, the job failed: no more"]
        proof = report.disturbed[0].proofs["at the end"]
        proof.object("LOST: all")
        assert "NOT EQUAL" in "\n".join(report.lines())
        found = report.to_json()
        assert (found["passed"], len(found["problems"])) == (False, 2)
        json.dumps(found)
