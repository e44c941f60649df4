"""The weights of a model as a table, with the texts of their features."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv

import ctr
from ctr.errors import DataError, ModelError
from ctr.features import Pipeline, load_spec
from ctr.model import LinearModel, Model
from ctr.weights import largest, weight_table, with_names
from tests.command_line import Cli
from tests.features.dataset.test_fields import FORMAT_1

SPEC = """
version: 1
source: {format: delimited}
label: click
bits: 16
fields:
  - {name: site, type: category}
  - {name: price, type: number, transform: edges, edges: [1, 5]}
crosses: [site * price]
"""

NAMES = ["(bias)", "site", "price", "site * price"]
ROWS = pa.table({"click": [0, 1] * 50, "site": ["news", "shop"] * 50, "price": [0.5, 2.0, 9.0, None] * 25})


@pytest.fixture(scope="module")
def model() -> Model:
    return ctr.train(ROWS, SPEC)


def test_without_texts_all_weights_are_there(model: Model) -> None:
    found = model.weights()
    assert found.column_names == ["slot", "weight", "feature", "count"]
    assert np.array_equal(found["slot"].to_numpy(), model.linear.slots)
    assert np.array_equal(found["weight"].to_numpy(), model.linear.weights)
    assert found["feature"].to_pylist() == ["(bias)"] + [None] * (found.num_rows - 1)
    assert found["count"].null_count == found.num_rows


def test_values_name_the_slots_that_rows_have(model: Model, tmp_path: Path) -> None:
    named = {row["slot"]: row["feature"] for row in model.weights(ROWS).to_pylist()}
    assert None not in named.values()
    alone = Pipeline.from_yaml(SPEC.replace("crosses: [site * price]", ""))
    for site, price, bucket in (
        ("news", 0.5, "[-inf, 1)"),
        ("shop", 2.0, "[1, 5)"),
        ("news", 9.0, "[5, inf)"),
    ):
        _, *slots = alone.transform([{"site": site, "price": price}]).indices.tolist()
        assert [named[slot] for slot in slots] == [f"site={site}", f"price={bucket}"]
    assert "site * price=shop * [1, 5)" in named.values()
    path = tmp_path / "sites.csv"
    path.write_text("other,site\n1,shop\n2,unheard of\n")
    some = [text for text in model.weights(path)["feature"].to_pylist() if text is not None]
    assert some == ["(bias)", "site=shop"]
    lines = tmp_path / "sites.jsonl"
    lines.write_text('{"site": "shop"}\n{"site": "news", "price": 0.5}\n')
    more = model.weights([lines])["feature"].to_pylist()
    assert {"site=shop", "site=news", "price=[-inf, 1)", "site * price=news * [-inf, 1)"} < set(more)


def test_a_hashed_data_set_names_the_fields_of_slots(cli: Cli, tmp_path: Path) -> None:
    spec, log, hashed, model = (tmp_path / name for name in ("spec.yaml", "log.csv", "hashed", "model"))
    spec.write_text(SPEC.replace("bits: 16", "bits: 4"))  # so that fields share slots
    csv.write_csv(ROWS, log)
    assert cli("features", "build", "--spec", spec, log, "--out", hashed).code == 0
    assert cli("train", hashed, "--model", model).code == 0
    loaded = ctr.load_model(model)
    values, fields = (
        {row["slot"]: row["feature"] for row in loaded.weights(data).to_pylist()} for data in (log, hashed)
    )
    assert fields == {
        slot: " | ".join(sorted({each.partition("=")[0] for each in text.split(" | ")}, key=NAMES.index))
        for slot, text in values.items()
    }
    assert any(" | " in text for text in fields.values())
    for field in ("site", "price", "site * price"):
        slots = [
            set(largest(loaded.weights(data), 99, field=field)["slot"].to_pylist()) for data in (log, hashed)
        ]
        assert slots[0] == slots[1] != set()
    done = cli("model", "top", model, "--values", hashed, "--field", "price")
    assert done.code == 0, done.err
    assert " price" in done.out


def test_the_name_of_a_field_adds_nothing_to_a_text() -> None:
    known, fields = (
        pa.table({"slot": pa.array(slots, pa.uint64()), "feature": texts, "count": pa.nulls(2, pa.int64())})
        for slots, texts in (([3, 7], ["a=x", "b=y"]), ([7, 9], ["b", "a"]))
    )
    assert with_names(known, fields)["feature"].to_pylist() == ["a=x", "b=y", "a"]


def test_features_that_share_a_slot_are_all_named() -> None:
    names = pa.table(
        {
            "slot": pa.array([7, 3, 7, 9], pa.uint64()),
            "feature": ["a=x", "a=y", "b=z", "b=w"],
            "count": pa.array([8, 5, 2, 1], pa.int64()),
        }
    )
    slots, weights = np.array([3, 5, 7], np.uint32), np.array([0.5, -2, 1], np.float32)
    table = weight_table(slots, weights, names, bias=True)
    assert table["feature"].to_pylist() == ["a=y", None, "a=x | b=z"]
    assert table["count"].to_pylist() == [5, None, 10]
    assert largest(table, 2)["slot"].to_pylist() == [5, 7]
    assert largest(table, 9, field="b")["slot"].to_pylist() == [7]
    assert largest(table, 9, negative=True)["slot"].to_pylist() == [5]
    with pytest.raises(DataError, match="known to be of 'c'"):
        largest(table, 9, field="c")
    none = weight_table(slots[:0], weights[:0], names, bias=True)
    assert none.num_rows == 0
    assert largest(none, 3).num_rows == 0


def test_the_dictionary_of_a_folder_that_is_another_model_by_now(model: Model, tmp_path: Path) -> None:
    names = pa.table({"slot": pa.array([1], pa.uint64()), "feature": ["a=b"], "count": [1], "missed": [0]})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, names.schema) as file:
        file.write_table(names)
    assert model.state is not None
    slots = np.array([0, 1], np.uint32)
    of_folder = Model.of(
        model.spec,
        LinearModel(slots, np.ones(2, np.float32)),
        {"optimizer": model.manifest["optimizer"]},
        bytes(sink.getvalue()),
        state=(slots, np.ones((2, 2), np.float32)),
    )
    of_folder.save(tmp_path / "model")
    loaded = ctr.load_model(tmp_path / "model")
    assert loaded.weights()["feature"].to_pylist() == ["(bias)", "a=b"]
    assert loaded.weights().equals(of_folder.weights())
    model.save(tmp_path / "model")
    with pytest.raises(ModelError, match=r"another model, .* has replaced"):
        loaded.weights()
    assert ctr.load_model(tmp_path / "model").weights().equals(model.weights())


def test_values_that_name_nothing(model: Model, tmp_path: Path, cli: Cli) -> None:
    with pytest.raises(DataError, match=r"none of the columns that the model's fields read: 'site', 'price'"):
        model.weights(ROWS.select(["click"]))
    prices = tmp_path / "prices.csv"
    prices.write_text("price\nmuch\nmore\n")
    with pytest.raises(DataError, match=r"no row whose values could be hashed \(.*'much' is not a number"):
        model.weights(prices)
    with pytest.raises(DataError, match="cannot come from standard input"):
        model.weights("-")
    (tmp_path / "spec.yaml").write_text(SPEC)
    (tmp_path / "log.csv").write_text("click,site,price\n0,news,1\n1,shop,2\n")
    words = ["--spec", tmp_path / "spec.yaml", tmp_path / "log.csv", "--out", tmp_path / "hashed"]
    assert cli("features", "build", *words).code == 0
    with pytest.raises(DataError, match="hashed with the transform"):
        model.weights(FORMAT_1)
    with pytest.raises(DataError, match="no field ids"):
        ctr.train(FORMAT_1).weights(FORMAT_1)
    with pytest.raises(DataError, match="expected a path"):
        model.weights(3)
    of_indices = Model.of(load_spec("libsvm"), model.linear, {})
    with pytest.raises(DataError, match="carries its own features"):
        of_indices.weights(ROWS)
