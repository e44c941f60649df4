"""Field ids: every feature knows its field, from the raw row to the stored block and back."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray
from pyarrow import parquet

from ctr.errors import DataError
from ctr.features import (
    DatasetSource,
    FeatureSpec,
    RawSource,
    load_spec,
    open_source,
    parse_spec,
    shuffled,
    write_dataset,
)
from ctr.features.batches import Batch, Chunk, join_chunks, localize
from ctr.features.dataset.blocks import FieldTemplates, fields_of, templates_of

FORMAT_1 = Path(__file__).parent / "format_1"
"""A small data set that was built, from the `log.csv` beside it, before there were field ids."""
MIXED = """{version: 1, source: {format: delimited}, label: click, weight: weight, bits: 18, fields: [
    {name: site, type: category}, {name: tags, type: list, delimiter: " "},
    {name: price, type: number, transform: log}], crosses: [site * tags, site * price]}"""
SINGLE = """{version: 1, source: {format: parquet}, label: click, bits: 33, bias: false, fields: [
    {name: site, type: category}, {name: price, type: category, missing: feature}]}"""


def by_scales(spec: FeatureSpec, files: list[Path]) -> NDArray[np.int64]:
    """The field id of each feature, told by what a scale of its own makes of its value."""
    scaled = spec.with_scales({name: 2.0**number for number, name in enumerate(spec.names, 1)})
    (one,), (other,) = (list(RawSource(each, files).batches(1_000)) for each in (spec, scaled))
    assert other.values is not None
    return np.log2(other.values / (1 if one.values is None else one.values)).astype(np.int64)


def table_of_log(path: Path) -> Path:
    """The log as Parquet, whose texts are dictionary entries."""
    log = RawSource(parse_spec(MIXED, "spec"), [FORMAT_1 / "log.csv"])
    assert log.count_rows() == 40
    rows = [line.split(",") for line in (FORMAT_1 / "log.csv").read_text().split("\n")[1:-1]]
    columns = {"click": [int(row[0]) for row in rows], "site": [row[2] or None for row in rows]}
    columns["price"] = [row[4] or None for row in rows]
    parquet.write_table(pa.table(columns), path)
    return path


@pytest.mark.parametrize("threads", [1, 3])
def test_a_feature_has_the_id_of_its_field(threads: int, tmp_path: Path) -> None:
    log, table = FORMAT_1 / "log.csv", table_of_log(tmp_path / "log.parquet")
    crossed = SINGLE.replace("}]}", "}], crosses: [site * price]}")
    for text, file in ((MIXED, log), (SINGLE, table), (crossed, table)):
        spec = parse_spec(text, "spec")
        source = RawSource(spec, [file], threads=threads, with_fields=True)
        batches = list(source.batches(7))
        fields = np.concatenate([batch.fields for batch in batches if batch.fields is not None])
        assert fields.dtype == np.uint8
        assert fields.tolist() == by_scales(spec, [file]).tolist()
        (plain,) = RawSource(spec, [file]).batches(100)
        assert plain.fields is None
        assert np.concatenate([batch.slots for batch in batches]).tolist() == plain.slots.tolist()


def test_data_that_carries_its_features_has_one_field(tmp_path: Path) -> None:
    log = tmp_path / "log.libsvm"
    log.write_text("1 3:2 9:1\n0 3:1\n")
    spec = parse_spec("{version: 1, source: {format: libsvm}, bits: 12}", "spec")
    (batch,) = RawSource(spec, [log], with_fields=True).batches(10)
    assert batch.fields is not None
    assert batch.fields.tolist() == [0, 1, 1, 0, 1]


def test_of_many_fields_ids_take_two_bytes(tmp_path: Path) -> None:
    names = [f"f{number}" for number in range(300)]
    fields = ", ".join(f"{{name: {name}, type: category}}" for name in names)
    spec = parse_spec(f"{{version: 1, source: {{format: delimited}}, label: y, fields: [{fields}]}}", "spec")
    log = tmp_path / "log.csv"
    log.write_text("\n".join([",".join(["y", *names]), "1" + ",a" * 300, "0" + ",b," * 150]))
    source = RawSource(spec, [log], with_fields=True)
    write_dataset(source.batches(10), spec, tmp_path / "set", block_rows=10)
    (chunk,) = DatasetSource(tmp_path / "set", with_fields=True).batches(10)
    assert chunk.fields is not None
    assert chunk.fields.dtype == np.uint16
    assert chunk.fields.tolist() == [*range(301), 0, *range(1, 301, 2)]


def of_log(with_fields: bool = True) -> tuple[FeatureSpec, RawSource]:
    spec = parse_spec(MIXED, "spec")
    return spec, RawSource(spec, [FORMAT_1 / "log.csv"], with_fields=with_fields)


def same(one: Batch, other: Batch, but: tuple[str, ...] = ()) -> None:
    for name in {"indptr", "slots", "values", "labels", "weights", "fields"} - {*but}:
        first, second = getattr(one, name), getattr(other, name)
        assert first.dtype == second.dtype
        assert first.tolist() == second.tolist()


@pytest.fixture
def built(tmp_path: Path) -> Path:
    """The log as a data set of several blocks."""
    spec, source = of_log()
    manifest = write_dataset(source.batches(16), spec, tmp_path / "set", block_rows=16)
    assert (manifest.format_version, manifest.fields) == (2, spec.names)
    return tmp_path / "set"


@pytest.mark.parametrize("rows", [1, 7, 16, 40])
def test_a_data_set_keeps_them(built: Path, rows: int) -> None:
    source = DatasetSource(built, with_fields=True)
    for chunk, batch in zip(source.batches(rows, 3), of_log()[1].batches(rows, 3), strict=True):
        same(chunk.to_batch(), batch)
    assert all(chunk.fields is None for chunk in DatasetSource(built).batches(rows))


def test_so_does_a_shuffle(tmp_path: Path) -> None:
    """Each row's slots still have the ids of their fields, on the way through buckets of few rows."""
    of_slot = {}
    for batch in of_log()[1].batches(40):
        assert batch.fields is not None
        of_slot = dict(zip(batch.slots.tolist(), batch.fields.tolist(), strict=True))
    spec, source = of_log()
    write_dataset(shuffled(source, 16, 1, tmp_path, bucket_rows=9), spec, tmp_path / "set", block_rows=16)
    rows = [chunk.to_batch() for chunk in DatasetSource(tmp_path / "set", with_fields=True).batches(16)]
    for batch in rows:
        assert batch.fields is not None
        assert batch.fields.tolist() == [of_slot[slot] for slot in batch.slots.tolist()]


def test_where_only_some_rows_have_them_they_are_left_out(tmp_path: Path) -> None:
    (full,), (bare,) = (list(of_log(with_fields)[1].batches(16, stop=16)) for with_fields in (True, False))
    assert join_chunks([localize(full), localize(bare)]).fields is None
    manifest = write_dataset([full, bare], of_log()[0], tmp_path / "set", block_rows=16)
    assert manifest.fields is None
    with pytest.raises(DataError, match=r"no field ids.*build it again"):
        DatasetSource(tmp_path / "set", with_fields=True)


def test_a_data_set_is_scaled_by_field_as_raw_rows_are(built: Path) -> None:
    scaled = parse_spec(MIXED, "spec").with_scales({"site": 0.3, "tags": 700.0, "site * tags": 1.7})
    (raw,) = RawSource(scaled, [FORMAT_1 / "log.csv"]).batches(40)
    source = open_source([built], scaled)
    assert source.spec.fingerprint == scaled.fingerprint
    (chunk,) = source.batches(40)
    assert isinstance(chunk, Chunk)
    same(chunk.to_batch(), raw, ("fields",))
    with pytest.raises(DataError, match=r"scaled by field.*build it again"):
        open_source([FORMAT_1], scaled.model_copy(update={"crosses": scaled.crosses[:1]}))
    other = scaled.model_copy(update={"seed": 1})
    with pytest.raises(DataError, match="hashed with the transform"):
        open_source([built], other)


def test_a_data_set_of_format_1_is_read(tmp_path: Path) -> None:
    spec = load_spec(FORMAT_1)
    source = DatasetSource(FORMAT_1, verify=True)
    assert source.manifest.format_version == 1
    chunk = join_chunks(list(source.batches(16)))
    (raw,) = RawSource(spec, [FORMAT_1 / "log.csv"]).batches(40)
    same(chunk.to_batch(), raw, ("fields",))
    assert chunk.fields is None
    with pytest.raises(DataError, match=r"no field ids.*build it again"):
        DatasetSource(FORMAT_1, with_fields=True)


def test_field_ids_that_do_not_fit_are_noticed(built: Path) -> None:
    manifest = json.loads((built / "manifest.json").read_text())
    manifest["fields"] = manifest["fields"][:2]
    (built / "manifest.json").write_text(json.dumps(manifest))
    assert sum(map(len, DatasetSource(built).batches(40))) == 40  # who does not need them does not see it
    with pytest.raises(DataError, match=r"torn or changed.*field ids"):
        list(DatasetSource(built, with_fields=True).batches(40))


def rows_of(fields: list[list[int]], dtype: type = np.uint8) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    indptr = np.cumsum([0, *map(len, fields)])
    return indptr, np.array([each for row in fields for each in row], dtype)


@pytest.mark.kernel
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_templates_are_the_distinct_rows(dtype: type) -> None:
    rng = np.random.default_rng(2)
    some = [[], [0], [0, 1, 2], [0, 1, 2, 2], [1, 2], [2, 1], [0] * 9, [7, *range(9)]]
    for rows in ([[]], [[3]], [[1, 2]] * 50, [some[k] for k in rng.integers(0, len(some), 500)]):
        indptr, fields = rows_of(rows, dtype)
        found = templates_of(indptr, fields)
        distinct = list(dict.fromkeys(map(tuple, rows)))
        if len(distinct) == 1:
            assert found.row_templates is None
        else:
            assert found.row_templates is not None
            assert found.row_templates.tolist() == [distinct.index(tuple(row)) for row in rows]
        names = 9 if dtype is np.uint8 else 300
        assert fields_of(indptr, found, names).tolist() == fields.tolist()
        assert fields_of(indptr, found, names).dtype == dtype


@pytest.mark.kernel
def test_templates_that_do_not_fit_their_rows_are_refused() -> None:
    rows = [[0, 1], [0], [0, 1], [0, 2]]
    indptr, fields = rows_of(rows)
    found = templates_of(indptr, fields)
    assert found.row_templates is not None
    for numbers in ([0, 1, 0], [1, 0, 0, 2], [0, 1, 1, 2], [0, 1, 0, 3], [0, 1, 0, 0]):
        with pytest.raises(ValueError, match="field ids"):
            fields_of(indptr, found._replace(row_templates=np.array(numbers, np.uint16)), 2)
    with pytest.raises(ValueError, match="field ids"):
        fields_of(indptr, found, 1)
    with pytest.raises(ValueError, match="field ids"):
        fields_of(indptr, FieldTemplates(None, found.templates), 2)
    few = templates_of(*rows_of(rows[:2]))
    with pytest.raises(ValueError, match="field ids"):
        fields_of(indptr, few, 2)


def test_a_chunk_and_a_batch_have_the_same() -> None:
    (batch,) = of_log()[1].batches(40)
    chunk = localize(batch)
    assert chunk.fields is batch.fields
    assert replace(chunk, fields=None).to_batch().fields is None
