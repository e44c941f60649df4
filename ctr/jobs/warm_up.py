"""Compiles kernels in advance: by small jobs (`run_small_jobs`), or in parallel with reading."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from ctr.features import Batch, FeatureSpec
from ctr.features.batches import is_compiled, slot_dtype
from ctr.features.spec import UNIX, UNIX_MS, TimeField, column_of, columns_of, learnt_of
from ctr.features.threads import Threads, cores
from ctr.features.transform import Transform
from ctr.learn import Learner, warm_up
from ctr.optimizers import Optimizer

_ROWS = 200
_FIRST = datetime(2026, 1, 1)
_KINDS = """
version: 1
source: {format: delimited, delimiter: ",", header: true, quote: true}
label: click
bits: 22
fields:
  - {name: site, type: category}
  - {name: page, type: category, lower: true, min_count: 2}
  - {name: price, type: number, transform: log}
  - {name: size, type: number, transform: edges, edges: [1, 5], missing: feature}
  - {name: age, type: number, transform: quantiles, buckets: 4}
  - {name: hour, column: at, type: time, transform: hour}
crosses: [site * page]
"""
_LISTS = """
version: 1
source: {format: jsonl}
label: click
bits: 22
fields:
  - {name: site, type: category}
  - {name: tags, type: list, delimiter: "|"}
  - {name: title, type: text, words: [1]}
  - {name: price, type: number, transform: linear, steps: [log]}
crosses: [site * tags]
"""
_SERVE = """
import asyncio
from ctr.api.app import create_app
from ctr.model import load_model

async def start(app):
    async with app.router.lifespan_context(app):
        pass

asyncio.run(start(create_app(load_model("model"))))
"""
_WORK = "from ctr.workers.worker import warm_up_worker; warm_up_worker()"

Task = Sequence[Sequence[object]]
"""Arguments of Python programs that run one after the other in a folder of their own."""


def compile_training_beside(spec: FeatureSpec, optimizer: Optimizer) -> None:
    """Let another process compile the kernels of training in memory, if none is compiled and a core is free.

    A process that needs such a kernel waits until it is in the cache.
    """
    if not is_compiled():
        _beside(_train, spec, optimizer)


def compile_hashing_beside(spec: FeatureSpec, *, with_fields: bool) -> None:
    """The same for the largest kernel, which hashes raw rows, while this process compiles what reads them."""
    if spec.fields and not spec.windows and learnt_of(spec) is not None and not Transform.is_compiled():
        _beside(_hash, spec, with_fields)


def _beside(compile_kernels: Callable[..., None], *arguments: object) -> None:
    if cores() == 1 or threading.active_count() > 1:
        return
    from multiprocessing import get_context  # for a first run alone

    words = compile_kernels, *arguments
    get_context("fork").Process(target=_quietly, args=words, daemon=True).start()


def _quietly(compile_kernels: Callable[..., None], *arguments: object) -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with suppress(Exception):  # the other process meets the same error
        compile_kernels(*arguments)


def _train(spec: FeatureSpec, optimizer: Optimizer) -> None:
    slots = np.array([0, 1], slot_dtype(spec.bits))
    values = np.ones(2, np.float32) if spec.has_values else None
    sample = Batch(np.array([0, 1, 2]), slots, values, np.array([0, 1], np.float32))
    warm_up(sample, spec.bits, optimizer, Learner(1.0))


def _hash(spec: FeatureSpec, with_fields: bool) -> None:
    Transform(spec, with_label=True, with_fields=with_fields).apply_rows([{}])  # which lacks a label


def run_small_jobs(spec: FeatureSpec | None, processes: int | None = None) -> None:
    """Compile the kernels for training, serving and explaining with `spec`; None: for the usual commands.

    `processes`: the number of parallel processes; None: one per core.
    """
    with TemporaryDirectory() as top:
        folder = Path(top)
        tasks = list(_tasks(folder) if spec is None else [_of_spec(spec, folder / "own")])
        with Threads(processes or cores(), "warm-up") as threads:
            list(threads.map(_run, tasks))


def _tasks(folder: Path) -> Iterator[tuple[Path, Task]]:
    from ctr.features.spec import parse_spec

    yield (
        folder / "criteo",
        [
            _ctr("synth", "--rows", _ROWS, "--out", "log.tsv"),
            _ctr("features", "build", "--spec", "criteo", "log.tsv", "--out", "hashed"),
            _ctr("train", "hashed", "--model", "model", "--holdout-fraction", 0.5),
            _ctr("evaluate", "--model", "model", "log.tsv"),
            ["-c", _SERVE],
            _ctr("explain", "--model", "model", "log.tsv", "--rows", 1),
            _ctr("tune", "hashed", "--trials", 1, "--out", "best.yaml"),
            _ctr("train", "hashed", "--model", "model", "--store", "embedded://?shards=1"),
        ],
    )
    yield folder / "worker", [["-c", _WORK]]
    for name, text in {"kinds": _KINDS, "lists": _LISTS}.items():
        yield _of_spec(parse_spec(text, name), folder / name)


def _of_spec(spec: FeatureSpec, folder: Path) -> tuple[Path, Task]:
    """Programs that build a data set for `spec`, train on it, predict, and explain a prediction."""
    folder.mkdir()
    (folder / "spec.yaml").write_text(spec.to_yaml())
    _write_rows(spec, folder / "rows")
    return folder, [
        _ctr("features", "build", "--spec", "spec.yaml", "rows", "--out", "hashed", "--on-bad-rows", "skip"),
        _ctr("train", "hashed", "--model", "model", "--holdout-fraction", 0.5),
        _ctr("train", "--spec", "spec.yaml", "rows", "--model", "model", "--on-bad-rows", "skip"),
        ["-c", _SERVE],
        _ctr("explain", "--model", "model", "rows", "--rows", 1),
    ]


def _ctr(*words: object) -> list[object]:
    """The arguments of a `ctr` command as a Python program."""
    return ["-m", "ctr", *words]


def _run(task: tuple[Path, Task]) -> None:
    folder, programs = task
    folder.mkdir(exist_ok=True)
    for words in programs:
        # A program that fails has compiled the kernels up to its error.
        subprocess.run(
            [sys.executable, *map(str, words)],
            cwd=folder,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            check=False,
        )


def _write_rows(spec: FeatureSpec, path: Path) -> None:
    """Write a few rows in the format of `spec`."""
    import orjson
    import pyarrow as pa
    from pyarrow import feather, parquet

    columns = _columns(spec)
    source, rows = spec.source, [[_text(spec, name, i) for name in columns] for i in range(_ROWS)]
    if source.format in ("libsvm", "vw"):
        lines = [
            f"{i % 2 or -1} " + ("1:0.5 7:2" if source.format == "libsvm" else "|a b c:2")
            for i in range(_ROWS)
        ]
        path.write_text("\n".join(lines) + "\n")
    elif source.format == "jsonl":
        path.write_bytes(b"".join(orjson.dumps(dict(zip(columns, row, strict=True))) + b"\n" for row in rows))
    elif source.format == "delimited":
        head = [columns] if source.header else []
        path.write_text("".join(source.delimiter.join(row) + "\n" for row in [*head, *rows]))
    else:
        table = pa.table(dict(zip(columns, zip(*rows, strict=True), strict=True)))
        (parquet.write_table if source.format == "parquet" else feather.write_feather)(table, path)


def _columns(spec: FeatureSpec) -> list[str]:
    named = [spec.label_column, spec.weight_column]
    named += spec.columns
    return list(spec.source.columns or dict.fromkeys(column for column in named if column is not None))


def _text(spec: FeatureSpec, column: str, row: int) -> str:
    if column in (spec.label_column, spec.weight_column):
        return str(row % 2 if column == spec.label_column else 1)
    for field in spec.fields:
        if isinstance(field, TimeField) and column in columns_of(field):
            return _time(field.format, row)
        if column_of(field) == column and field.numeric:
            return f"{row}.5" if row % 5 == 0 else str(row % 9)
    for window in spec.windows:
        if column == window.time:
            return _time(window.format, row)
    return f"value{row % 7}"


def _time(time_format: str | None, row: int) -> str:
    at = _FIRST + timedelta(minutes=row)
    if time_format in (UNIX, UNIX_MS):
        return str(int(at.timestamp()) * (1000 if time_format == UNIX_MS else 1))
    return at.strftime(time_format or "%Y-%m-%d %H:%M:%S")
