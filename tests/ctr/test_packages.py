"""What is not installed is named, with the command that installs it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ctr.errors import DataError
from ctr.packages import require_packages
from tests.command_line import Cli


def test_what_is_there_passes() -> None:
    require_packages("a sum", {"math": "math"})


def test_all_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    needed = {"math": "math", "jinja2": "Jinja2", "no_such_module": "other"}
    with pytest.raises(DataError) as raised:
        require_packages("a page", needed, otherwise="; or do without")
    assert str(raised.value) == (
        "a page needs Jinja2 and other, which are not installed: pip install Jinja2 other; or do without."
    )


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("raise ImportError('libfoo.so:\\n no such file')", "ImportError: libfoo.so: no such file"),
        ("raise AttributeError('np.bool8')", "AttributeError: np.bool8"),
        ("import no_such_part", "ModuleNotFoundError: No module named 'no_such_part'"),
    ],
)
def test_what_is_broken_is_told_in_one_line(
    line: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_plots.py").write_text(line + "\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(DataError) as raised:
        require_packages("a plot", {"broken_plots.figure": "broken-plots"})
    assert str(raised.value) == (
        f"a plot needs broken-plots, which is installed but cannot be imported ({told}): "
        "pip install --force-reinstall broken-plots."
    )


def test_a_broken_matplotlib_is_told_before_training(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "path" / "matplotlib"
    place.mkdir(parents=True)
    (place / "__init__.py").write_text("raise ImportError('of another NumPy')\n")
    for name in [each for each in sys.modules if each.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(place.parent))
    (tmp_path / "log.csv").write_text("click,site\n" + "1,a\n0,b\n" * 20)
    (tmp_path / "spec.yaml").write_text(
        "{version: 1, source: {format: delimited}, label: click, fields: [{name: site, type: category}]}"
    )
    words = ["train", "--spec", tmp_path / "spec.yaml", *2 * [tmp_path / "log.csv"], "--progressive-days"]
    done = cli(*words, "--model", tmp_path / "model", "--report", tmp_path / "days.png")
    assert done.code == 1
    assert len(done.err.splitlines()) == 1
    assert "ImportError: of another NumPy" in done.err
    assert not (tmp_path / "model").exists()
