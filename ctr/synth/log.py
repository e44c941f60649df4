"""A synthetic click log in the Criteo format, drawn from a known logistic model.

Every draw is a hash of the seed, the row's number and the column. So a longer log starts with the shorter
one, and memory does not depend on its length.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from ctr.errors import DataError
from ctr.metrics import entropy
from ctr.outputs import replace_file
from ctr.synth import kernels
from ctr.synth.columns import NAMES, columns_of

BASE_RATE = 0.23
"""Mean click probability of the first rows; later it drifts a little."""
SPREAD = 1.25
"""Standard deviation of the rows' log-odds, which determines how predictable clicks are."""
BLOCK_ROWS = 16_384


@dataclass(frozen=True, slots=True)
class SynthSummary:
    """Facts about a log, and the best metrics that a model can reach on it."""

    rows: int
    positives: int
    base_rate: float
    base_logloss: float
    """Log loss of always predicting `base_rate`."""
    best_logloss: float
    """Log loss of the true click probabilities on the drawn labels: no model can be better."""
    entropy: float
    """The expected value of `best_logloss` over all labels that could be drawn."""
    size_bytes: int
    interactions: tuple[tuple[str, str], ...]
    """The pairs of columns whose pairs of values have weights of their own."""


def write_click_log(
    out: Path,
    rows: int,
    seed: int = 0,
    interactions: int = 0,
    truth: Path | None = None,
    progress: Callable[[int], None] | None = None,
) -> SynthSummary:
    """Write `rows` rows (label, I1..I13, C1..C26; tab separated, no header) to `out`; `.gz` is compressed.

    `interactions`: the number of pairs of columns whose pairs of values have weights of their own. `truth`
    names a Parquet file for the true values: the float32 `probability` of a click and the uint8 `label` of
    each row. `progress` is called after each block with the rows written so far. Memory does not grow with
    `rows`. The files appear only when both are complete.

    Raises DataError if a file cannot be written, `rows` is below 1, the seed is outside 0..2**64 - 1, or
    there are too few pairs of columns with learnable interactions.
    """
    if rows < 1 or not 0 <= seed < 1 << 64:
        raise DataError(f"a log of {rows} rows with seed {seed}: rows start at 1, seeds are 0 to 2**64 - 1")
    for path in (out, truth) if truth is not None else (out,):
        if path.is_dir():
            raise DataError(f"{path}: is a folder; name a file to write")
        if not path.parent.is_dir():
            raise DataError(f"{path}: the folder {path.parent} does not exist; create it first")
    if truth is not None and truth.absolute() == out.absolute():
        raise DataError(f"{out}: the log and its truth cannot be the same file; give them two names")
    model = _click_model(seed, interactions)
    try:
        with ExitStack() as drafts:  # which replace the files once both are complete
            partial = drafts.enter_context(replace_file(out))
            partial_truth = None if truth is None else drafts.enter_context(replace_file(truth))
            with ExitStack() as stack:
                log = _open_log(stack, partial, compressed=out.suffix == ".gz")
                write_truth = None if partial_truth is None else _open_truth(stack, partial_truth)
                positives, loss, expected = _write_blocks(log, write_truth, model, rows, seed, progress)
            size_bytes = partial.stat().st_size
    except OSError as error:
        raise DataError(
            f"{out}: cannot write the log: {error.strerror or error}; nothing was kept"
        ) from error
    return SynthSummary(
        rows=rows,
        positives=int(positives),
        base_rate=positives / rows,
        base_logloss=entropy(positives / rows),
        best_logloss=loss / rows,
        entropy=expected / rows,
        size_bytes=size_bytes,
        interactions=tuple((NAMES[one], NAMES[other]) for one, other in model[0].pairs),
    )


def _open_log(stack: ExitStack, path: Path, compressed: bool) -> IO[bytes] | gzip.GzipFile:
    file = stack.enter_context(path.open("wb"))
    if not compressed:
        return file
    # Level 1, as random tokens hardly shrink further. Without name and time, equal logs give equal files.
    return stack.enter_context(gzip.GzipFile("", "wb", compresslevel=1, fileobj=file, mtime=0))


ClickModel = tuple[kernels.Columns, float, float]
TruthWriter = Callable[[NDArray[np.float64], NDArray[np.uint8]], None]


def _open_truth(stack: ExitStack, path: Path) -> TruthWriter:
    import pyarrow as pa
    from pyarrow import parquet

    schema = pa.schema([("probability", pa.float32()), ("label", pa.uint8())])
    writer: Any = stack.enter_context(parquet.ParquetWriter(path, schema))

    def write(probabilities: NDArray[np.float64], labels: NDArray[np.uint8]) -> None:
        columns = [pa.array(probabilities.astype(np.float32)), pa.array(labels)]
        writer.write_table(pa.Table.from_arrays(columns, schema=schema))

    return write


def _write_blocks(
    log: IO[bytes] | gzip.GzipFile,
    write_truth: TruthWriter | None,
    model: ClickModel,
    rows: int,
    seed: int,
    progress: Callable[[int], None] | None,
) -> tuple[float, float, float]:
    """Write all rows; returns the number of clicks, and the sums of the true log loss and its expectation."""
    positives = loss = expected = 0.0
    for start in range(0, rows, BLOCK_ROWS):
        n = min(BLOCK_ROWS, rows - start)
        text, _, p, labels = _block(model, seed, start, n)
        log.write(text)
        if write_truth is not None:
            write_truth(p, labels)
        positives += float(labels.sum())
        loss -= float(np.log(np.where(labels == 1, p, 1.0 - p)).sum())
        expected -= float((p * np.log(p) + (1 - p) * np.log1p(-p)).sum())
        if progress is not None:
            progress(start + n)
    return positives, loss, expected


def _block(
    model: ClickModel, seed: int, start: int, rows: int
) -> tuple[memoryview, NDArray[np.float64], NDArray[np.float64], NDArray[np.uint8]]:
    """The text, log-odds before scaling, click probabilities and labels of `rows` rows."""
    text = np.empty(rows * kernels.ROW_BYTES, np.uint8)
    margins, probabilities, labels = np.empty(rows), np.empty(rows), np.empty(rows, np.uint8)
    size = kernels.write_rows(np.uint64(seed), start, *model, text, margins, probabilities, labels)
    return text[:size].data, margins, probabilities, labels


def _click_model(seed: int, interactions: int = 0) -> ClickModel:
    """The columns, and the scale and intercept that give the first rows `SPREAD` and `BASE_RATE`."""
    columns = columns_of(seed, interactions)
    _, margins, _, _ = _block((columns, 1.0, 0.0), seed, 0, BLOCK_ROWS)
    scale = SPREAD / float(margins.std())
    low, high = -20.0 - scale * float(margins.max()), 20.0 - scale * float(margins.min())
    for _ in range(60):
        intercept = (low + high) / 2
        too_low = float(np.mean(1.0 / (1.0 + np.exp(-(intercept + scale * margins))))) < BASE_RATE
        low, high = (intercept, high) if too_low else (low, intercept)
    return columns, scale, (low + high) / 2
