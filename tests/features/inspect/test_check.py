"""What a spec finds in raw data, against counts made row by row."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from ctr.errors import DataError
from ctr.features import FeatureSpec, load_spec
from ctr.features.inspect import check

ROWS = 2_000


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> str:
    rng = np.random.default_rng(1)
    click = rng.integers(0, 2, ROWS)
    path = tmp_path_factory.mktemp("log") / "log.csv"
    lines = ["click,site,leak,same,id,rare,number,extra"]
    for k in range(ROWS):
        site = "" if k % 4 == 0 else f"s{k % 7}"
        rare = "x" if k % 500 == 0 else ""
        lines.append(f"{click[k]},{site},{'yes' if click[k] else 'no'},v,{k},{rare},{k % 100},e")
    lines.insert(5, "0,too,few")
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def spec_of(names: str, **more: object) -> FeatureSpec:
    fields = [{"name": name, "type": "category"} for name in names.split()]
    spec = {"version": 1, "source": {"format": "delimited"}, "label": "click", "bits": 8, "fields": fields}
    return FeatureSpec.model_validate(spec | more)


def test_counts_of_fields(log: str) -> None:
    spec = spec_of("site leak same id rare", crosses=[{"name": "x", "of": ["site", "id"]}])
    found = check(spec, [log], ROWS + 1)
    assert (found.rows, found.bad_rows) == (ROWS, 1)
    assert "found 3 columns, expected 8" in found.bad_examples[0]
    assert found.unused == ["number", "extra"]
    site, leak, same, id_, rare = found.fields
    assert (site.missing, site.distinct, site.unseen) == (0.25, 7, 0)
    assert site.most_frequent == pytest.approx(215 / ROWS, abs=1 / ROWS)
    assert 0.4 < site.auc < 0.6
    assert leak.auc > 0.99
    assert "it alone predicts the label" in leak.warnings[0]
    assert same.distinct == 1
    assert "says nothing" in same.warnings[0]
    assert (id_.distinct, id_.unseen) == (ROWS, 1)
    assert "is it an id?" in id_.warnings[0]
    assert "it has a value in 0.20% of the rows only" in rare.warnings[0]
    assert not site.warnings
    assert len(found.warnings) == sum(len(each.warnings) for each in found.fields)
    json.dumps(found.to_json(), allow_nan=False)


def test_only_the_first_rows(log: str) -> None:
    assert check(spec_of("site"), [log], 100).rows == 99  # one of them is bad


def test_labels_of_one_kind(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("click,site\n0,a\n0,b\n")
    found = check(spec_of("site"), [str(path)], 100)
    assert found.warnings == ["all 2 labels are 0: nothing can be learnt"]
    assert found.to_json()["fields"][0]["auc"] is None


def test_what_cannot_be_checked(log: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no column 'sight'"):
        check(spec_of("sight"), [log], 100)
    with pytest.raises(DataError, match="no fields to check"):
        check(load_spec("libsvm"), [log], 100)
    path = tmp_path / "log.csv"
    path.write_text("click,site\n7,a\n")
    with pytest.raises(DataError, match="there is no good row"):
        check(spec_of("site"), [str(path)], 100)


def test_rows_that_building_refuses_are_bad(tmp_path: Path) -> None:
    """Whatever refuses them: a window's times or its order, a list that is too long."""
    lines = ["0,a,2017-11-07T09:30", "1,b,2017-11-07 9:30", "1,b,2017-11-07T09:31", "0,c,2017-11-06T08:00"]
    (tmp_path / "log.csv").write_text(
        "\n".join(["click,site,at", *lines, f"0,{'|'.join(map(str, range(200)))},2017-11-08", ""])
    )
    spec = {
        "fields": [{"name": "site", "type": "list", "delimiter": "|"}],
        "crosses": ["site * site"],
        "windows": [{"name": "w", "key": ["site"], "time": "at", "spans": ["1h"], "features": ["count"]}],
    }
    found = check(spec_of("", **spec), [str(tmp_path / "log.csv")], 100)
    assert found.bad_rows == 3
    for text, problem in zip(
        found.bad_examples, ("is no time", "is earlier than", "most_features"), strict=True
    ):
        assert problem in text
