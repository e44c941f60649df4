"""What cannot become a model is told, and nothing is saved."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ctr
from ctr.errors import DataError, ModelError
from ctr.features import spec_of
from ctr.learn import require_convergence
from ctr.metrics import Metrics
from ctr.model import load_model
from tests.command_line import Cli
from tests.ps.redis_servers import needs_redis

SPEC = (
    "{version: 1, source: {format: delimited}, label: click, bits: 14, fields: ["
    "{name: site, type: category}, {name: price, type: number, transform: linear}]}"
)


def write(path: Path, clicks: np.ndarray, scale: float = 1) -> Path:
    """Rows whose prices are of this size, and say nothing."""
    rng = np.random.default_rng(1)
    prices = scale * rng.normal(size=clicks.size)
    rows = zip(clicks, rng.integers(0, 30, clicks.size), prices, strict=True)
    path.write_text("click,site,price\n" + "".join(f"{c},{s},{p}\n" for c, s, p in rows))
    path.with_suffix(".yaml").write_text(SPEC)
    return path


def clicks(rows: int) -> np.ndarray:
    return np.random.default_rng(2).integers(0, 2, rows)


class TestDivergence:
    @pytest.mark.parametrize("store", ["memory://", pytest.param("embedded://", marks=needs_redis)])
    def test_the_former_model_stays(self, cli: Cli, tmp_path: Path, store: str) -> None:
        model, calm = tmp_path / "model", write(tmp_path / "calm.csv", clicks(500))
        words = ["train", "--spec", calm.with_suffix(".yaml"), "--model", model, "--store", store]
        assert cli(*words, calm).code == 0
        before = load_model(model).id
        done = cli(*words, write(tmp_path / "log.csv", clicks(3_000), scale=1e3), "--alpha", 30)
        assert done.code == 1
        assert "training diverged: over 3,000 rows its log loss is" in done.err
        assert "Lower alpha, scale large values" in done.err
        assert "Nothing was saved." in done.err
        assert load_model(model).id == before
        assert not model.with_suffix(".interrupted").exists()

    def test_a_batch_optimizer_has_no_learning_rate(self, cli: Cli, tmp_path: Path) -> None:
        log = write(tmp_path / "log.csv", clicks(3_000), scale=1e3)
        words = ["train", "--spec", log.with_suffix(".yaml"), log, "--model", tmp_path / "model"]
        assert cli(*words, "--optimizer", "lbfgs").code == 0

    def test_a_long_job_ends_early(self, tmp_path: Path) -> None:
        rows = 250_000
        rng = np.random.default_rng(3)
        table = pa.table({"click": clicks(rows), "site": ["a"] * rows, "price": 1e3 * rng.normal(size=rows)})
        seen: list[int] = []
        with pytest.raises(ModelError, match=r"training diverged: over 1[0-9]{2},[0-9]{3} rows"):
            ctr.train(table, SPEC, alpha=30, epochs=20, on_progress=lambda p: seen.append(p.examples))
        assert max(seen, default=0) < rows

    def test_what_tells(self) -> None:
        def of(margins: np.ndarray, labels: np.ndarray) -> Metrics:
            metrics = Metrics()
            metrics.add(margins.astype(np.float32), labels.astype(np.float32))
            return metrics

        labels = clicks(2_000)
        wrong = 100.0 * (1 - 2 * labels)
        with pytest.raises(ModelError, match="diverged"):
            require_convergence(of(wrong, labels))
        require_convergence(of(wrong[:900], labels[:900]))  # the first steps may go too far
        require_convergence(of(wrong, labels), rows=2_001)
        require_convergence(of(wrong / 60, labels))  # bad, and no nonsense
        require_convergence(of(np.full(2_000, -5.0), np.ones(2_000)))  # of a warm start
        require_convergence(Metrics())
        rare = (np.arange(2_000) % 100 == 0).astype(np.float32)
        too_high = np.full(2_000, np.log(1_000 / 99))  # as clicks that weigh 1,000 each have it
        require_convergence(of(too_high, rare), pos_weight=1_000)
        with pytest.raises(ModelError, match="diverged"):
            require_convergence(of(too_high, rare))
        with pytest.raises(ModelError, match="diverged"):
            require_convergence(of(100.0 * (1 - 2 * rare), rare), pos_weight=1_000)


class TestOneClass:
    @pytest.mark.parametrize("label", [0, 1])
    def test_it_is_no_model(self, cli: Cli, tmp_path: Path, label: int) -> None:
        log = write(tmp_path / "log.csv", np.full(200, label))
        spec, model, hashed = log.with_suffix(".yaml"), tmp_path / "model", tmp_path / "hashed"
        told = (
            f"label column 'click': all 200 rows to train on are {'clicks' if label else 'without a click'}"
        )
        assert cli("features", "build", "--spec", spec, log, "--out", hashed).code == 0
        for inputs in (["--spec", spec, log], [hashed]):
            for optimizer in ("ftrl", "lbfgs"):
                done = cli("train", *inputs, "--model", model, "--optimizer", optimizer)
                assert (done.code, told in done.err) == (1, True)
                assert not model.exists()

    @pytest.mark.parametrize("label", [0, 1])
    def test_no_settings_are_searched_on_it(self, cli: Cli, tmp_path: Path, label: int) -> None:
        pytest.importorskip("optuna")
        log = write(tmp_path / "log.csv", np.full(200, label))
        words, settings = ["--spec", log.with_suffix(".yaml"), log], tmp_path / "settings.yaml"
        for command in (["tune", "--out", settings], ["train", "--auto", "--model", tmp_path / "model"]):
            done = cli(*command, *words)
            assert done.code == 1
            told = f"all 200 rows to search with are {'clicks' if label else 'without a click'}"
            assert told in done.err, done.err
        assert not settings.exists()
        assert not (tmp_path / "model").exists()

    @pytest.mark.parametrize("labels", [[0] * 50, [1.0] * 50, ["0"] * 50, [True] * 50, [-1] * 50])
    def test_a_table_is_known_before_it_is_read(self, labels: list[object]) -> None:
        table = pa.table({"click": labels, "site": ["a"] * 50, "price": ["no number"] * 50})
        with pytest.raises(ModelError, match="label column 'click': all 50 rows"):
            ctr.train(table, spec_of(SPEC.replace("delimited", "parquet")))

    @needs_redis
    def test_through_redis(self, cli: Cli, tmp_path: Path, redis_url: str) -> None:
        log = write(tmp_path / "log.csv", np.zeros(200, int))
        words = ["train", "--spec", log.with_suffix(".yaml"), log, "--model", tmp_path / "model"]
        for _ in range(2):  # the first leaves nothing that the second would be refused for
            done = cli(*words, "--store", f"{redis_url}?model=none")
            assert done.code == 1
            assert "all 200 rows to train on are without a click" in done.err
            assert "ctr ps" not in done.err
        assert not (tmp_path / "model").exists()

    def test_it_counts_for_a_model_that_knows_both(self, cli: Cli, tmp_path: Path) -> None:
        first = write(tmp_path / "first.csv", clicks(500))
        words = ["train", "--spec", first.with_suffix(".yaml"), "--model", tmp_path / "model"]
        assert cli(*words, first).code == 0
        for label in (0, 1):
            second = write(tmp_path / "second.csv", np.full(200, label))
            assert cli(*words, second, "--warm-start", tmp_path / "model").code == 0
            assert load_model(tmp_path / "model").manifest["training"]["rows"] == 200


class TestNotFinite:
    """NaN is a missing number where fields may lack one; nothing else that is not finite passes."""

    FORMATS = "csv", "parquet", "arrow", "jsonl", "libsvm", "vw"
    LEAST = "{version: 1, source: {format: vw}, bits: 14}"

    def rows(self, path: Path, number: str, weight: str = "1") -> tuple[Path, str]:
        """20 rows in the suffix's format, with this number and weight in the third; and their spec."""
        numbers, weights = ["0.5"] * 20, ["1"] * 20
        numbers[2], weights[2] = number, weight
        kind = path.suffix[1:]
        if kind in ("libsvm", "vw"):
            lines = [f"{i % 2} 3:{n}" for i, n in enumerate(numbers)]
            if kind == "vw":
                lines = [f"{1 - i % 2 * 2} {weights[i]} |a price:{n}" for i, n in enumerate(numbers)]
            path.write_text("\n".join(lines) + "\n")
            return path, self.LEAST if kind == "vw" else "libsvm"
        columns = {"click": [i % 2 for i in range(20)], "site": ["a"] * 20}
        table = pa.table(columns | {"price": [float(n) for n in numbers], "w": [float(w) for w in weights]})
        if kind == "parquet":
            pq.write_table(table, path)
        elif kind == "arrow":
            with pa.ipc.new_file(path, table.schema) as file:
                file.write_table(table)
        elif kind == "jsonl":
            names = {"inf": "Infinity", "-inf": "-Infinity", "nan": "NaN"}
            path.write_text(
                "".join(
                    f'{{"click": {i % 2}, "site": "a", "price": {names.get(n, n)}, "w": {names.get(w, w)}}}\n'
                    for i, (n, w) in enumerate(zip(numbers, weights, strict=True))
                )
            )
        else:
            rows = (f"{i % 2},a,{n},{w}\n" for i, (n, w) in enumerate(zip(numbers, weights, strict=True)))
            path.write_text("click,site,price,w\n" + "".join(rows))
        source = {"csv": "delimited"}.get(kind, kind)
        return path, SPEC.replace("delimited", source).replace("label: click", "label: click, weight: w")

    @pytest.mark.parametrize("kind", FORMATS)
    def test_rows_of_files(self, tmp_path: Path, kind: str) -> None:
        good, spec = self.rows(tmp_path / f"good.{kind}", "0.5")
        model = ctr.train(good, spec)
        wrong = [("inf", "1"), ("-inf", "1")]
        wrong += [("nan", "1")] if kind in ("libsvm", "vw") else []
        wrong += [] if kind == "libsvm" else [("0.5", "nan"), ("0.5", "inf"), ("0.5", "-1"), ("0.5", "0")]
        for number, weight in wrong:
            bad, _ = self.rows(tmp_path / f"bad.{kind}", number, weight)
            with pytest.raises(DataError, match=rf"bad\.{kind}:.*\b[34]\b"):
                ctr.train(bad, spec)
            with pytest.raises(DataError, match=rf"bad\.{kind}:.*\b[34]\b"):
                model.evaluate(bad)

    def test_tables_and_rows(self) -> None:
        columns = {"click": [0, 1] * 10, "site": ["a"] * 20}
        spec = spec_of(SPEC.replace("delimited", "parquet"))
        model = ctr.train(pa.table(columns | {"price": [0.5] * 20}), spec)
        for wrong in (np.inf, -np.inf):
            table = pa.table(columns | {"price": [0.5, wrong] * 10})
            for of in (table, table.to_pandas()):
                for call in (lambda of=of: ctr.train(of, spec), lambda of=of: model.evaluate(of)):
                    with pytest.raises(DataError, match=r"the table: row 2: column 'price': '-?inf'"):
                        call()
                with pytest.raises(DataError, match=r"row 2: column 'price': '-?inf'"):
                    model.predict(of)
            with pytest.raises(DataError, match="expected text, a finite number"):
                model.predict([{"site": "a", "price": wrong}])
        missing = model.predict([{"site": "a", "price": None}])
        assert model.predict([{"site": "a", "price": np.nan}]) == missing

    @pytest.mark.parametrize("wrong", [np.nan, np.inf])
    @pytest.mark.parametrize(
        "setting", ["alpha", "pos_weight", "negative_rate", "base_rate", "holdout_fraction", "forget"]
    )
    def test_settings(self, setting: str, wrong: float) -> None:
        table = pa.table({"click": [0, 1] * 10, "site": ["a"] * 20, "price": [0.5] * 20})
        with pytest.raises(ModelError, match=f"is {wrong}"):
            ctr.train(table, SPEC.replace("delimited", "parquet"), **{setting: wrong})
