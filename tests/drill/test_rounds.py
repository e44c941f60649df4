"""The rounds of the drill: what a seed decides, that a right one passes, and that a wrong one does not."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from tests.drill.__main__ import main
from tests.drill.faults import FAULTS
from tests.drill.freezes import freeze_servers
from tests.drill.jobs import Jobs
from tests.drill.rounds import CONSISTENCIES, IN_TURN, PAIRS, SERVERS, Round, draw_round
from tests.drill.trial import Trial, Verdict
from tests.ps.redis_servers import needs_redis, timing_sensitive


def plain(servers: str, *faults: str) -> Round:
    """A short round whose outcome is known."""
    return Round(
        seed=1,
        number=1,
        servers=servers,
        faults=faults,
        consistency="ssp",
        additive=True,
        bits=18,
        workers=2,
        remote=False,
        shard_chunks=2,
        checkpoint_s=0.5,
        tls=False,
        fraction=0.2,
        gap_s=0.5,
    )


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jobs]:
    """Of 62 chunks: enough to be struck in between, as their pushes are slowed down."""
    with Jobs(tmp_path_factory.mktemp("jobs"), rows=2_050) as jobs:
        yield jobs


def played(round_: Round, jobs: Jobs, folder: Path, paced_s: float = 2.0) -> Verdict:
    """The allowance is for machines that are busy with other tests."""
    job = jobs.describe(round_)
    trial = Trial(round_, job, jobs.compare(round_, job), folder / "round", paced_s=paced_s, allowance_s=20.0)
    return trial.run()


def in_turn(*faults: str, **changes: Any) -> Round:
    """A cluster with these faults one after the other."""
    return replace(plain("cluster", *faults), in_turn=True, workers=3, **changes)


@contextmanager
def adding_to(folder: Path) -> Iterator[None]:
    """Meanwhile, add a ledger of no worker to this folder as soon as it exists."""
    over = Event()

    def add() -> None:
        while not folder.exists():
            if over.wait(0.01):
                return
        sent = '{"push":0,"at":0.5,"shard":0,"chunk":888,"adds":[[5,6,7]]}\n'
        done = '{"done":0,"at":0.6,"arrived":[5]}\n'
        (folder / "another-1-1.jsonl").write_text(sent + done)

    thread = Thread(target=add)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_seed_and_number_decide_a_round() -> None:
    numbers = range(1, 2 * len(PAIRS) + 16)
    drawn = [draw_round(7, number) for number in numbers]
    assert drawn == [draw_round(7, number) for number in numbers]
    assert drawn != [draw_round(8, number) for number in numbers]
    assert drawn[0].chances(0).random() == draw_round(7, 1).chances(0).random()
    assert drawn[0].chances(0).random() != drawn[0].chances(1).random()
    pairs = [each for each in drawn if not each.in_turn]
    for cycle in (pairs[: len(PAIRS)], pairs[len(PAIRS) : 2 * len(PAIRS)]):
        assert sorted((each.servers, *each.faults) for each in cycle) == sorted(PAIRS)
        assert {each.consistency for each in cycle} == set(CONSISTENCIES)


def test_faults_in_turn_come_in_an_order_of_the_seed() -> None:
    drawn = [draw_round(7, number) for number in range(1, 161)]
    all_ = [each for each in drawn if each.in_turn]
    assert drawn[0].in_turn
    assert len(all_) == 20
    assert {each.faults[-1] for each in all_} == {"fill memory"}  # which ends the run
    assert {tuple(sorted(each.faults[:-1])) for each in all_} == {tuple(sorted(IN_TURN))}
    assert len({each.faults for each in all_}) > 10
    assert [each.consistency for each in all_[:3]] == ["ssp", "bsp", "ssp"]
    begin = [drawn[0].begins(number) for number in range(len(drawn[0].faults))]
    assert begin == sorted(begin)
    assert 0 < begin[0] < begin[-1] < 0.9


def test_faults_have_their_rounds() -> None:
    assert {name for _, *faults in PAIRS for name in faults} | {*IN_TURN, "fill memory"} == set(FAULTS)
    assert {servers for servers, *_ in PAIRS} == set(SERVERS)


@pytest.mark.parametrize(
    ("consistency", "faults", "may"),
    [
        ("ssp", ("restart from snapshot", "read"), True),
        ("ssp", ("restart during WAIT", "read"), True),
        ("ssp", ("kill primary", "kill worker"), False),
        ("bsp", ("kill primary", "kill worker"), True),
        ("bsp", ("kill primary", "reshard"), False),
        ("asp", ("kill lagging primary", "kill worker"), True),
        ("asp", ("kill lagging primary", "reshard"), False),
        ("bsp", ("restart primary", "kill worker"), False),
        ("bsp", ("step clock", "kill worker"), False),
    ],
)
def test_refusals_are_right_where_pushes_can_be_lost(
    consistency: str, faults: tuple[str, str], may: bool
) -> None:
    assert replace(plain("aof"), consistency=consistency, faults=faults).may_refuse == may


@needs_redis
@timing_sensitive
@pytest.mark.slow
class TestPlayed:
    def test_a_job_is_killed_and_resumed_and_a_push_that_the_store_does_not_have(
        self, jobs: Jobs, tmp_path: Path
    ) -> None:
        """A ledger says that it has acknowledged it. Nothing else is wrong."""
        with adding_to(tmp_path / "round" / "run-2" / "ledger"):
            verdict = played(plain("aof", "restart primary", "kill command"), jobs, tmp_path)
        lost = "LOST: chunk 888 of data shard 0 was acknowledged, and is not in partition 5"
        assert (verdict.problems, verdict.undecided, verdict.missed) == ([lost], [], [])
        assert (verdict.runs, verdict.refusal) == (2, None)
        assert str(verdict).startswith("WRONG (")
        assert verdict.checkpoints > 0
        assert verdict.folds > 0

    def test_an_error_that_no_fault_explains(self, jobs: Jobs, tmp_path: Path) -> None:
        """A primary that keeps nothing on its disk comes back empty."""
        round_ = replace(plain("snapshot", "restart primary", "read"), workers=1)
        verdict = played(round_, jobs, tmp_path)
        (problem,) = verdict.problems
        assert re.search(r"run 1 was refused: .* lost (its|the) data", problem)
        assert str(verdict).startswith("WRONG (")

    def test_a_job_gets_over_faults_in_turn(self, jobs: Jobs, tmp_path: Path) -> None:
        """The last of which ends it; then it is resumed, and its rounds give the same weights."""
        faults = ("kill lagging primary", "reshard to new node", "kill worker", "fill memory")
        changes = {"consistency": "bsp", "additive": False, "shard_chunks": 1}
        verdict = played(in_turn(*faults, **changes), jobs, tmp_path, 1.5)
        assert (verdict.problems, verdict.undecided, verdict.missed) == ([], [], [])
        assert verdict.refusal is not None
        assert "memory limit" in verdict.refusal
        assert (verdict.runs, str(verdict).startswith("refused, and right when resumed (")) == (2, True)
        assert [recovery.partition(":")[0] for recovery in verdict.recoveries] == [*faults[:-1]]
        after_s = float(re.findall(r"went on after ([0-9.]+) s", verdict.recoveries[0])[0])
        assert after_s > 1.0  # the others have to notice first

    def test_servers_are_frozen_while_clients_push(self, tmp_path: Path) -> None:
        report = freeze_servers(5, "0", tmp_path, freeze_s=2.5, stop=Event())
        assert report.problems == []
        assert (report.freezes, report.servers, len(report.recoveries_s)) == (5, 5, 5)
        assert report.in_flight >= 1
        assert all(proof.pushes >= 4 and proof.pushes == proof.acknowledged for proof in report.proofs)
        assert str(report).startswith("right (")


def test_wrong_use(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--round", "0"], ["--minutes", "-1"], ["--seed", "x"]):
        with pytest.raises(SystemExit):
            main(words)
        assert words[0] in capsys.readouterr().err
