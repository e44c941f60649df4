"""Feature specs: round trips, fingerprints, and messages for wrong ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import Field

from ctr.errors import DataError, SpecError
from ctr.features.spec import FeatureSpec, NumberField, load_spec, parse_spec
from ctr.features.transform.transform import Transform

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
  - {name: raw, column: a, type: number, transform: log}
  - {name: b, type: number, transform: edges, edges: [-1, 0.5, 1.0e+3]}
crosses:
  - {name: axb, of: [a, b]}
"""
)


def changed(old: str, new: str) -> FeatureSpec:
    assert old in GOOD
    return parse_spec(GOOD.replace(old, new), "my.yaml")


@pytest.mark.parametrize(("name", "fields"), [("criteo", 40), ("avazu", 23), ("libsvm", 1), ("vw", 1)])
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


GOLDEN = {
    "criteo": "c96f1f9f1b7897f98f2b9ff5034eee00aa1160d425497dbf75aa88539034739d",
    "avazu": "e5e92a327ca9e97c3e73c21b2e847ad929b4be5a0c0349cd8d391f72339a96cf",
    "libsvm": "1f1dec4b7e50a63e62d95f51cf89243a19cfea447be1b3d03d614d18b46304d4",
    "vw": "bc6509c9287bb5b2aa827dccb441ed069cc5a87f21a8879d7d8f7d2c11b83d3f",
}


def test_fingerprints_never_change() -> None:
    """With another one, every model and data set that was ever saved would be refused."""
    assert {name: load_spec(name).fingerprint for name in GOLDEN} == GOLDEN
    every_key = parse_spec(GOOD, "").fingerprint
    assert every_key == "5ba24f4bc302bc6e849d3e02f4b0e492bf32a469a18d98a0caf576228a2103b6"


class LaterNumber(NumberField):
    scale: float = 1.0
    steps: tuple[str, ...] = Field(default_factory=tuple)


def test_a_key_that_a_later_version_adds_changes_only_the_specs_that_use_it() -> None:
    def later(**keys: object) -> str:
        spec = parse_spec(GOOD, "")
        number = LaterNumber.model_validate(spec.fields[1].model_dump() | keys)
        return spec.model_copy(update={"fields": (spec.fields[0], number, spec.fields[2])}).fingerprint

    fingerprint = parse_spec(GOOD, "").fingerprint
    assert later() == later(scale=1.0, steps=()) == fingerprint
    assert len({fingerprint, later(scale=2.0), later(steps=("x",))}) == 3


def test_scales_enter_the_fingerprint_where_they_are_not_1() -> None:
    spec = parse_spec(GOOD, "")
    ones = parse_spec(GOOD + "scales: {raw: 1, axb: 1.0}", "")
    scaled = parse_spec(GOOD + "scales: {raw: 1, axb: 0.25}", "")
    assert spec.fingerprint == ones.fingerprint != scaled.fingerprint
    assert (ones.has_values, scaled.has_values) == (False, True)
    assert parse_spec(scaled.to_yaml(), "again") == scaled
    assert "scales" not in spec.to_yaml()
    assert spec.with_scales({"axb": 0.25}).fingerprint == scaled.fingerprint  # of a spec that knows its own
    assert scaled.of_fields(scaled.fields[:2]).scales == {"raw": 1}


def test_data_that_carries_its_own_features_has_no_scales() -> None:
    for name in ("libsvm", "vw"):
        with pytest.raises(SpecError, match=f"{name} data carries its own features, which have no scales"):
            load_spec(name).with_scales({"index": 2})
        assert load_spec(name).with_scales({}) == load_spec(name)


def test_a_spec_that_was_saved_when_transform_had_a_default_still_loads() -> None:
    saved = """version: 1
source: {format: delimited, delimiter: ',', header: true, quote: false}
label: click
bits: 22
seed: 0
bias: true
fields:
- {name: n, type: number, missing: skip, transform: log}
"""
    spec = parse_spec(saved, "features.yaml")
    assert spec.to_yaml() == saved
    assert spec.fingerprint == "156e1707dab03dcd5e83dc992568210b8606f1494569dc29bf936dc7cf959af7"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("bits: 30", "bits: 0", r"my\.yaml:5: bits: must be at least 1, got 0"),
        (
            "crosses:",
            "scales: {c: 2}\ncrosses:",
            r"scales\.c: there is no field or cross 'c' to scale; the spec has a, raw, b, axb\.$",
        ),
        (
            "crosses:",
            "scales: {a: 0}\ncrosses:",
            r"scales\.a: 'a' is scaled by 0; give a number from 0\.001 to 1000\.$",
        ),
        ("crosses:", "scales: {a: .inf}\ncrosses:", r"scales\.a: 'a' is scaled by inf; give a number from"),
        ("bits: 30", "bits: 41", r"my\.yaml:5: bits: must be at most 40, got 41"),
        ("bits: 30", "bits: many", r"bits: expected a whole number, got 'many'"),
        ("18446744073709551615", "18446744073709551616", r"seed: must be at most"),
        ("bias: false", "biass: false", r"my\.yaml:7: biass: there is no such key; write 'bias'"),
        ("bias: false", "bits: 3", r"my\.yaml:7: the key 'bits' is in line 5 already"),
        ("bias: false", "bias: 1", r"bias: expected true or false, got 1"),
        ("version: 1", "version: 2", r"version: expected 1, got 2"),
        ('label: "y"\n', "", r"`label` is missing"),
        ("label:", "lable:", r"lable: .*write 'label'"),
        ('label: "y"', "label: yes", r"label: expected text \(put it in quotes\), got True"),
        ('label: "y"', "label: click", r"my\.yaml:3: label: there is no column 'click'"),
        ("weight: w", 'weight: "y"', r"weight: 'y' is the label's column already"),
        ("column: a, ", "column: z, ", r"my\.yaml:10: fields\[1\]\.column: there is no column 'z'"),
        ("column: a, ", "column: w, ", r"fields\[1\]\.column: column 'w' is the label or weight"),
        ("name: raw", "name: a", r"my\.yaml:10: fields\[1\]\.name: 'a' is there twice"),
        ("name: raw", "name: ''", r"fields\[1\]\.name: expected a name"),
        ("name: raw, ", "", r"fields\[1\]: the key 'name' is missing"),
        (", type: number, transform: log}", "}", r"fields\[1\]: the key 'type' is missing"),
        (
            ", type: number, transform: log}",
            ", type: string}",
            r"fields\[1\]\.type: expected 'number', 'category', .*got 'string'",
        ),
        (
            ", transform: log",
            "",
            r"my\.yaml:10: fields\[1\]: a number needs a `transform`; add transform: log .* transform: edges",
        ),
        (
            "transform: edges",
            "transform: sqrt",
            r"fields\[2\]\.transform: expected 'log', 'edges', .*'quantiles' or",
        ),
        ("transform: edges", "transfrom: edges", r"fields\[2\]\.transfrom: .*write 'transform'"),
        ("transform: edges", "transform: log", r"fields\[2\]\.edges: only `transform: edges`"),
        (", edges: [-1, 0.5, 1.0e+3]", "", r"fields\[2\]: `edges` is missing"),
        ("0.5", "-1", r"fields\[2\]\.edges\[1\]: edges must increase, got -1 after -1"),
        (
            "1.0e+3",
            "1e3",
            r"fields\[2\]\.edges\[2\]: expected a number \(with an exponent: 1\.0e\+3\), got '1e3'",
        ),
        ("0.5", ".nan", r"fields\[2\]\.edges\[1\]: expected a finite number"),
        (
            "missing: feature",
            "missing: drop",
            r"fields\[0\]\.missing: expected 'skip', 'feature' or {value: TEXT}",
        ),
        ("of: [a, b]", "of: [a, c]", r"my\.yaml:13: crosses\[0\]\.of\[1\]: there is no field 'c'"),
        ("of: [a, b]", "of: [a]", r"crosses\[0\]\.of: expected a list of two or more"),
        ("18446744073709551615", "18446744073709551616", r"seed: .*18446744073709551615"),
        ("of: [a, b]", "of: [a, a]", r"crosses\[0\]\.of\[1\]: 'a' is there twice"),
        ("name: axb", "name: a", r"crosses\[0\]\.name: 'a' is the name of a field"),
        ("header: false, ", "", r"source\.columns: the header names the columns"),
        (', columns: ["y", a, b, w]', "", r"my\.yaml:2: source: without a header"),
        ("a, b, w]}", "a, a, w]}", r"source\.columns\[2\]: 'a' is there twice"),
        ("format: delimited", "format: delimited, delimiter: ab", r"source\.delimiter: must be one ASCII"),
        ("format: delimited", "format: parquet", r"source\.(header|columns): only delimited text"),
        (
            "format: delimited",
            "format: cvs",
            r"source\.format: expected 'csv', 'tsv', 'delimited', 'parquet', 'arrow', 'jsonl', 'libsvm' or",
        ),
        ("  - {name: a, ", "  - [name: a, ", r"my\.yaml:\d+:\d+: not valid YAML"),
        (
            "{name: a, type: category, ",
            "{name: a, type: category, edges: [1], ",
            r"fields\[0\]\.edges: there is no such key here; only number fields and time fields may have it",
        ),
        ("bias: false", "header: false", r"header: there is no such key here; only source may have it"),
        (
            "bias: false",
            "bias: false\n7: 1",
            r"my\.yaml:\d+: every key must be text \(put it in quotes\), got 7",
        ),
        (
            "type: category, ",
            'type: category, column: "\\ud800", ',
            r"column: expected text that is valid Unicode",
        ),
        ("bits: 30", "bits: " + "9" * 400, r"bits: must be at most 40, got 9{80}….$"),
        ("version: 1", "version: " + "9" * 400, r"version: expected a smaller number, got 9{80}….$"),
        ("[a, b]}", "&of [a, *of]}", r"of\[1\]: expected (text|a value that does not contain itself)"),
        ("header: false, ", "header: false, ignore: [id, id], ", r"source\.ignore\[1\]: 'id' is there twice"),
        (
            "header: false, ",
            "header: false, ignore: [id, a], ",
            r"source\.ignore\[1\]: column 'a' is not ignored",
        ),
        (
            "header: false, ",
            "header: false, ignore: [w], ",
            r"source\.ignore\[0\]: column 'w' is not ignored",
        ),
        ("header: false, ", "header: false, ignore: id, ", r"source\.ignore: expected a list, got 'id'"),
    ],
)
def test_a_wrong_spec_is_refused_with_place_and_remedy(old: str, new: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        changed(old, new)


@pytest.mark.parametrize(
    "text", ["", "# nothing\n", "[]", "5", "\0", "[" * 600, "a: !!int x", "{}", "a: &a [*a]"]
)
def test_what_is_no_mapping_of_a_spec_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match=r"^odd\.yaml"):
        parse_spec(text, "odd.yaml")


def test_what_was_got_instead_of_a_mapping_has_a_plain_name() -> None:
    with pytest.raises(SpecError, match=r"got a list\.$"):
        parse_spec("[1, 2]", "odd.yaml")
    with pytest.raises(SpecError, match=r"got text\.$"):
        parse_spec("criteo", "odd.yaml")


@pytest.mark.parametrize("source", ["{format: delimited}", "{format: parquet}"])
def test_ignored_columns_may_be_sent_and_survive_a_round_trip(source: str) -> None:
    text = f"{{version: 1, source: {source}, label: click, fields: [{{name: a, type: category}}]}}"
    plain, spec = (
        parse_spec(t, "my.yaml") for t in (text, text.replace("}, label", ", ignore: [id]}, label"))
    )
    assert spec.source.ignore == ("id",)
    assert spec.fingerprint == plain.fingerprint
    assert parse_spec(spec.to_yaml(), "again") == spec
    row = {"id": "7", "a": "x"}
    assert len(Transform(spec, with_label=False).apply_rows([row])) == 1
    with pytest.raises(DataError, match=r"rows\[0\]: .* no column 'id'; remove it, .* source\.ignore"):
        Transform(plain, with_label=False).apply_rows([row])


def test_a_raw_avazu_row_can_be_sent() -> None:
    spec = load_spec("avazu")
    row = {"id": "1000009418151094273", "click": "0"} | {field.name: "1" for field in spec.fields}
    assert len(Transform(spec, with_label=False).apply_rows([row])) == 1


def test_libsvm_has_no_columns() -> None:
    text = load_spec("libsvm").to_yaml()
    with pytest.raises(SpecError, match="label: libsvm data carries its own label"):
        parse_spec(text + "label: x\n", "x")
    with pytest.raises(SpecError, match=r"source\.ignore: libsvm data has no named columns"):
        parse_spec(text.replace("libsvm", "libsvm, ignore: [id]"), "x")
    with pytest.raises(SpecError, match=r"fields: libsvm"):
        parse_spec(text + "fields: [{name: a, type: category}]\n", "x")


def test_a_spec_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"no feature spec 'kriteo'.*avazu, criteo, libsvm, vw"):
        load_spec("kriteo")
    with pytest.raises(SpecError, match=r"a folder without features\.yaml"):
        load_spec(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(SpecError, match="cannot be read"):
        load_spec(tmp_path / "file" / "spec.yaml")
    latin = tmp_path / "latin.yaml"
    latin.write_bytes("label: é".encode("latin-1"))
    with pytest.raises(SpecError, match="byte 7 is not UTF-8"):
        load_spec(latin)
