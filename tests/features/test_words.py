"""Fields of text from raw rows to served predictions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ctr.api.app import create_app
from ctr.errors import DataError, SpecError
from ctr.features import (
    DatasetSource,
    RawSource,
    Transform,
    fit,
    load_spec,
    open_source,
    parse_spec,
    write_dataset,
)
from ctr.features.spec import FittedSpec, learnt_of
from ctr.jobs import run_train_job
from ctr.model import load_model
from ctr.settings import TrainJob
from tests.api.running import run_server
from tests.command_line import Cli
from tests.reference import words as reference

SPEC = """version: 1
source: {format: delimited, header: true}
label: y
bits: 32
fields:
- {name: site, type: category, lower: true, prefix: 4, min_count: 40, missing: {value: NONE}}
- {name: brand, type: category, lower: true, vocabulary: lists/brands.txt, others: missing, missing: feature}
- {name: tags, type: list, delimiter: "|", counts: true, min_count: 5, missing: feature}
- {name: pair, column: tags, type: list, delimiter: "|", most: 1, missing: {value: "a|b"}}
- {name: title, type: text, words: [1, 2], chars: [3]}
- {name: plain, column: site, type: category}
crosses:
- {name: site x brand, of: [site, brand]}
"""
COLUMNS = ("site", "brand", "tags", "title")


def rows_of(count: int, seed: int) -> list[dict[str, str]]:
    rng = np.random.default_rng(seed)
    sites = ["", "nan", "News.com", "NEWS.org", "Shop", "Ärzte.de", "5.0", "TRUE"]
    brands = ["Acme", "ACME", "Größe", "other", ""]
    tags = ["", "a", "a|b:2|a", "c:0.5| d", "rare{}", "a|rare{}:3", "|"]
    titles = ["Rote Schuhe", "rote SCHUHE, billig!", "", "靴 🙂 shoes", "x"]
    rows = []
    for i in range(count):
        texts = (rng.choice(sites), rng.choice(brands), str(rng.choice(tags)).format(i), rng.choice(titles))
        rows.append(dict(zip(COLUMNS, map(str, texts), strict=True)))
    return rows


def write_log(path: Path, rows: list[dict[str, str]]) -> Path:
    lines = [
        ";".join([str(int("rote" in row["title"].lower())), *(row[name] for name in COLUMNS)]) for row in rows
    ]
    path.write_text("\n".join([";".join(["y", *COLUMNS]), *lines, ""]))
    return path


@pytest.fixture
def spec_file(tmp_path: Path) -> Path:
    (tmp_path / "specs" / "lists").mkdir(parents=True)
    (tmp_path / "specs" / "lists" / "brands.txt").write_bytes(
        "\ufeffAcme\r\n\ngrösse\nGRÖSSE\nGröße".encode()
    )
    path = tmp_path / "specs" / "words.yaml"
    path.write_text(SPEC.replace("header: true", 'delimiter: ";"'))
    return path


def features_of(spec: FittedSpec, row: dict[str, str]) -> list[tuple[int, float]]:
    """Slots and values of a row after its bias, but for crosses."""
    from ctr.features.text import hash_bytes

    single, several = [], []
    learnt = learnt_of(spec) or {}
    for field in spec.fields:
        seed = hash_bytes(field.name.encode(), spec.seed)
        text = row[field.column or field.name].encode()
        if field.step == "category":
            found = {hash_bytes(value, seed): 1.0} if (value := reference.category(text)) is not None else {}
        else:
            known = frozenset(learnt[f"{field.name}/known"].tolist()) if field.learns else None
            found = reference.features(field, text, seed, known)
            if not found and field.constant is not None:
                found = reference.features(field, field.constant.encode(), seed, known)
        if not found and field.missing == "feature":
            found = {hash_bytes(b"", seed): 1.0}
        (several if field.several else single).extend(found.items())
    return [(hashed % 2**spec.bits or 1, value) for hashed, value in single + several]


def test_fields_of_text_from_raw_rows_to_served_predictions(
    tmp_path: Path, spec_file: Path, cli: Cli
) -> None:
    rows, other_rows = rows_of(600, 1), rows_of(90, 2)
    log, other = write_log(tmp_path / "log.csv", rows), write_log(tmp_path / "other.csv", other_rows)
    hashed, model = tmp_path / "hashed", tmp_path / "model"
    assert cli("features", "build", log, "--spec", spec_file, "--out", hashed).code == 0
    spec = DatasetSource(hashed).spec
    assert isinstance(spec, FittedSpec)
    assert spec == fit(load_spec(spec_file), [log])
    assert str(tmp_path) not in spec.to_yaml()
    (spec_file.parent / "lists" / "brands.txt").unlink()  # nobody needs it any more

    summary = run_train_job(TrainJob(inputs=[hashed], spec=None, model=model, chunk=100))
    loaded = load_model(model)
    assert loaded.spec == spec
    offline = np.concatenate([loaded.predict(b) for b in open_source([other], loaded.spec).batches(40)])
    assert summary.progressive is not None
    with run_server(create_app(loaded)) as running:
        plain = running.client.post("/v1/predict", json={"rows": other_rows}).json()["predictions"]
        lists = [row | {"tags": row["tags"].split("|")} for row in other_rows]
        as_lists = running.client.post("/v1/predict", json={"rows": lists}).json()["predictions"]
        for column, value in (("site", ["a"]), ("tags", [["a"]]), ("tags", {"a": 1})):
            refused = running.client.post("/v1/predict", json={"rows": [{column: value}]})
            assert (refused.status_code, "rows[0]." + column in refused.text) == (422, True)
    np.testing.assert_array_equal(np.array(plain, np.float32), offline)
    np.testing.assert_array_equal(np.array(as_lists, np.float32), offline)


def test_slots_are_those_of_the_reference_offline_and_online(tmp_path: Path, spec_file: Path) -> None:
    rows = rows_of(300, 3)
    log = write_log(tmp_path / "log.csv", rows)
    spec = fit(load_spec(spec_file), [log])
    assert isinstance(spec, FittedSpec)
    spec = spec.model_copy(update={"crosses": ()})
    online = Transform(spec, with_label=False).apply_rows(rows)
    done = 0
    for batch in RawSource(spec, [log]).batches(70):
        assert batch.values is not None
        assert online.values is not None
        for i in range(len(batch)):
            first, last = batch.indptr[i : i + 2]
            found = list(
                zip(batch.slots[first:last].tolist(), batch.values[first:last].tolist(), strict=True)
            )
            assert found == [(0, 1.0), *features_of(spec, rows[done])]
            same = slice(*online.indptr[done : done + 2])
            np.testing.assert_array_equal(online.slots[same], batch.slots[first:last])
            np.testing.assert_array_equal(online.values[same], batch.values[first:last])
            done += 1
    assert done == len(rows)


def test_what_the_constant_stands_for_is_counted(tmp_path: Path, spec_file: Path) -> None:
    rows = rows_of(600, 1)
    spec = fit(load_spec(spec_file), [write_log(tmp_path / "log.csv", rows)])
    learnt = learnt_of(spec)
    assert learnt is not None
    field = spec.fields[0]
    cells = [row["site"] if row["site"] not in ("", "nan") else "NONE" for row in rows]
    assert set(learnt["site/known"].tolist()) == reference.frequent(field, map(str.encode, cells), 40)
    assert np.unique(learnt["brand/known"]).size == 3  # ACME, and two spellings of one word


def test_training_from_raw_text_learns_first(tmp_path: Path, spec_file: Path) -> None:
    log = write_log(tmp_path / "log.csv", rows_of(600, 1))
    models = []
    for inputs in ([log], [tmp_path / "hashed"]):
        spec = spec_file if inputs == [log] else None
        if spec is None:
            from ctr.features import write_dataset

            fitted = fit(load_spec(spec_file), [log])
            write_dataset(RawSource(fitted, [log]).batches(65_536), fitted, tmp_path / "hashed")
        job = TrainJob(inputs=inputs, spec=spec, model=tmp_path / f"model{len(models)}", chunk=100)
        models.append(run_train_job(job).model)
    raw, hashed = models
    assert raw.spec == hashed.spec
    np.testing.assert_array_equal(raw.linear.weights, hashed.linear.weights)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            ", min_count: 40",
            ", others: missing",
            r"fields\[0\]\.others: all values are features of their own",
        ),
        ("min_count: 40", "min_count: 1", r"min_count: must be at least 2, got 1"),
        ("prefix: 4", "prefix: 0", r"prefix: must be at least 1, got 0"),
        ('"|", counts', '":", counts', r"fields\[2\]\.delimiter: with `counts` a colon"),
        ('"|", counts', '", ", counts', r"fields\[2\]\.delimiter: must be one ASCII character"),
        ("words: [1, 2], chars: [3]", "words: []", r"fields\[4\]: `words` or `chars` is missing"),
        ("[1, 2]", "[2, 1]", r"fields\[4\]\.words\[1\]: sizes must increase, got 1 after 2"),
        ("{value: NONE}", "{value: 5}", r"fields\[0\]\.missing\.value: expected text \(put it in quotes\)"),
        ("{value: NONE}", "{text: a}", r"fields\[0\]\.missing\.text: there is no such key"),
    ],
)
def test_a_wrong_spec_is_refused_with_place_and_remedy(old: str, new: str, message: str) -> None:
    assert old in SPEC
    with pytest.raises(SpecError, match=message):
        parse_spec(SPEC.replace(old, new), "words.yaml")


def test_a_vocabulary_that_is_not_there_or_empty_is_refused(tmp_path: Path, spec_file: Path) -> None:
    log = write_log(tmp_path / "log.csv", rows_of(5, 1))
    brands = spec_file.parent / "lists" / "brands.txt"
    brands.write_text("\n\nnan\n")
    with pytest.raises(SpecError, match=r"field 'brand': the vocabulary .*brands.txt holds no value"):
        fit(load_spec(spec_file), [log])
    brands.unlink()
    with pytest.raises(
        SpecError, match=r"field 'brand': the vocabulary .*brands.txt cannot be read \(No such .*\); correct"
    ):
        fit(load_spec(spec_file), [log])


def test_a_vocabulary_that_changed_since_a_data_set_was_built(tmp_path: Path, spec_file: Path) -> None:
    log, out = write_log(tmp_path / "log.csv", rows_of(5, 1)), tmp_path / "hashed"
    brands = spec_file.parent / "lists" / "brands.txt"
    fitted = fit(load_spec(spec_file), [log])
    write_dataset(RawSource(fitted, [log]).batches(100), fitted, out)
    assert open_source([out], load_spec(spec_file)).spec.fingerprint == fitted.fingerprint
    brands.write_text(brands.read_text() + "another\n")
    with pytest.raises(DataError, match="hashed with another vocabulary of field 'brand' than"):
        open_source([out], load_spec(spec_file))
    assert open_source([out], fitted).spec.fingerprint == fitted.fingerprint


@pytest.mark.parametrize(
    ("field", "kind"),
    [
        ("{name: f, type: number, transform: log, missing: {value: x}}", "is no number"),
        ("{name: f, type: category, missing: {value: nan}}", "is no value of such a field"),
        ("{name: f, type: category, lower: true, missing: {value: NaN}}", "is no value of such a field"),
        ('{name: f, type: text, words: [1], missing: {value: "!"}}', "is no value of such a field"),
    ],
)
def test_a_constant_that_is_no_value_is_refused(field: str, kind: str) -> None:
    text = f"{{version: 1, source: {{format: delimited}}, label: y, fields: [{field}]}}"
    with pytest.raises(SpecError, match=f"field 'f': what stands for missing values, '.*', {kind}"):
        Transform(parse_spec(text, "constant"), with_label=False)


def test_options_at_their_defaults_change_no_fingerprint() -> None:
    text = "{version: 1, source: {format: delimited}, label: y, fields: [{name: f, type: category%s}]}"
    plain, spelt_out, lower = (
        parse_spec(text % keys, "keys") for keys in ("", ", lower: false, missing: skip", ", lower: true")
    )
    assert plain.fingerprint == spelt_out.fingerprint != lower.fingerprint
    assert plain.fields[0].step == spelt_out.fields[0].step == "category"


def test_a_list_for_a_column_that_is_read_as_one_value_too_is_refused() -> None:
    text = """{version: 1, source: {format: delimited}, label: y, fields: [
        {name: l, column: c, type: list}, {name: c, type: category}]}"""
    with pytest.raises(
        DataError, match=r"rows\[0\]\.c: got the list \['a', 'b'\], but its field takes one value"
    ):
        Transform(parse_spec(text, "both"), with_label=False).apply_rows([{"c": ["a", "b"]}])
