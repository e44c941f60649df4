"""Batch prediction: a file of probabilities, one per input row."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import csv, parquet

from ctr.errors import DataError
from ctr.learn import Float32
from ctr.model.evaluation import SCORING_ROWS
from ctr.model.model import Model
from ctr.outputs import replace_file
from ctr.prefetch import Prefetch
from features import ExampleSource

Positions = NDArray[np.int64]

_SCHEMA = pa.schema([("prediction", pa.float32())])


def predict_file(
    model: Model, source: ExampleSource, out: Path, *, on_rows: Callable[[int], None] = lambda _: None
) -> int:
    """Score every row of `source` into `out` (`.parquet` or `.csv`), in input order; return their number.

    A row that was skipped as bad has no prediction (null; `nan` in CSV), so that row `i` of the output
    always belongs to row `i` of the input. Raises DataError for another suffix, for an input without
    rows, and when the disk refuses; whatever was at `out` before then stays as it was.
    """
    rows = 0
    following, waiting = source.bad_rows.follow(), np.empty(0, np.int64)
    with _replacing(out) as write, Prefetch(source.batches(SCORING_ROWS), depth=2) as batches:
        for batch in batches:
            predictions = model.predict(batch)
            waiting = _with_those_since(waiting, following)
            bad = _skipped(waiting, rows, predictions.size)
            waiting = waiting[bad.size :]
            write(_with_gaps(predictions, bad))
            rows += predictions.size + bad.size
            on_rows(rows)
        trailing = _with_those_since(waiting, following).size
        if trailing:
            write(pa.nulls(trailing, pa.float32()))
            rows += trailing
        if rows == 0:
            raise DataError("there is no row to predict: check the input.")
    return rows


def _with_those_since(waiting: Positions, following: deque[Positions]) -> Positions:
    """The bad rows that no prediction has come behind yet, with those found since."""
    return np.concatenate([waiting, *(following.popleft() for _ in range(len(following)))])


def _skipped(waiting: Positions, first: int, n: int) -> Positions:
    """Where bad rows stand among the next `n` good ones: offsets from row `first` of the input."""
    # Row i of those that wait has i bad ones and `waiting[i] - first - i` good ones before it.
    end = int(np.searchsorted(waiting - first - np.arange(waiting.size), n))
    return waiting[:end] - first


def _with_gaps(predictions: Float32, bad: NDArray[np.int64]) -> pa.Array:
    if bad.size == 0:
        return pa.array(predictions)
    missing = np.zeros(predictions.size + bad.size, np.bool_)
    missing[bad] = True
    filled = np.zeros(missing.size, np.float32)
    filled[~missing] = predictions
    return pa.array(filled, mask=missing)


@contextmanager
def _replacing(out: Path) -> Iterator[Callable[[pa.Array], None]]:
    """A function that appends predictions to a file which takes the place of `out` once complete."""
    if out.suffix not in {".parquet", ".csv"}:
        raise DataError(f"{out}: predictions are written as .parquet or .csv; choose one of these suffixes.")
    is_csv = out.suffix == ".csv"
    try:
        with (
            replace_file(out) as partial,
            _csv_writer(partial) if is_csv else parquet.ParquetWriter(str(partial), _SCHEMA) as writer,
        ):

            def write(predictions: pa.Array) -> None:
                if is_csv:  # a null would be an empty line, which readers of CSV skip
                    predictions = predictions.fill_null(float("nan"))
                writer.write_table(pa.table([predictions], schema=_SCHEMA))

            yield write
    except OSError as error:
        raise DataError(f"{out}: the predictions could not be written ({error}).") from error


def _csv_writer(path: Path) -> csv.CSVWriter:
    options = csv.WriteOptions(quoting_style="none", quoting_header="none")
    return csv.CSVWriter(str(path), _SCHEMA, write_options=options)
