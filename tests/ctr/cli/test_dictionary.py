"""`ctr features build --dictionary`, and what becomes of it in training."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from ctr.errors import DataError
from ctr.features import DatasetSource
from ctr.features.readable import DICTIONARY, read_dictionary
from ctr.jobs import run_train_job
from ctr.model import load_model
from ctr.settings import TrainJob
from tests.command_line import Cli
from tests.features.readable.test_dictionary import SPEC, log_of, texts_of


def test_from_the_command_to_the_model(tmp_path: Path, cli: Cli) -> None:
    log, hashed, model = tmp_path / "log.csv", tmp_path / "hashed", tmp_path / "model"
    rows = [row for row in log_of(log, 400) if row["y"] != "bad"]
    (tmp_path / "spec.yaml").write_text(SPEC)
    words = ["features", "build", str(log), "--spec", str(tmp_path / "spec.yaml"), "--out", str(hashed)]
    words += ["--on-bad-rows", "skip", "--max-bad-fraction", "0.5", "--json", str(tmp_path / "told.json")]
    assert cli(*words).code == 0
    assert not (hashed / DICTIONARY).exists()
    with pytest.raises(DataError, match="it has no dictionary; build the data set with"):
        read_dictionary(hashed)
    plain = DatasetSource(hashed).manifest
    assert "sha256" not in json.loads((hashed / "manifest.json").read_text())

    result = cli(*words, "--dictionary", "20", "--shuffle", "3")
    assert result.code == 0, result.err
    assert "the texts of the 21 most frequent features" in result.out
    told = json.loads((tmp_path / "told.json").read_text())["dictionary"]
    assert told == {"features": 21, "bytes": (hashed / DICTIONARY).stat().st_size}
    found = read_dictionary(hashed)
    expected = Counter(text for row in rows for text in texts_of(row))
    assert found["feature"][0].as_py() == "bias"
    assert all(expected[row["feature"]] == row["count"] for row in found.to_pylist())
    assert DatasetSource(hashed).manifest.spec_fingerprint == plain.spec_fingerprint

    described = cli(
        "features", "describe", hashed, "--raw", log, "--rows", 300, "--json", tmp_path / "told.json"
    )
    assert described.code == 0, described.err
    by_field = json.loads((tmp_path / "told.json").read_text())["collisions_by_field"]
    assert by_field["rows"] == 300
    sites = len({line.split(",")[1] for line in log.read_text().splitlines()[1:301]})
    assert by_field["fields"][0] | {"expected": 0} == {
        "name": "site",
        "features": sites,
        "expected": 0,
        "actual": 0,
    }
    assert re.search(rf"^site +{sites} +0 +0 +0\.00%$", described.out, re.MULTILINE)
    assert re.search(r"^bits for below 1% +\d+$", described.out, re.MULTILINE)

    run_train_job(TrainJob(inputs=[hashed], spec=None, model=model, chunk=100))
    assert read_dictionary(model).equals(found)
    weights = load_model(model).linear
    known = np.isin(np.array(found["slot"]), weights.slots)
    assert known.all()
    for folder in (hashed, model):
        content = bytearray((folder / DICTIONARY).read_bytes())
        content[len(content) // 2] ^= 1
        (folder / DICTIONARY).write_bytes(content)
        with pytest.raises(DataError, match=rf"{folder.name}/{DICTIONARY}: is not the file that was written"):
            read_dictionary(folder)
        (folder / DICTIONARY).unlink()
        with pytest.raises(DataError, match="its dictionary cannot be read"):
            read_dictionary(folder)
    with pytest.raises(DataError, match="dictionary"):
        run_train_job(TrainJob(inputs=[hashed], spec=None, model=model, chunk=100))
    load_model(model)  # serving does without
    run_train_job(
        TrainJob(
            inputs=[log], spec=tmp_path / "spec.yaml", model=model, on_bad_rows="skip", max_bad_fraction=1
        )
    )
    assert not (model / DICTIONARY).exists()
