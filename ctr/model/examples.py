"""`Examples`: a few raw rows that are saved with a model, and its predictions for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from ctr.errors import DataError, ModelError
from ctr.features import DatasetSource, ExampleSource, Transform, first_rows

_RELATIVE, _ABSOLUTE = 1e-4, 1e-7
"""Tolerances: another processor may round an exponential differently; another transform differs by more."""


@dataclass(frozen=True, slots=True)
class Examples:
    """Rows that check whether a loaded model still predicts what it predicted when it was saved."""

    rows: Sequence[Mapping[str, Any]]
    """As `Model.predict` takes them."""
    predictions: Sequence[float] = ()
    """The saved model's predictions, one per row; empty before it is saved."""

    def check(self, predict: Callable[[Sequence[Mapping[str, Any]]], NDArray[np.float32]]) -> None:
        """Call `predict` with the rows. Raises ModelError if it does not give the saved predictions."""
        predictions = predict(self.rows)
        if not self.predictions:
            return
        expected = np.array(self.predictions, np.float32)
        wrong = np.flatnonzero(~np.isclose(predictions, expected, rtol=_RELATIVE, atol=_ABSOLUTE))
        if wrong.size:
            row = int(wrong[0])
            raise ModelError(
                f"it predicts {predictions[row]:.6g} for example row {row + 1}, for which it predicted"
                f" {expected[row]:.6g} when it was saved; {wrong.size} of {len(self.rows)} rows differ."
            )

    def content(self, predictions: NDArray[np.float32]) -> bytes:
        """The content of a file with these rows and other predictions."""
        entries = {"rows": self.rows, "predictions": predictions}
        return orjson.dumps(entries, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_INDENT_2)

    @staticmethod
    def of_content(content: bytes) -> Examples:
        """Parse the file. Raises ValueError, KeyError or TypeError if it is not such a file."""
        entries = orjson.loads(content)
        rows, predictions = list(entries["rows"]), [float(each) for each in entries["predictions"]]
        if len(rows) != len(predictions) or not all(isinstance(row, dict) for row in rows):
            raise ValueError("rows and predictions do not match")
        return Examples(rows, predictions)


def draw_examples(source: ExampleSource, rows: int) -> Examples | None:
    """The first good rows of a source, at most `rows`; None if it has none.

    Also None with windows, as their features depend on the moment.
    """
    from ctr.features import RawSource  # not loaded to train from a data set

    if not rows or source.spec.windows or not isinstance(source, DatasetSource | RawSource):
        return None
    transform = Transform(source.spec, with_label=False)

    def is_good(row: Mapping[str, Any]) -> bool:
        try:
            transform.apply_rows([row])
        except DataError:
            return False
        return True

    good_rows = [row for row in first_rows(source, rows) if is_good(row)]
    return Examples(good_rows) if good_rows else None
