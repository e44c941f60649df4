"""What is shown of a row is what training reads of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ctr.errors import DataError
from ctr.features import SKIP, FeatureSpec, RawSource, fit, load_spec
from ctr.features.inspect import show

SPEC = FeatureSpec.model_validate(
    {
        "version": 1,
        "source": {"format": "delimited"},
        "label": "click",
        "bits": 20,
        "fields": [
            {"name": "site", "type": "category"},
            {"name": "price", "type": "number", "transform": "edges", "edges": [1, 2]},
            {"name": "tags", "type": "list", "delimiter": "|"},
            {"name": "half", "column": "price", "type": "number", "transform": "quantiles", "buckets": 2},
        ],
        "crosses": ["site * tags"],
    }
)


@pytest.fixture
def log(tmp_path: Path) -> str:
    (tmp_path / "log.csv").write_text(
        "click,site,price,tags\n1,a,1.5,x|y\n0,,7,\n0,b,much,x\nshort\n1,c,0,z\n"
    )
    return str(tmp_path / "log.csv")


def test_it_is_what_training_reads(log: str) -> None:
    first, second, bad, last = show(SPEC, [log], 10)
    assert [row.place.rpartition("/")[2].split(": ")[0] for row in (first, second, bad, last)] == [
        f"log.csv:{line}" for line in (2, 3, 4, 6)
    ]
    assert [(each.field, each.text, each.feature) for each in first.features] == [
        ("site", "a", "a"),
        ("price", "1.5", "[1, 2)"),
        ("tags", "x|y", "x"),
        ("tags", "x|y", "y"),
        ("half", "1.5", first.features[4].feature),
        ("site * tags", "", "a * x"),
        ("site * tags", "", "a * y"),
    ]
    nothing = [each.field for each in second.features if each.slot is None]
    assert nothing == ["site", "tags", "site * tags"]
    assert "'much' is not a number" in bad.place
    source = RawSource(fit(SPEC, [log]), [log], on_bad_rows=SKIP)
    batch = source.sample(10)
    for row, shown in enumerate((first, second, last)):
        slots = batch.slots[batch.indptr[row] : batch.indptr[row + 1]].tolist()
        assert sorted(slots) == sorted([0] + [e.slot for e in shown.features if e.slot is not None])


def test_an_age_that_another_column_begins(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text(
        "click,at,born\n1,2017-11-06,2017-11-01\n0,2017-11-06,2017-11-07\n0,2017-11-06,\n"
    )
    age = {"column": "at", "type": "time", "transform": "age_days", "since_column": "born"}
    fields = [age | {"name": "age"}, age | {"name": "aged", "edges": [0, 7], "missing": "feature"}]
    told = {"version": 1, "source": {"format": "delimited"}, "label": "click", "fields": fields}
    found = show(FeatureSpec.model_validate(told), [str(tmp_path / "log.csv")], 3)
    assert [[each.feature for each in row.features] for row in found] == [
        ["5 days", "[0, 7) days"],
        ["-1 days", "[-inf, 0) days"],
        ["none", "(missing)"],
    ]


def test_elements_of_a_list_are_apart(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_text('{"click": 1, "tags": ["red", "new", "red"]}\n')
    told = {"version": 1, "source": {"format": "jsonl"}, "label": "click"}
    spec = FeatureSpec.model_validate(told | {"fields": [{"name": "tags", "type": "list"}]})
    (row,) = show(spec, [str(tmp_path / "log.jsonl")], 3)
    assert [(each.text, each.feature, each.value) for each in row.features] == [
        ("red, new, red", "red", 2.0),
        ("red, new, red", "new", 1.0),
    ]


def test_what_cannot_be_shown(log: str) -> None:
    with pytest.raises(DataError, match="no fields to show"):
        show(load_spec("libsvm"), [log], 1)
    assert len(show(SPEC, [log], 2)) == 2
