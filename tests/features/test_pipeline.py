"""`Pipeline`: tables of several libraries become the slots that files with the same values become."""

from __future__ import annotations

import doctest
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import yaml
from pyarrow import parquet
from scipy import sparse

from ctr.errors import DataError, SpecError
from ctr.features import Pipeline, fit, pipeline
from ctr.features.raw import RawSource
from tests.features.one_table import ROWS, SPEC, TABLE, assert_equal

# A category of times, so that each kind of column is there once; tests/ctr/test_reading.py has the warning.
pytestmark = pytest.mark.filterwarnings("ignore:the table. column 'at' has the type timestamp")


class OnlyAStream:
    """A table of a library that nobody knows."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)


@pytest.fixture(scope="module")
def fitted() -> Pipeline:
    return Pipeline.from_yaml(SPEC).fit(TABLE)


def test_the_slots_are_those_of_files(tmp_path: Path, fitted: Pipeline) -> None:
    table = TABLE.drop_columns(["unused"])
    parquet.write_table(table, tmp_path / "rows.parquet")
    spec = fit(Pipeline.from_yaml(SPEC).spec, [tmp_path / "rows.parquet"])
    assert spec.fingerprint == fitted.spec.fingerprint
    (batch,) = RawSource(spec, [tmp_path / "rows.parquet"]).batches(ROWS)
    found = fitted.transform(TABLE)
    assert found.dtype == np.float32
    assert found.shape == (ROWS, 1 << 20)
    assert_equal(found, batch.to_scipy(20))
    assert batch.labels is not None
    np.testing.assert_array_equal(fitted.labels(TABLE), batch.labels)
    weights = fitted.weights(TABLE)
    assert weights is not None
    np.testing.assert_array_equal(weights, np.arange(ROWS) % 2 + 1)


@pytest.mark.parametrize("library", ["stream", "batches", "pandas", "polars"])
def test_tables_of_other_libraries(fitted: Pipeline, library: str) -> None:
    table: Any = TABLE.drop_columns(["unused"])
    if library == "stream":
        table = OnlyAStream(TABLE)
    elif library == "batches":
        table = TABLE.slice(100).to_reader(max_chunksize=37)
        assert_equal(fitted.transform(table), fitted.transform(TABLE)[100:])
        return
    elif library == "pandas":
        pytest.importorskip("pandas")
        table = table.to_pandas()
    else:
        table = pytest.importorskip("polars").from_arrow(table)
    assert_equal(fitted.transform(table), fitted.transform(TABLE))
    assert Pipeline.from_yaml(SPEC).fit(table).spec.fingerprint == fitted.spec.fingerprint


def test_many_rows_and_none(fitted: Pipeline) -> None:
    many = pa.concat_tables([TABLE] * 120)  # more than a piece
    found = fitted.transform(many)
    assert_equal(found, sparse.vstack([fitted.transform(TABLE)] * 120, format="csr"))
    assert fitted.transform(many.slice(0, 0)).shape == (0, 1 << 20)
    assert fitted.transform([]).shape == (0, 1 << 20)


def test_lists(fitted: Pipeline) -> None:
    pipeline = Pipeline.from_yaml(
        "{version: 1, source: {format: parquet}, label: y, fields: [{name: a, type: list, delimiter: '|'}]}"
    )
    lists = pa.table({"a": [["x", "y"], [], None, ["z", None]]})
    texts = pa.table({"a": ["x|y", "", None, "z"]})
    assert_equal(pipeline.transform(lists), pipeline.transform(texts))
    assert_equal(pipeline.transform(lists.to_pylist()), pipeline.transform(texts))


def test_rows_as_dicts(fitted: Pipeline) -> None:
    rows = [{"site": "s1", "n": 4, "price": 2.5, "at": "2017-11-06", "title": "b a"}, {"price": None}]
    table = pa.Table.from_pylist(rows)
    assert_equal(fitted.transform(rows), fitted.transform(table))


def test_labels_of_rows_as_dicts(fitted: Pipeline) -> None:
    rows = TABLE.slice(0, 5).to_pylist()
    np.testing.assert_array_equal(fitted.labels(rows), fitted.labels(TABLE)[:5])
    np.testing.assert_array_equal(fitted.weights(rows), fitted.weights(TABLE)[:5])
    del rows[3][fitted.spec.label]
    with pytest.raises(DataError, match=rf"rows\[3\]: column '{fitted.spec.label}': '' is no label"):
        fitted.labels(rows)


def test_the_name_of_a_spec_is_a_spec(tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text(SPEC)
    specs = [Pipeline(each).spec for each in (tmp_path / "spec.yaml", str(tmp_path / "spec.yaml"), SPEC)]
    assert {spec.fingerprint for spec in specs} == {Pipeline.from_yaml(SPEC).spec.fingerprint}
    with pytest.raises(SpecError, match=r"none\.yaml"):
        Pipeline(tmp_path / "none.yaml")


def test_fit_forgets_what_was_learnt_before(tmp_path: Path, fitted: Pipeline) -> None:
    (tmp_path / "sites.txt").write_text("s1\ns2\n")
    spec = tmp_path / "spec.yaml"
    spec.write_text(SPEC.replace("min_count: 3", "min_count: 3, vocabulary: sites.txt"))
    twice = Pipeline.from_yaml(spec).fit(TABLE.slice(0, 50))
    first = twice.spec.fingerprint
    assert twice.fit(TABLE).spec.fingerprint == Pipeline.from_yaml(spec).fit(TABLE).spec.fingerprint != first
    fitted.save(tmp_path / "saved")
    loaded = Pipeline.load(tmp_path / "saved").fit(TABLE.slice(0, 50))
    assert loaded.spec.fingerprint == Pipeline.from_yaml(SPEC).fit(TABLE.slice(0, 50)).spec.fingerprint


def test_a_spec_that_learns_nothing_needs_no_fit() -> None:
    pipeline = Pipeline.from_yaml(
        "{version: 1, source: {format: parquet}, label: y, bits: 33, fields: [{name: a, type: category}]}"
    )
    assert pipeline.is_fitted
    table = pa.table({"a": ["x", "y"]})
    assert pipeline.transform(table).shape == (2, 1 << 33)
    assert pipeline.fit(table) is pipeline
    assert pipeline.weights(pa.table({"y": [1, -1]})) is None
    assert pipeline.labels(pa.table({"y": [1, -1]})).tolist() == [1, 0]


def test_a_dict_is_a_spec() -> None:
    spec = yaml.safe_load(SPEC)
    assert Pipeline(spec).spec == Pipeline.from_yaml(SPEC).spec
    with pytest.raises(SpecError, match=r"^the spec: source.format: expected .*, got 'xls'"):
        Pipeline(spec | {"source": {"format": "xls"}})
    with pytest.raises(SpecError, match=r"a value is neither text, number, list nor dict .*PosixPath"):
        Pipeline(spec | {"label": Path("click")})
    with pytest.raises(SpecError, match=r"spec: expected the path of a YAML file, .* got Table"):
        Pipeline(TABLE)  # type: ignore[arg-type]


def test_before_fit() -> None:
    pipeline = Pipeline.from_yaml(SPEC)
    for call in (lambda: pipeline.transform(TABLE), lambda: pipeline.save("nowhere")):
        with pytest.raises(SpecError, match=r"field 'rare'.*learns from data first; call pipeline.fit"):
            call()
    assert pipeline.labels(TABLE).tolist()[:4] == [1, 0, 0, 1]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ([1, 2], r"got list; make one of a list of dicts with pyarrow\.Table\.from_pylist"),
        ({"site": ["a"]}, r"got dict; make one with pyarrow\.table"),
        (np.zeros((2, 2)), r"got numpy\.ndarray; columns are found by name"),
        (sparse.csr_matrix((2, 2)), r"got scipy\.sparse\.\S+; columns are found by name"),
        ("rows.parquet", r"got str; read the file first"),
        (Path("rows.parquet"), r"read the file first"),
        (None, r"got NoneType; make one"),
        (pa.Table, r"got type; make one"),
        (TABLE.to_pandas()[["site", "site"]], r"Duplicate column names found.*columns have distinct names"),
        (pa.chunked_array([[1]]), r"pyarrow\.lib\.ChunkedArray cannot be read as an Arrow table"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_table(fitted: Pipeline, wrong: object, message: str) -> None:
    before = fitted.spec
    for call in (fitted.transform, fitted.fit, fitted.labels):
        with pytest.raises(DataError, match=message):
            call(wrong)
    assert fitted.spec is before


def test_what_is_wrong_in_a_table(fitted: Pipeline) -> None:
    with pytest.raises(DataError, match=r"the table: there is no column 'n', 'price', which.* has 'site'"):
        fitted.transform(TABLE.select(["site", "at", "title"]))
    with pytest.raises(
        DataError, match=r"has 'Site'\. 'Site' and 'site' differ only in case: rename one of them\."
    ):
        Pipeline.from_yaml(SPEC).fit(pa.table({"Site": ["a"]}))
    with pytest.raises(DataError, match="the table: there is no column 'n'"):
        Pipeline.from_yaml(SPEC).fit(TABLE.drop_columns(["n"]))
    with pytest.raises(DataError, match="the table: there is no column 'click'"):
        fitted.labels(TABLE.drop_columns(["click"]))
    late = pa.concat_tables([TABLE.drop_columns(["n"])] * 60)
    late = late.append_column("n", pa.array(["1"] * 17_500 + ["many"] + ["1"] * 499))
    with pytest.raises(
        DataError, match=r"the table: row 17501: column 'n': 'many' is not a number.*; correct"
    ):
        fitted.transform(late)
    with pytest.raises(DataError, match=r"row 3: column 'click': '2' is no label"):
        fitted.labels(pa.table({"click": [0, 1, 2], "w": [1, 1, 1]}))
    with pytest.raises(DataError, match=r"column 'n' has the type duration"):
        fitted.transform(TABLE.set_column(2, "n", TABLE["n"].cast(pa.int64()).cast(pa.duration("s"))))
    with pytest.raises(SpecError, match="libsvm data carries its own features"):
        Pipeline.from_yaml("libsvm")
    with pytest.raises(DataError, match=r"column 'site' holds lists .*, but its field takes one value; give"):
        fitted.transform(TABLE.set_column(4, "site", TABLE["unused"]))
    with pytest.raises(SpecError, match=r"window .clicks.: a pipeline keeps no rows"):
        Pipeline.from_yaml(
            SPEC + "windows: [{name: clicks, key: [site], time: at, spans: [1d], features: [count]}]"
        )
    with pytest.raises(SpecError, match="the YAML text:2"):
        Pipeline.from_yaml("version: 1\nsauce: {}\n")


def test_saved_and_loaded(tmp_path: Path, fitted: Pipeline) -> None:
    place = tmp_path / "pipeline"
    for _ in range(2):  # it replaces itself
        fitted.save(place)
    loaded = Pipeline.load(place)
    assert loaded.spec.fingerprint == fitted.spec.fingerprint
    assert_equal(loaded.transform(TABLE), fitted.transform(TABLE))

    with pytest.raises(SpecError, match=r"none: there is no such folder; give that of Pipeline\.save"):
        Pipeline.load(tmp_path / "none")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(DataError, match=r"holds notes\.txt, which is no part of a fitted spec"):
        fitted.save(tmp_path / "mine")


def test_the_examples_in_docstrings_and_docs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctest.testmod(pipeline).attempted > 5
    assert doctest.testmod(pipeline).failed == 0
    monkeypatch.chdir(tmp_path)
    docs = Path(__file__).parents[2] / "docs" / "features.md"
    found = doctest.testfile(str(docs), module_relative=False)
    assert found.attempted > 5
    assert found.failed == 0
