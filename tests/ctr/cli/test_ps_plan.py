"""`ctr ps plan`: what it prints, what it writes, what it refuses."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from ctr.cli.command import command_of
from ctr.cli.ps.plan import plan
from ctr.jobs.cost_model import Costs, Workload, estimate
from ctr.learn import default_chunk

app = typer.Typer()
app.command()(command_of(plan))
ASKED = ["--features", "1e6", "--examples", "10_000_000", "--workers", "2", "--nodes", "2"]


def run(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, list(words), env={"COLUMNS": "200", "TERM": "dumb"})
    assert done.exception is None or isinstance(done.exception, SystemExit)
    return done.exit_code, done.output


def test_the_six_lines_that_matter_come_first() -> None:
    code, out = run(*ASKED)
    assert code == 0
    names = ["time", "speed", "each Redis", "each worker", "network", "slots"]
    lines = out.splitlines()
    assert len(lines) == 6
    assert all(line.startswith(f"{name} ") for name, line in zip(names, lines, strict=True))
    assert "bound by" in lines[0]
    assert "2**22; 21.2% of the features share a slot" in lines[5]
    assert run(*ASKED, "--verbose")[1].startswith(out)


VARIANTS = ["as asked", "twice the nodes", "twice the workers", "twice both", "4 times the chunk"]


def test_the_rest_is_under_verbose() -> None:
    code, out = run(*ASKED, "--verbose")
    assert code == 0
    assert "2**22 slots in 16 partitions" in out
    assert "workers' training" in out
    for name in VARIANTS:
        assert f"\n{name} " in out
    for cost in fields(Costs):
        assert f"{cost.metadata['unit']}: {cost.metadata['meaning']}" in out


def test_plan_for_programs() -> None:
    done = CliRunner().invoke(app, [*ASKED, "--cores", "2", "--json", "-"])
    assert done.exit_code == 0
    facts = json.loads(done.stdout)  # the lines for people went to standard error
    assert "bound by" in done.stderr
    assert facts["workload"]["bits"] == 22
    assert facts["workload"]["partitions"] == 16
    chunk = default_chunk(2, lambda: 10**7, in_memory=False)
    job = Workload(features=10**6, examples=10**7, workers=2, nodes=2, bits=22, chunk=chunk, cores=2)
    assert facts["workload"]["chunk"] == chunk
    assert list(facts["estimates"]) == VARIANTS
    assert facts["estimates"]["as asked"]["total_s"] == estimate(job).total_s
    assert facts["assumptions"]["slot_ram"]["value"] == Costs().slot_ram
    assert facts["assumptions"]["slot_ram"]["unit"] == "bytes per slot"


@pytest.mark.parametrize("written", ["1000000", "1e6", "1_000_000", "1,000,000", "1.0E6"])
def test_numbers_as_people_write_them(written: str, tmp_path: Path) -> None:
    summary = tmp_path / "plan.json"
    assert run("--features", written, "--examples", written, "--json", str(summary))[0] == 0
    facts = json.loads(summary.read_bytes())["workload"]
    assert (facts["features"], facts["examples"], facts["workers"], facts["nodes"]) == (10**6, 10**6, 1, 1)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--features", "0"], "'0': give a whole number from 1 to"),
        (["--features=-5"], "'-5': give a whole number from 1"),
        (["--features", "1e13"], "'1e13': give a whole number from 1 to 1,099,511,627,776"),
        (["--features", "1e999999999"], "give a whole number"),
        (["--features", "many"], "give a whole number"),
        (["--features", "1.5"], "give a whole number"),
        (["--features", "nan"], "give a whole number"),
        (["--features", ""], "give a whole number"),
        (["--examples", "0"], "'--examples'"),
        (["--workers", "0"], "'--workers'"),
        (["--workers", "1e6"], "from 1 to 10,000"),
        (["--nodes", "5000"], "from 1 to 1,000"),
        (["--bits", "0"], "'--bits'"),
        (["--bits", "41"], "'--bits'"),
        (["--chunk", "0"], "'--chunk'"),
        (["--network", "nan"], "'--network'"),
        (["--network", "inf"], "'--network'"),
        (["--network", "0"], "'--network'"),
        (["--passes", "0"], "'--passes'"),
        (["--cores", "0"], "'--cores'"),
        (["--features-per-example", "0"], "'--features-per-example'"),
    ],
)
def test_bad_input_is_refused_with_its_limits(words: list[str], message: str) -> None:
    code, out = run(*ASKED, *words)
    assert code == 2
    assert message in out
    assert "Traceback" not in out


@pytest.mark.parametrize(
    ("words", "warning"),
    [
        (["--examples", "1e5", "--workers", "8", "--chunk", "65536"], "6 workers will be idle"),
        (
            ["--examples", "1e6", "--workers", "4", "--chunk", "65536"],
            "see each other's updates only 4 times per pass",
        ),
        (["--bits", "18"], "most features share their slot"),
        (["--examples", "1000"], "cannot hold more than 39,000 features"),
    ],
)
def test_plan_warns(words: list[str], warning: str) -> None:
    code, out = run(*ASKED, *words)
    assert code == 0
    assert warning in out
    assert "warning" not in run("--features", "1e8", "--examples", "1e9")[1]
