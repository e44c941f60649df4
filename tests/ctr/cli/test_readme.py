"""The commands of README.md run as they are written there, and say what stands there."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from contextlib import closing
from pathlib import Path

import pytest

from ctr.api.app import create_app
from ctr.api.connections import listen
from ctr.model import load_model
from tests.api.running import run_server
from tests.command_line import Cli

ROOT = Path(__file__).parents[3]
README = (ROOT / "README.md").read_text().partition("## The parameters in Redis")[0]
BLOCKS = re.findall(r"```sh\n(.*?)```\n+(?:```\n(.*?)```)?", README, re.DOTALL)

PROGRAM = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def figures(text: str) -> list[float]:
    """The numbers of a table of metrics."""
    rows = [line for line in text.splitlines() if line.startswith(("progressive validation ", "hold-out "))]
    return [float(cell.replace(",", "")) for row in rows for cell in re.findall(r" ([\d.,]+)", row)]


def test_the_commands(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    ran = []
    for commands, output in BLOCKS:
        for line in commands.replace("\\\n", "").splitlines():
            words = shlex.split(line, comments=True)
            if words[:2] == ["python", "examples/ads_csv.py"]:
                *program, _, name = words[1:]
                with Path(name).open("wb") as out:
                    subprocess.run([sys.executable, *program], stdout=out, check=True)
            elif words[0] == "head":
                assert Path(words[2]).read_text().startswith(output.partition("trained")[0])
            elif words[0] == "curl" and "-d" in words:
                body = words[words.index("-d") + 1]
                with run_server(create_app(load_model(Path("model")))) as server:
                    answer = server.client.post("/v1/predict", json=json.loads(body)).json()
                expected = json.loads(output)["predictions"]
                assert f"model {json.loads(output)['model']} is in model" in README
                assert answer["predictions"] == pytest.approx(expected, abs=1e-3)
            elif words[0] == "ctr" and words[1] not in ("serve", "--help"):
                done = cli(*words[1:])
                assert done.code == 0, done.err
                assert "warning" not in done.out + done.err
                ran.append(words[1])
                if output:
                    assert figures(done.out) == pytest.approx(figures(output), abs=1e-3)
                    assert len(figures(done.out)) == 10
    assert ran == ["train", "evaluate", "predict", "explain", "model", "features", "train", "train", "train"]


def test_the_server_answers_as_soon_as_the_commands_go_on(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As they are typed: what starts it, what waits for it, and what asks it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "log.csv").write_text("click,site,device,price\n" + "1,a,phone,2\n0,b,phone,3\n" * 50)
    trained = cli("train", "--spec", ROOT / "examples" / "ads.yaml", "log.csv", "--model", "model")
    assert trained.code == 0, trained.err
    (commands,) = (commands for commands, _ in BLOCKS if commands.startswith("ctr serve"))
    with closing(listen("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    script = f"trap 'kill %1' EXIT\n{commands.replace('8000', str(port))}"
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", script], check=False, capture_output=True, text=True, env=os.environ | {"PATH": path}
    )
    assert done.returncode == 0, done.stderr
    (answer,) = (json.loads(line) for line in done.stdout.splitlines() if line.startswith("{"))
    assert len(answer.get("predictions", ())) == 1, done


def test_all_that_the_commands_need_is_installed() -> None:
    """By `make install`, and by the extra that README.md names for a wheel."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    for_users = set(extras) - {"all", "test", "check", "bench"}
    assert extras["all"] == [f"ctr[{','.join(sorted(for_users - {'mlflow', 'spark'}))}]"]
    assert "--editable '.[all]'" in (ROOT / "Makefile").read_text()
    assert '[all]"' in README


def test_the_program(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It says what the commands above it say, in at most 12 lines."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    log = subprocess.run([sys.executable, "examples/ads_csv.py"], stdout=subprocess.PIPE, check=True).stdout
    (tmp_path / "ads.csv").write_bytes(log)
    (program,) = PROGRAM
    assert len(program.splitlines()) <= 12
    exec(program, {})
    loss, scored = capsys.readouterr().out.splitlines()
    of_commands = next(figures(output) for _, output in BLOCKS if figures(output))
    assert float(loss) == pytest.approx(of_commands[6], abs=1e-3)
    (expected,) = next(json.loads(output)["predictions"] for _, output in BLOCKS if output.startswith("{"))
    assert float(scored.strip("[]")) == pytest.approx(expected, abs=1e-3)
    assert cli("evaluate", "--model", "model", "ads.csv").code == 0
