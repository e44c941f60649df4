"""The notebook of the examples runs as it is committed, and says what stands there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[1] / "examples" / "first_model.ipynb"

# Of Jupyter's own parts, which no setting of ours concerns.
pytestmark = pytest.mark.filterwarnings("ignore::Warning")


def outputs(notebook: Any) -> list[Any]:
    return [output for cell in notebook.cells for output in cell.get("outputs", [])]


def texts(notebook: Any) -> str:
    return "".join(output.get("text", "") for output in outputs(notebook))


def test_it_runs_as_it_stands(tmp_path: Path) -> None:
    committed = nbformat.read(NOTEBOOK, as_version=4)
    ran = nbformat.read(NOTEBOOK, as_version=4)
    for cell in ran.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    NotebookClient(
        ran, timeout=250, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    ).execute()
    assert {output.output_type for output in outputs(ran)} == {o.output_type for o in outputs(committed)}
    before, after = texts(committed), texts(ran)
    number = r"-?\d[\d,]*\.?\d*"
    assert re.sub(number, "N", after) == re.sub(number, "N", before)
    as_floats = [
        [float(found.replace(",", "")) for found in re.findall(number, text)] for text in (before, after)
    ]
    assert as_floats[1] == pytest.approx(as_floats[0], abs=2e-3)
    served = re.findall(r"(?:served|in Python): +([\d.]+)", after)
    assert len(served) == 2
    assert float(served[0]) == pytest.approx(float(served[1]), abs=1e-6)
    assert not list(tmp_path.iterdir())


def test_what_is_committed_is_whole_and_says_nothing_of_a_machine() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    pictures = [
        output.data["image/png"] for output in outputs(notebook) if "image/png" in output.get("data", {})
    ]
    assert len(pictures) == 3
    assert all(len(picture) < 100_000 for picture in pictures)
    counts = [cell.execution_count for cell in notebook.cells if cell.cell_type == "code"]
    assert counts == list(range(1, len(counts) + 1))
    text = NOTEBOOK.read_text()
    assert not re.search(r"/(home|root|tmp|usr|work)/|Traceback|127\.0\.0\.1", text)
