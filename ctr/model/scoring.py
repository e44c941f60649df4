"""Batch prediction: a table of probabilities, one row per input row."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyarrow import csv, parquet

from ctr.errors import DataError
from ctr.features import ExampleSource
from ctr.features.threads import Prefetch
from ctr.model.evaluation import Positions, RowNumbers, batches_beside
from ctr.model.linear import probabilities_of
from ctr.model.model import Model
from ctr.optimizers import Float32
from ctr.outputs import replace_file, require_writable

if TYPE_CHECKING:
    from ctr.features import RowTexts

PREDICTION, LOG_ODDS = "prediction", "log_odds"
_SUFFIXES = (".parquet", ".csv", ".tsv")


def predict_file(
    model: Model,
    source: ExampleSource,
    out: Path,
    *,
    columns: Sequence[str] = (),
    margins: bool = False,
    on_rows: Callable[[int], None] = lambda _: None,
) -> int:
    """Score every row of `source` into `out` (`.parquet`, `.csv`, `.tsv`, or `-` for CSV on standard output).

    `require_predictable` must accept `out`. Rows are in input order; returns their number. The texts of
    `columns`, which `source` was opened with as `also`, precede the prediction; with `margins`, the log-odds
    follow it.

    A row that was skipped as bad has no prediction (null; `nan` in CSV), so that row `i` of the output
    always belongs to row `i` of the input. Raises DataError if the input has no rows, or if the disk refuses;
    an earlier file at `out` is then unchanged.
    """
    rows = 0
    row_numbers = RowNumbers(source.bad_rows)
    names = [PREDICTION, LOG_ODDS] if margins else [PREDICTION]
    schema = pa.schema([(name, pa.string()) for name in columns] + [(name, pa.float32()) for name in names])
    texts_of_rows = _UnwrittenTexts(columns)

    def write_rows(scores: Sequence[Float32]) -> None:
        # In text, a null would be an empty line, which readers of CSV skip.
        arrays = [_column(each, nulls=out.suffix == ".parquet") for each in scores]
        write(pa.record_batch([*texts_of_rows.take(scores[0].size), *arrays], schema=schema))

    with (
        _replacing(out, schema) as write,
        Prefetch(batches_beside(source, columns), depth=2) as batches,
    ):
        for batch, texts in batches:
            texts_of_rows.add(texts)
            if batch is None:
                continue
            log_odds = model.margins(batch)
            predictions = probabilities_of(log_odds)
            positions, count = row_numbers.of(predictions.size) - rows, row_numbers.next - rows
            scores = [predictions, log_odds] if margins else [predictions]
            write_rows([_spread(each, positions, count) for each in scores])
            rows += count
            on_rows(rows)
        trailing = row_numbers.rest()
        if trailing:
            write_rows([np.full(trailing, np.nan, np.float32)] * len(names))
            rows += trailing
        if rows == 0:
            raise DataError("there is no row to predict: check the input.")
    return rows


def require_predictable(out: Path) -> None:
    """Raises DataError if predictions cannot be written to `out`."""
    if str(out) == "-":
        return
    if out.suffix not in _SUFFIXES:
        raise DataError(
            f"{out}: predictions are written as .parquet, .csv or .tsv; choose one of these suffixes, or -"
            " for CSV on standard output."
        )
    if out.is_dir():
        raise DataError(f"{out}: is a folder; predictions are one file, choose another place.")
    require_writable(out, make_folders=False)


class _UnwrittenTexts:
    """The texts of other columns, until the predictions of their rows are known."""

    def __init__(self, columns: Sequence[str]) -> None:
        self._texts: dict[str, Any] = {name: pa.nulls(0, pa.string()) for name in columns}

    def add(self, texts: RowTexts | None) -> None:
        """Append the texts of the rows that were read for a batch."""
        if texts is None:
            return
        for name, unwritten in self._texts.items():
            self._texts[name] = pa.concat_arrays([unwritten, texts.columns[name]])

    def take(self, rows: int) -> list[pa.Array]:
        """Remove and return the texts of the first rows, column by column."""
        first = [texts[:rows] for texts in self._texts.values()]
        self._texts = {name: texts[rows:] for name, texts in self._texts.items()}
        return first


def _spread(scores: Float32, positions: Positions, rows: int) -> Float32:
    """float32[rows] with the scores at these positions, and NaN, which no score is, everywhere else."""
    if scores.size == rows:
        return scores
    spread = np.full(rows, np.nan, np.float32)
    spread[positions] = scores
    return spread


def _column(scores: Float32, *, nulls: bool) -> pa.Array:
    """An Arrow column; `nulls`: replace NaN by null. `pa.array` would load pandas, if installed: 0.3 s."""
    mask = pa.py_buffer(np.packbits(~np.isnan(scores), bitorder="little")) if nulls else None
    return pa.Array.from_buffers(pa.float32(), scores.size, [mask, pa.py_buffer(scores)])


@contextmanager
def _replacing(out: Path, schema: pa.Schema) -> Iterator[Callable[[pa.RecordBatch], None]]:
    """Yield a function that appends rows to a file, which replaces `out` once complete."""
    is_parquet = out.suffix == ".parquet"
    try:
        with ExitStack() as opened:
            if str(out) == "-":
                file: Any = sys.stdout.buffer
            else:
                # Opened here, as Arrow would load its file systems for a path: 0.1 s.
                file = opened.enter_context(pa.OSFile(str(opened.enter_context(replace_file(out))), "wb"))
            writer = opened.enter_context(
                # Predictions hardly repeat: to make a dictionary of them would take as long as scoring.
                parquet.ParquetWriter(
                    file, schema, use_dictionary=_text_columns(schema), compression="snappy"
                )
                if is_parquet
                else _text_writer(file, schema, "\t" if out.suffix == ".tsv" else ",")
            )
            yield writer.write_batch
    except BrokenPipeError:  # the reader closed the pipe; Click ends the command silently
        raise
    except OSError as error:
        where = "standard output" if str(out) == "-" else out
        raise DataError(f"{where}: the predictions could not be written ({error}).") from error


def _text_columns(schema: pa.Schema) -> list[str]:
    return [field.name for field in schema if field.type == pa.string()]


def _text_writer(file: Any, schema: pa.Schema, delimiter: str) -> csv.CSVWriter:
    needs_quotes = any(character in name for name in schema.names for character in f'"\r\n{delimiter}')
    options = csv.WriteOptions(
        delimiter=delimiter,
        quoting_style="needed" if _text_columns(schema) else "none",
        quoting_header="needed" if needs_quotes else "none",
    )
    return csv.CSVWriter(file, schema, write_options=options)
