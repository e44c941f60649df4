"""What `import ctr` gives to a Python program."""

from __future__ import annotations

import doctest
import inspect
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from pyarrow import parquet as pq

import ctr
import ctr.python_api.evaluating
import ctr.python_api.reading
from ctr.errors import DataError, ModelError, SettingError, SpecError
from ctr.features import Pipeline
from ctr.registry import Registry
from tests.command_line import Cli


@pytest.fixture(scope="module")
def rows() -> list[dict[str, object]]:
    """1,200 rows of a site that tells clicks, and of a price."""
    rng = np.random.default_rng(3)
    clicks = rng.random(1_200) < 0.4
    return [
        {"click": int(click), "site": "shop" if click ^ (k % 5 == 0) else "news", "price": (k % 97) / 8}
        for k, click in enumerate(clicks)
    ]


@pytest.fixture(scope="module")
def model(rows: list[dict[str, object]]) -> ctr.Model:
    return ctr.train(rows, label="click", holdout_fraction=0.25, epochs=3)


def test_the_names_of_the_package_are_there() -> None:
    names = {"read", "train", "evaluate", "compare", "draft_spec", "check", "load_spec", "load_model"}
    names |= {"tune", "suggest", "report"}
    assert names <= set(dir(ctr))
    assert all(callable(getattr(ctr, name)) for name in names)
    assert (
        doctest.testmod(ctr.python_api.evaluating).failed
        == doctest.testmod(ctr.python_api.reading).failed
        == 0
    )


def test_a_function_has_all_settings_of_its_command() -> None:
    parameters = inspect.signature(ctr.train).parameters
    assert {"store", "workers", "checkpoint", "scale", "on_bad_rows", "settings", "track"} <= set(parameters)
    assert (parameters["epochs"].default, parameters["spec"].default) == (1, None)
    text = ctr.train.__doc__ or ""
    assert "forget: With warm_start: the share" in text
    assert "--" not in text
    assert not {"stream", "publish_every", "max_evidence"} & set(parameters)
    assert {"by", "unweighted", "on_bad_rows"} <= set(inspect.signature(ctr.evaluate).parameters)


def test_all_kinds_of_data_are_the_same(rows: list[dict[str, object]], tmp_path: Path) -> None:
    table = pa.Table.from_pylist(rows)
    spec = ctr.draft_spec(table, label="click")
    file = tmp_path / "rows.parquet"
    table.to_pandas().to_parquet(file)
    columns = {name: table[name].to_pylist() for name in table.column_names}
    kinds: list[object] = [
        rows,
        columns,
        table,
        pd.DataFrame(columns),
        pl.DataFrame(columns),
        file,
        [str(file)],
    ]
    models = [ctr.train(data, spec) for data in kinds]
    assert len({model.id for model in models}) == 1
    expected = models[0].predict([{k: v for k, v in row.items() if k != "click"} for row in rows])
    for data in kinds[1:]:
        np.testing.assert_array_equal(models[0].predict(data), expected)
        assert models[0].evaluate(data) == models[0].evaluate(table)
        shown = models[0].explain(data, rows=2)
        assert isinstance(shown, list)
        assert [each.prediction for each in shown] == pytest.approx(expected[:2].tolist(), rel=1e-5)
    with pytest.raises(DataError, match="the rows cannot be converted to a table"):
        ctr.train([{"click": 1, "site": "a"}, {"click": "no", "site": 1.5}], spec)


def test_without_a_spec_one_is_drafted_and_kept(model: ctr.Model, rows: list[dict[str, object]]) -> None:
    assert {field.name for field in model.spec.fields} == {"site", "price"}
    assert model.predict([{"site": "shop"}, {"site": "news"}])[0] > 0.5
    with pytest.raises(SettingError, match="a spec names its label"):
        ctr.train(rows, model.spec, label="click")
    with pytest.raises(DataError, match="clicked"):
        ctr.train(rows, label="clicked")


def test_a_drafted_model_takes_the_rows_that_it_was_trained_on() -> None:
    columns = {"click": [0, 1, 0, 0] * 100, "price": [1.5, 2.0, None, 3.25] * 100}
    model = ctr.train(columns, label="click")
    assert ctr.evaluate(model, columns).summary.auc == 1
    assert model.predict([{"price": 2.0}])[0] > model.predict([{"price": 1.5}])[0]


def test_wrong_arguments_are_named(model: ctr.Model, rows: list[dict[str, object]], tmp_path: Path) -> None:
    for function in (
        lambda: ctr.check(rows, model.spec, rows=0),
        lambda: model.explain(rows, rows=0),
        lambda: ctr.suggest(rows, model.spec, rows=0),
    ):
        with pytest.raises(SettingError, match=r"^rows is 0: give a whole number of at least 1\."):
            function()
    with pytest.raises(DataError, match=r"^data: expected the path of a file, or a list of paths, got dict"):
        ctr.read({"click": [1]}, model.spec)
    with pytest.raises(ModelError, match="there is no evaluation to report"):
        ctr.report([], tmp_path / "report.html")
    with pytest.raises(SettingError, match=r"^by is 'site': give a list\."):
        ctr.evaluate(model, rows, by="site")
    with pytest.raises(SettingError, match="on_bad_rows is 'quarantine': give one of fail, skip"):
        model.evaluate(rows, on_bad_rows="quarantine")  # type: ignore[arg-type]
    with pytest.raises(SpecError, match=r"^tables need a feature spec: give spec, or give label"):
        ctr.train(rows)
    with pytest.raises(SpecError, match=r"^tables need a feature spec: give spec, such as"):
        ctr.tune(rows)
    wrong: Any = 5
    for name, call in {
        "path": lambda: ctr.load_model(wrong),
        "settings": lambda: ctr.train(rows, model.spec, settings=wrong),
        "model": lambda: ctr.train(rows, model.spec, model=wrong),
        "warm_start": lambda: ctr.train(rows, warm_start=wrong),
        "out": lambda: ctr.tune(rows, "criteo", out=wrong),
        "folder": lambda: Pipeline.load(wrong),
        "place": lambda: Registry(wrong),
    }.items():
        with pytest.raises(SettingError, match=rf"^{name} is 5: give a path\."):
            call()
    with pytest.raises(SpecError, match=r"^spec: expected the path of a YAML file, .* got int"):
        ctr.load_spec(wrong)
    with pytest.raises(ModelError, match=r"^evaluations: expected a result of ctr\.evaluate"):
        ctr.report(wrong, rows, tmp_path / "report.html")


@pytest.mark.parametrize("option", ["alpah", "inputs"])
def test_an_unknown_key_of_a_settings_file_is_named_as_in_the_file(
    rows: list[dict[str, object]], model: ctr.Model, tmp_path: Path, option: str
) -> None:
    settings = tmp_path / "s.yaml"
    settings.write_text(f"command: train\nversion: 1\noptions:\n  {option}: [a]\n")
    with pytest.raises(SettingError, match=f"s.yaml:4: there is no option '{option}'; take it out of"):
        ctr.train(rows, model.spec, settings=settings)


def test_a_drafted_model_refuses_text_files(model: ctr.Model, tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("click,site,price\n1,shop,2\n")
    with pytest.raises(DataError, match=r"the feature spec is for Arrow .*, and this is no such file; save"):
        ctr.evaluate(model, file)


def test_a_registry_may_be_a_path(rows: list[dict[str, object]], cli: Cli, tmp_path: Path) -> None:
    registry = tmp_path / "registry"
    assert cli("models", "init", "--registry", registry).code == 0
    model = ctr.train(rows, label="click", model=tmp_path / "model", publish=registry)
    assert model.id in cli("models", "list", "--registry", registry).out


def test_models_can_be_in_collections(model: ctr.Model) -> None:
    copy = pickle.loads(pickle.dumps(model))
    assert copy.id == model.id
    assert model in [copy, model]
    assert len({copy, model}) == 2


def test_the_index_of_a_frame_is_no_feature(rows: list[dict[str, object]]) -> None:
    frame = pd.DataFrame(rows)
    spec = ctr.draft_spec(pd.concat([frame[:600], frame[:600]]), label="click")
    assert [field.name for field in spec.fields] == ["site", "price"]


def test_a_model_says_what_it_is(model: ctr.Model, rows: list[dict[str, object]]) -> None:
    assert model.metrics["holdout"]["examples"] == 300
    assert model.metrics["progressive"]["examples"] == 900
    history = model.history["holdout"]
    assert [each["pass"] for each in history] == [1, 2, 3]
    assert history[0]["logloss"] > history[2]["logloss"] == model.metrics["holdout"]["logloss"]
    once = ctr.train(rows, label="click", holdout_fraction=0.25, calibrate="platt")
    assert [each["pass"] for each in once.history["holdout"]] == [1]
    assert once.history["holdout"][0]["logloss"] == once.metrics["holdout_uncalibrated"]["logloss"]
    assert model.id in model._repr_html_()
    assert "<th>holdout</th><td>300</td>" in model._repr_html_()


def test_models_and_pipelines_are_pickled_by_their_bytes(
    model: ctr.Model, rows: list[dict[str, object]], tmp_path: Path
) -> None:
    model.save(tmp_path / "model")
    for each in (model, ctr.load_model(tmp_path / "model")):
        again = pickle.loads(pickle.dumps(each))
        assert (again.id, again.manifest["metrics"]) == (model.id, model.manifest["metrics"])
        np.testing.assert_array_equal(again.predict(_cells(rows)), model.predict(_cells(rows)))
        again.save(tmp_path / "again")
        for file in (tmp_path / "model").iterdir():
            assert (tmp_path / "again" / file.name).read_bytes() == file.read_bytes()
    table = pa.Table.from_pylist(rows)
    pipeline = Pipeline(model.spec)
    same = pickle.loads(pickle.dumps(pipeline))
    assert (same.transform(table) != pipeline.transform(table)).nnz == 0


def _cells(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    return [{"site": row["site"], "price": row["price"]} for row in rows[:50]]


def test_models_are_evaluated_and_compared(
    model: ctr.Model, rows: list[dict[str, object]], tmp_path: Path
) -> None:
    other = ctr.train(rows, model.spec, l1=30.0)
    first, second = ctr.compare([model, other], rows, by=["site"])
    assert first.against_first is None
    assert second.against_first is not None
    assert second.against_first.logloss == pytest.approx(second.summary.logloss - first.summary.logloss)
    assert set(first.slices["site"].by_value) == {"news", "shop"}
    assert ctr.evaluate(model, rows).summary == first.summary
    assert f"metrics=<Metrics, examples: 1,200, logloss: {first.summary.logloss:.5g}, " in repr(first)
    assert "'shop': <Metrics, examples: " in repr(first)
    assert "bad_rows=<BadRows, count: 0>" in repr(first)
    bad = [*rows, {"click": 7, "site": "a", "price": 1.0}]
    with pytest.raises(DataError, match='use on_bad_rows="skip" or "quarantine"'):
        ctr.evaluate(model, bad)
    skipped = ctr.evaluate(model, bad, on_bad_rows="skip")
    assert (skipped.bad_rows.count, skipped.inputs) == (1, ["the table"])
    assert skipped.bad_rows.examples[0].startswith("the table: row 1201: column 'click'")
    with pytest.raises(SettingError, match=r'beside a file: for a table give on_bad_rows="skip"; the result'):
        ctr.evaluate(model, bad, on_bad_rows="quarantine")
    with pytest.raises(SettingError, match="beside the settings: give out"):
        ctr.tune(bad, model.spec, on_bad_rows="quarantine")
    with pytest.raises(SettingError, match="there is no setting bye; is by meant"):
        ctr.evaluate(model, rows, bye=["site"])
    with pytest.raises(ModelError, match="no model to evaluate"):
        ctr.compare([], rows)


def test_a_check_names_the_table_that_it_read() -> None:
    rows = {"click": ["1", "0", "7"], "site": [1.0, 2.0, 3.0]}
    found = ctr.check(rows, ctr.draft_spec({"click": ["1", "0"], "site": ["a", "b"]}, label="click"))
    assert found.bad_examples[0].startswith("the table: row 3: column 'click'")
    assert found.layout[0].startswith("the table: column 'site' has the type double")


def test_arguments_in_the_wrong_order(model: ctr.Model, rows: list[dict[str, object]]) -> None:
    frame: Any = pd.DataFrame(rows)
    with pytest.raises(DataError, match="the table: there are no rows; leave it out"):
        ctr.evaluate(model, frame[:0])
    with pytest.raises(DataError, match=r"Duplicate column names found: .*; give a table whose columns"):
        ctr.evaluate(model, frame[["click", "site", "site"]])
    with pytest.raises(SettingError, match="model: expected a model or its folder, got DataFrame; data is"):
        ctr.evaluate(frame, model)
    with pytest.raises(SettingError, match="models: expected a list of models or their folders, got Model"):
        ctr.compare(model, rows)  # type: ignore[arg-type]
    with pytest.raises(SpecError, match=r"spec: expected the path of a YAML file, .* got DataFrame"):
        ctr.train("ads.yaml", frame)


def test_settings_and_crosses_are_found(
    rows: list[dict[str, object]], model: ctr.Model, tmp_path: Path
) -> None:
    tuned = ctr.tune(rows, model.spec, trials=2, max_epochs=2, workers=1)
    trained = ctr.train(rows, model.spec, **tuned.options)
    assert trained.manifest["training"]["epochs"] == tuned.options["epochs"]
    spec, out = tmp_path / "spec.yaml", tmp_path / "s.yaml"
    spec.write_text(model.spec.to_yaml())
    ctr.tune(rows, spec, trials=2, max_epochs=2, workers=1, out=out)
    assert ctr.train(rows, spec, settings=out).id == ctr.train(rows, settings=out).id == trained.id
    with pytest.raises(SettingError, match="give spec as a path"):
        ctr.tune(rows, model.spec, out=out)
    with pytest.raises(SettingError, match="trials is 0: give a whole number from 1 to 100,000"):
        ctr.tune(rows, model.spec, trials=0)
    assert ctr.suggest(rows, model.spec).rows == 1_200


def test_a_search_with_crosses_returns_the_spec_with_them() -> None:
    rng = np.random.default_rng(2)
    a, b = rng.integers(0, 2, (2, 4_000))
    clicks = rng.random(4_000) < np.where(a == b, 0.1, 0.7)
    rows = {"click": clicks.astype(int), "a": np.array(["x", "y"])[a], "b": np.array(["u", "v"])[b]}
    spec = ctr.draft_spec(rows, label="click")
    tuned = ctr.tune(rows, spec, crosses=1, trials=4, max_epochs=1)
    assert tuned.crossed is not None
    assert [cross.name for cross in tuned.crossed.crosses] == ["a * b"]
    model = ctr.train(rows, tuned.crossed, **tuned.options, holdout_fraction=0.2)
    assert model.metrics["holdout"]["auc"] > 0.7
    assert ctr.tune(rows, spec, trials=2, max_epochs=1).crossed is None


def test_a_report_is_written(model: ctr.Model, rows: list[dict[str, object]], tmp_path: Path) -> None:
    ctr.report(ctr.evaluate(model, rows, by=["site"]), tmp_path / "page.html", rows)
    assert model.id in (tmp_path / "page.html").read_text()


def test_a_job_through_redis_with_a_file_of_settings(
    rows: list[dict[str, object]], model: ctr.Model, tmp_path: Path, cli: Cli
) -> None:
    settings = tmp_path / "s.yaml"
    settings.write_text("command: train\nversion: 1\noptions:\n  alpha: 0.3\n  lease: 20\n")
    trained = ctr.train(
        rows,
        model.spec,
        settings=settings,
        store="embedded://?shards=1",
        consistency="bsp",
        model=tmp_path / "model",
        track=[str(tmp_path / "runs")],
    )
    assert trained.manifest["optimizer"]["alpha"] == 0.3
    assert trained.manifest["training"]["inputs"] == ["a table"]
    assert ctr.load_model(tmp_path / "model").id == trained.id
    assert len(list((tmp_path / "runs").iterdir())) == 1
    settings.write_text("command: train\nversion: 1\noptions:\n  alpha: -1\n")
    with pytest.raises(SettingError, match=r"s.yaml:4: alpha is -1: give a number of at least 0"):
        ctr.train(rows, model.spec, settings=settings)
    with pytest.raises(SettingError, match='consistency="ssp": only for parameters in Redis; add store'):
        ctr.train(rows, model.spec, consistency="ssp")


def test_a_file_of_settings_may_name_the_hold_out_and_the_model(
    rows: list[dict[str, object]], model: ctr.Model, tmp_path: Path
) -> None:
    settings, held_out = tmp_path / "s.yaml", tmp_path / "held-out.parquet"
    pq.write_table(pa.Table.from_pylist(rows[:100]), held_out)
    options = f"{{model: {tmp_path / 'model'}, holdout: [{held_out}]}}"
    settings.write_text(f"{{command: train, version: 1, options: {options}}}")
    trained = ctr.train(rows, model.spec, settings=settings)
    assert trained.metrics["holdout"]["examples"] == 100
    assert ctr.load_model(tmp_path / "model").id == trained.id
    elsewhere = ctr.train(rows, model.spec, settings=settings, holdout=rows[:50], model=tmp_path / "other")
    assert elsewhere.metrics["holdout"]["examples"] == 50
    assert ctr.load_model(tmp_path / "other").id == elsewhere.id
