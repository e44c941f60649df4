"""The rounds of the drill: what a seed decides, that a right one passes, and that a wrong one does not."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.drill.__main__ import main
from tests.drill.faults import FAULTS
from tests.drill.jobs import Jobs
from tests.drill.rounds import CONSISTENCIES, PAIRS, SERVERS, Round, draw_round
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


def played(round_: Round, folder: Path) -> Verdict:
    with Jobs(folder) as jobs:
        job = jobs.describe(round_)
        return Trial(round_, job, jobs.expected(round_, job), folder / "round", paced_s=4.0).run()


def test_seed_and_number_decide_a_round() -> None:
    drawn = [draw_round(7, number) for number in range(1, 2 * len(PAIRS) + 1)]
    assert drawn == [draw_round(7, number) for number in range(1, 2 * len(PAIRS) + 1)]
    assert drawn != [draw_round(8, number) for number in range(1, 2 * len(PAIRS) + 1)]
    for cycle in (drawn[: len(PAIRS)], drawn[len(PAIRS) :]):
        assert sorted((each.servers, *each.faults) for each in cycle) == sorted(PAIRS)
        assert {each.consistency for each in cycle} == set(CONSISTENCIES)
    assert drawn[0].chances(0).random() == draw_round(7, 1).chances(0).random()
    assert drawn[0].chances(0).random() != drawn[0].chances(1).random()


def test_pairs_name_what_there_is() -> None:
    assert {name for _, *faults in PAIRS for name in faults} == set(FAULTS)
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
class TestPlayed:
    def test_a_job_is_killed_and_resumed(self, tmp_path: Path) -> None:
        verdict = played(plain("aof", "restart primary", "kill command"), tmp_path)
        assert (verdict.problems, verdict.undecided, verdict.missed) == ([], [], [])
        assert (verdict.runs, verdict.refusal) == (2, None)
        assert str(verdict).startswith("right (")
        assert verdict.checkpoints > 0
        assert verdict.folds > 0

    def test_an_error_that_no_fault_explains(self, tmp_path: Path) -> None:
        """A primary that keeps nothing on its disk comes back empty."""
        verdict = played(plain("snapshot", "restart primary", "read"), tmp_path)
        (problem,) = verdict.problems
        assert re.search(r"run 1 was refused: .* lost (its|the) data", problem)
        assert str(verdict).startswith("WRONG (")


def test_wrong_use(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--round", "0"], ["--minutes", "-1"], ["--seed", "x"]):
        with pytest.raises(SystemExit):
            main(words)
        assert words[0] in capsys.readouterr().err
