"""Specs by name, from files and from folders: with what they have learnt, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from ctr.errors import DataError, SpecError
from ctr.features import FeatureSpec, Transform, fit, load_spec
from ctr.features.spec import write_fitted_spec

SPEC = """
version: 1
source: {format: delimited}
label: click
fields:
  - {name: price, type: number, transform: quantiles, buckets: 4}
  - {name: site, type: category, min_count: 2}
"""


@pytest.fixture
def fitted(tmp_path: Path) -> FeatureSpec:
    log = tmp_path / "log.csv"
    log.write_text("click,price,site\n" + "".join(f"{k % 2},{k},s{k % 30}\n" for k in range(50)))
    (tmp_path / "spec.yaml").write_text(SPEC)
    return fit(load_spec(tmp_path / "spec.yaml"), [str(log)])


def test_a_fitted_spec_comes_back(fitted: FeatureSpec, tmp_path: Path) -> None:
    folder = tmp_path / "fitted"
    for _ in range(2):  # the second one replaces the first
        write_fitted_spec(fitted, folder)
        found = load_spec(folder)
        assert found.fingerprint == fitted.fingerprint
    row = {"price": 17, "site": "s25"}
    slots = [Transform(spec, with_label=False).apply_rows([row]).slots.tolist() for spec in (fitted, found)]
    assert slots[0] == slots[1]


@pytest.mark.parametrize("name", ["learnt.safetensors", "features.yaml", "manifest.json"])
@pytest.mark.parametrize("damage", ["cut", "flipped", "gone"])
def test_a_torn_one_is_refused(fitted: FeatureSpec, tmp_path: Path, name: str, damage: str) -> None:
    folder = tmp_path / "fitted"
    write_fitted_spec(fitted, folder)
    raw = bytearray((folder / name).read_bytes())
    if damage == "gone":
        (folder / name).unlink()
    elif damage == "cut":
        (folder / name).write_bytes(raw[: len(raw) // 2])
    else:
        raw[-9] ^= 1  # in arrays a value, in YAML a name, in JSON the fingerprint
        (folder / name).write_bytes(raw)
    with pytest.raises(SpecError, match="fitted"):
        load_spec(folder)


def test_nothing_else_is_replaced(fitted: FeatureSpec, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(DataError, match=r"holds notes\.txt, which is no part of a fitted spec"):
        write_fitted_spec(fitted, tmp_path / "mine")
    with pytest.raises(SpecError, match=r"a folder without features\.yaml is no feature spec"):
        load_spec(tmp_path / "mine")
