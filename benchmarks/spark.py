"""On Apache Spark, in a session of two cores: building, transforming, scoring, training, beside Spark ML."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from threading import Event
from time import perf_counter
from typing import TYPE_CHECKING, Any

from benchmarks.measure import alternate, ctr

if TYPE_CHECKING:
    from pyspark.ml.feature import FeatureHasher
    from pyspark.sql import DataFrame, SparkSession

_MASTER = "local[2]"
_PEER_ROWS = 100_000
_MOST_BITS = 22
_COLUMNS = ["label", *(f"I{i}" for i in range(1, 14)), *(f"C{i}" for i in range(1, 27))]


def measure(folder: Path, rows: int, rounds: int) -> None:
    """Print rows per second of each side, and their ratio."""
    from pyspark.sql import SparkSession

    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    log, table = folder / f"spark-{rows}.tsv", folder / f"spark-{rows}.parquet"
    if not log.exists():
        ctr("synth", "--rows", rows, "--out", log)
    if not table.exists():
        _write_parquet(log, table)
    session = SparkSession.builder.master(_MASTER).config("spark.ui.enabled", "false")
    session = session.config("spark.ui.showConsoleProgress", "false")
    session = session.config("spark.driver.memory", "4g").config("spark.log.level", "ERROR").getOrCreate()
    print(f"\nSpark on {_MASTER}: {rows:,} synthetic rows, 2**{_bits(rows)} slots, medians of {rounds} turns")
    print(f"  {'':52}{'rows/s':>12}{'ratio':>8}  asked")
    try:
        _builds(folder, 4 * rows, rounds)  # a job of Spark takes 0.3 s, whatever it does
        _transforms(session, table, rows, rounds)
        _training(folder, log, rows, rounds)
        _against_logistic_regression(session, folder, table, rounds)
    finally:
        session.stop()


def _row(what: str, rows: int, seconds: float, ratio: float | None = None, asked: str = "") -> None:
    shown = "" if ratio is None else f"{ratio:8.2f}"
    print(f"  {what:52}{rows / seconds:12,.0f}{shown}  {asked}")


def _bits(rows: int) -> int:
    """Of the slots of Spark ML, whose time for a few rows is otherwise that of its dense vectors."""
    return min(rows.bit_length() + 4, _MOST_BITS)


def _hasher(rows: int) -> FeatureHasher:
    from pyspark.ml.feature import FeatureHasher

    return FeatureHasher(
        numFeatures=1 << _bits(rows),
        inputCols=_COLUMNS[1:],
        outputCol="features",
        categoricalCols=_COLUMNS[1:],
    )


def _builds(folder: Path, rows: int, rounds: int) -> None:
    """`features build`, in this process, which has the JVM already."""
    from ctr.jobs import build_datasets, open_portions
    from ctr.settings import BuildJob

    log = folder / f"spark-{rows}.tsv"
    if not log.exists():
        ctr("synth", "--rows", rows, "--out", log)

    def build(engine: str | None) -> float:
        out = folder / f"spark-built-{engine}.hashed"
        job = BuildJob(inputs=[str(log)], spec="criteo", out=out, engine=engine)
        started = perf_counter()
        build_datasets(job, open_portions(job), lambda _: None)
        return perf_counter() - started

    build("spark")  # which starts its Python processes
    plain, spark = alternate(rounds, lambda: build(None), lambda: build("spark"))
    _row(f"features build ({rows:,} rows)", rows, plain)
    _row("features build --engine spark", rows, spark, plain / spark, "0.8")


def _transforms(session: SparkSession, table: Path, rows: int, rounds: int) -> None:
    """`ctr.spark.transform`, and Spark ML's FeatureHasher of the same columns."""
    import ctr as product

    frame = session.read.parquet(str(table))
    hasher = _hasher(rows)
    ours, peer = alternate(
        rounds,
        _timed(lambda: product.spark.transform(frame, "criteo")),
        _timed(lambda: hasher.transform(frame).select("label", "features")),
    )
    _row("Spark ML FeatureHasher", rows, peer)
    _row("ctr.spark.transform", rows, ours, peer / ours, "4")


def _timed(make: Callable[[], DataFrame]) -> Callable[[], float]:
    """The seconds in which every value of a DataFrame is computed, and none is kept."""

    def seconds() -> float:
        started = perf_counter()
        make().write.format("noop").mode("overwrite").save()
        return perf_counter() - started

    return seconds


def _training(folder: Path, log: Path, rows: int, rounds: int) -> None:
    """Two workers that are tasks, and two that are processes, over the same hashed data set."""
    hashed = folder / f"spark-{rows}.hashed"
    ctr("features", "build", "--spec", "criteo", log, "--out", hashed)
    spark, local = alternate(
        rounds, lambda: _trained(hashed, "spark")["seconds"], lambda: _trained(hashed, None)["seconds"]
    )
    _row("ctr train, two processes", rows, local)
    _row("ctr train --engine spark, two tasks", rows, spark, local / spark, "0.85")


def _trained(hashed: Path, engine: str | None, **settings: Any) -> dict[str, Any]:
    from ctr.jobs import run
    from ctr.settings import TrainJob

    with tempfile.TemporaryDirectory() as scratch:
        job = TrainJob(
            inputs=[hashed],
            model=Path(scratch, "model"),
            store="embedded://?shards=1",
            workers=2,
            engine=engine,
            **settings,
        )
        return run(job, Event()).to_json()


def _against_logistic_regression(session: SparkSession, folder: Path, table: Path, rounds: int) -> None:
    """Rows to model, from Parquet files, and scoring, beside Spark ML's LogisticRegression on fewer rows."""
    from pyarrow import parquet
    from pyspark.ml.classification import LogisticRegression
    from pyspark.ml.functions import vector_to_array

    import ctr as product

    rows = parquet.read_table(table)
    last = rows.num_rows * 9 // 10
    learnt, of_peer, test = (folder / f"spark-{name}.parquet" for name in ("train", "peer", "test"))
    parquet.write_table(rows.slice(0, last), learnt, row_group_size=100_000)
    parquet.write_table(rows.slice(0, min(_PEER_ROWS, last)), of_peer, row_group_size=25_000)
    parquet.write_table(rows.slice(last), test)
    hasher = _hasher(rows.num_rows)

    def hashed(path: Path) -> DataFrame:
        frame = session.read.parquet(str(path))
        return hasher.transform(frame.withColumn("label", frame.label.cast("double")))

    started = perf_counter()
    peer = LogisticRegression().fit(hashed(of_peer).select("label", "features"))
    peer_rate = min(_PEER_ROWS, last) / (perf_counter() - started)
    with tempfile.TemporaryDirectory() as scratch:
        words: dict[str, Any] = {"store": "embedded://?shards=1", "staging": scratch, "workers": 2}
        started = perf_counter()
        ours = product.spark.train(str(learnt), "criteo", **words)
        rate = last / (perf_counter() - started)
    tested = rows.slice(last)
    labels = tested["label"].to_numpy().astype(float)
    scored = peer.transform(hashed(test)).select(vector_to_array("probability")[1].alias("p"))
    losses = [_log_loss(labels, each) for each in (scored.toArrow()["p"].to_numpy(), ours.predict(tested))]
    _row(f"Spark ML LogisticRegression, log loss {losses[0]:.5f}", 1, 1 / peer_rate)
    _row(f"ctr.spark.train, log loss {losses[1]:.5f}", 1, 1 / rate, rate / peer_rate, "50")

    frame = session.read.parquet(str(test))
    ours_s, peer_s = alternate(
        rounds,
        _timed(lambda: product.spark.predict(frame, ours).select("probability")),
        _timed(lambda: peer.transform(hashed(test).select("features")).select("probability")),
    )
    _row("Spark ML LogisticRegression, scoring", tested.num_rows, peer_s)
    _row("ctr.spark.predict", tested.num_rows, ours_s, peer_s / ours_s, "3")


def _log_loss(labels: Any, predictions: Any) -> float:
    import numpy as np

    p = np.clip(predictions.astype(float), 1e-9, 1 - 1e-9)
    return float(-(labels * np.log(p) + (1 - labels) * np.log1p(-p)).mean())


def _write_parquet(log: Path, table: Path) -> None:
    """The log as a Parquet file with named columns, in several row groups."""
    from pyarrow import csv, parquet

    numbers = dict.fromkeys(_COLUMNS[1:14], "float64")
    options = csv.ConvertOptions(
        column_types={name: numbers.get(name, "int64" if name == "label" else "string") for name in _COLUMNS},
        strings_can_be_null=True,
    )
    with closing(
        csv.open_csv(
            log,
            csv.ReadOptions(column_names=_COLUMNS),
            csv.ParseOptions(delimiter="\t"),
            options,
        )
    ) as reader:
        parquet.write_table(reader.read_all(), table, row_group_size=100_000)
