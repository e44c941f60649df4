"""The programs in docs/models.md run, and what they make is what the model predicts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from vowpalwabbit import Workspace

from tests.command_line import Cli

TEXT = (Path(__file__).parents[3] / "docs" / "models.md").read_text()


def test_the_programs(tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    first, *others = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    names: dict[str, Any] = {}
    exec(first, names)
    model = names["model"]
    model.save("model")
    for out in ("weights.npz", "model.onnx", "model.vw"):
        assert cli("model", "export", "model", "--out", out).code == 0
    assert len(others) == 4
    for program in others:
        exec(program, names)
    expected = model.predict(names["rows"])
    assert names["log_odds"] == pytest.approx(model.margins(names["rows"]), abs=1e-5)
    assert names["predictions"] == pytest.approx(expected, abs=1e-6)
    vw = Workspace("--initial_regressor model.vw --testonly --quiet")
    assert [vw.predict(line) for line in names["lines"]] == pytest.approx(expected, abs=1e-5)
    vw.finish()
