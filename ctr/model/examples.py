"""`Examples`: a few rows as they came, kept with a model, and what it predicts for them."""

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
"""Another processor may round an exponential otherwise; another transform does more."""


@dataclass(frozen=True, slots=True)
class Examples:
    """Rows by which whoever loads a model can tell that it predicts what it did when it was saved."""

    rows: Sequence[Mapping[str, Any]]
    """As `Model.predict` takes them."""
    predictions: Sequence[float] = ()
    """Of the model as it was saved, by row; none before."""

    def check(self, predict: Callable[[Sequence[Mapping[str, Any]]], NDArray[np.float32]]) -> None:
        """Raise ModelError where `predict`, which is called with the rows, gives something else."""
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
        """The file of these rows with other predictions."""
        entries = {"rows": self.rows, "predictions": predictions}
        return orjson.dumps(entries, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_INDENT_2)

    @staticmethod
    def of_content(content: bytes) -> Examples:
        """From the file. Raises ValueError, KeyError or TypeError when it is none."""
        entries = orjson.loads(content)
        rows, predictions = list(entries["rows"]), [float(each) for each in entries["predictions"]]
        if len(rows) != len(predictions) or not all(isinstance(row, dict) for row in rows):
            raise ValueError("rows and predictions do not fit together")
        return Examples(rows, predictions)


def draw_examples(source: ExampleSource, rows: int) -> Examples | None:
    """The first good rows of a source, at most `rows`; None where there are none to be had.

    Nor are there any for windows, whose features depend on the moment.
    """
    from ctr.features import RawSource  # which training from a data set does without

    if not rows or source.spec.windows or not isinstance(source, DatasetSource | RawSource):
        return None
    transform = Transform(source.spec, with_label=False)

    def is_good(row: Mapping[str, Any]) -> bool:
        try:
            transform.apply_rows([row])
        except DataError:
            return False
        return True

    drawn = [row for row in first_rows(source, rows) if is_good(row)]
    return Examples(drawn) if drawn else None
