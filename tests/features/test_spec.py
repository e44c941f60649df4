from __future__ import annotations

from pathlib import Path

import pytest

from ctr.errors import SpecError
from features.spec import FeatureSpec, load_spec, parse_spec

HEAD = """version: 1
source: {format: delimited, header: false, columns: [y, a, b, w]}
label: "y"
"""
GOOD = (
    HEAD.replace("[y,", '["y",')
    + """weight: w
bits: 30
seed: 18446744073709551615
bias: false
fields:
  - {name: a, type: category, missing: feature}
  - {name: raw, column: a, type: number}
  - {name: b, type: number, transform: edges, edges: [-1, 0.5, 1.0e+3]}
crosses:
  - {name: axb, of: [a, b]}
"""
)


def changed(old: str, new: str) -> FeatureSpec:
    assert old in GOOD
    return parse_spec(GOOD.replace(old, new), "my.yaml")


@pytest.mark.parametrize(("name", "fields"), [("criteo", 40), ("avazu", 23), ("libsvm", 1)])
def test_shipped_specs_load_and_survive_a_round_trip(name: str, fields: int) -> None:
    spec = load_spec(name)
    assert spec.features_per_example == fields
    again = parse_spec(spec.to_yaml(), "again")
    assert again == spec
    assert again.fingerprint == spec.fingerprint


def test_every_key_survives_a_round_trip(tmp_path: Path) -> None:
    spec = parse_spec(GOOD, "my.yaml")
    assert spec.features_per_example == 4
    path = tmp_path / "spécial.yaml"
    path.write_text(spec.to_yaml(), "utf-8")
    assert load_spec(path) == load_spec(str(path)) == spec


def test_fingerprint_tells_what_decides_the_slots_and_nothing_else() -> None:
    fingerprint = parse_spec(GOOD, "").fingerprint
    assert len(fingerprint) == 64
    same = [
        ("weight: w\n", ""),
        ("column: a, ", "column: b, "),
        ('header: false, columns: ["y", a, b, w]', "header: true"),
        ("format: delimited", 'format: delimited, delimiter: "|"'),
        ("[-1, 0.5, 1.0e+3]", "[-1.0, 0.5, 1000]"),
    ]
    other = [
        ("bits: 30", "bits: 31"),
        ("18446744073709551615", "0"),
        ("bias: false", "bias: true"),
        ("missing: feature", "missing: skip"),
        ("0.5", "0.6"),
        ("of: [a, b]", "of: [b, a]"),
        ("name: axb", "name: bxa"),
        ("name: raw", "name: rawer"),
    ]
    assert {changed(*change).fingerprint for change in same} == {fingerprint}
    assert len({fingerprint, *(changed(*change).fingerprint for change in other)}) == len(other) + 1


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("bits: 30", "bits: 0", r"my\.yaml:5: bits: must be at least 1, met 0"),
        ("bits: 30", "bits: 41", r"my\.yaml:5: bits: must be at most 40, met 41"),
        ("bits: 30", "bits: many", r"bits: expected a whole number, met 'many'"),
        ("18446744073709551615", "18446744073709551616", r"seed: must be at most"),
        ("bias: false", "biass: false", r"my\.yaml:7: biass: there is no such key; write 'bias'"),
        ("bias: false", "bits: 3", r"my\.yaml:7: the key 'bits' is in line 5 already"),
        ("bias: false", "bias: 1", r"bias: expected true or false, met 1"),
        ("version: 1", "version: 2", r"version: expected 1, met 2"),
        ('label: "y"\n', "", r"`label` is missing"),
        ("label:", "lable:", r"lable: .*write 'label'"),
        ('label: "y"', "label: yes", r"label: expected text \(put it in quotes\), met True"),
        ('label: "y"', "label: click", r"my\.yaml:3: label: there is no column 'click'"),
        ("weight: w", 'weight: "y"', r"weight: 'y' is the label's column already"),
        ("column: a, ", "column: z, ", r"my\.yaml:10: fields\[1\]\.column: there is no column 'z'"),
        ("column: a, ", "column: w, ", r"fields\[1\]\.column: column 'w' is the label or weight"),
        ("name: raw", "name: a", r"my\.yaml:10: fields\[1\]\.name: 'a' is there twice"),
        ("name: raw", "name: ''", r"fields\[1\]\.name: expected a name"),
        ("name: raw, ", "", r"fields\[1\]: the key 'name' is missing"),
        (", type: number}", "}", r"fields\[1\]: the key 'type' is missing"),
        (", type: number}", ", type: text}", r"fields\[1\]\.type: expected 'number' or 'category'"),
        ("transform: edges", "transform: sqrt", r"fields\[2\]\.transform: expected 'log' or 'edges'"),
        ("transform: edges", "transfrom: edges", r"fields\[2\]\.transfrom: .*write 'transform'"),
        ("transform: edges", "transform: log", r"fields\[2\]\.edges: only `transform: edges`"),
        (", edges: [-1, 0.5, 1.0e+3]", "", r"fields\[2\]: `edges` is missing"),
        ("0.5", "-1", r"fields\[2\]\.edges\[1\]: edges must increase, met -1 after -1"),
        (
            "1.0e+3",
            "1e3",
            r"fields\[2\]\.edges\[2\]: expected a number \(with an exponent: 1\.0e\+3\), met '1e3'",
        ),
        ("0.5", ".nan", r"fields\[2\]\.edges\[1\]: expected a finite number"),
        ("missing: feature", "missing: drop", r"fields\[0\]\.missing: expected 'skip' or 'feature'"),
        ("of: [a, b]", "of: [a, c]", r"my\.yaml:13: crosses\[0\]\.of\[1\]: there is no field 'c'"),
        ("of: [a, b]", "of: [a]", r"crosses\[0\]\.of: expected a list of two or more"),
        ("of: [a, b]", "of: [a, a]", r"crosses\[0\]\.of\[1\]: 'a' is there twice"),
        ("name: axb", "name: a", r"crosses\[0\]\.name: 'a' is the name of a field"),
        ("header: false, ", "", r"source\.columns: the header names the columns"),
        (', columns: ["y", a, b, w]', "", r"my\.yaml:2: source: without a header"),
        ("a, b, w]}", "a, a, w]}", r"source\.columns\[2\]: 'a' is there twice"),
        ("format: delimited", "format: delimited, delimiter: ab", r"source\.delimiter: must be one ASCII"),
        ("format: delimited", "format: parquet", r"source\.(header|columns): only delimited text"),
        ("format: delimited", "format: csv", r"source\.format: expected 'delimited', 'parquet' or 'libsvm'"),
        ("  - {name: a, ", "  - [name: a, ", r"my\.yaml:\d+:\d+: not valid YAML"),
    ],
)
def test_a_wrong_spec_is_refused_with_place_and_remedy(old: str, new: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        changed(old, new)


@pytest.mark.parametrize(
    "text", ["", "# nothing\n", "[]", "5", "\0", "[" * 5000, "a: !!int x", "{}", "a: &a [*a]"]
)
def test_what_is_no_mapping_of_a_spec_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match=r"^odd\.yaml"):
        parse_spec(text, "odd.yaml")


def test_libsvm_has_no_columns() -> None:
    text = load_spec("libsvm").to_yaml()
    with pytest.raises(SpecError, match="label: libsvm data carries its own label"):
        parse_spec(text + "label: x\n", "x")
    with pytest.raises(SpecError, match=r"fields: libsvm"):
        parse_spec(text + "fields: [{name: a, type: category}]\n", "x")


def test_a_spec_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"no feature spec 'kriteo'.*avazu, criteo, libsvm"):
        load_spec("kriteo")
    with pytest.raises(SpecError, match="cannot be read"):
        load_spec(tmp_path)
    latin = tmp_path / "latin.yaml"
    latin.write_bytes("label: é".encode("latin-1"))
    with pytest.raises(SpecError, match="byte 7 is not UTF-8"):
        load_spec(latin)
