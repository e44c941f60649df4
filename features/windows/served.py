"""Windows' features in the logs of servers, beside the rows that were served with them.

They are the text of one more column, `SERVED`, such as `6f0c1d2e 12 7 - 4`. The first word stands for the
windows. The others are the buckets of the spec's window fields, in their order; `-`: the row lacks it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

from ctr.features.columns import Buckets, Columns
from ctr.features.spec import SERVED, FeatureSpec
from ctr.features.text import Cells, RowStatus
from ctr.features.transform import History

_ABSENT = "-"


def _word_of(spec: FeatureSpec) -> str:
    """The word for the spec's windows: those with other buckets for a row have another one."""
    windows = [window.model_dump(mode="json", exclude_defaults=True) for window in spec.windows]
    return sha256(json.dumps(windows, sort_keys=True).encode()).hexdigest()[:8]


class NotingHistory:
    """A `History` that also notes the features that it gives, for the rows of one request."""

    def __init__(self, spec: FeatureSpec, history: History) -> None:
        """`history`: where the features come from."""
        self._word, self._history = _word_of(spec), history
        self._texts: list[str] = []

    def buckets(
        self, cells: Cells, status: NDArray[np.uint8], columns: Sequence[str], rows: slice, *, take_in: bool
    ) -> list[Buckets]:
        features = self._history.buckets(cells, status, columns, rows, take_in=take_in)
        of_fields = [
            [str(word) if is_there else _ABSENT for word, is_there in zip(words, present, strict=True)]
            for words, present in ((each.buckets.tolist(), each.present.tolist()) for each in features)
        ]
        self._texts += (" ".join((self._word, *row)) for row in zip(*of_fields, strict=True))
        return features

    def noted(self, rows: Sequence[Mapping[str, object]]) -> list[dict[str, object]]:
        """The rows, each with its features in the column `SERVED`."""
        return [{**row, SERVED: text} for row, text in zip(rows, self._texts, strict=True)]


class ServedFeatures:
    """A `History` that reads the features of rows from their column `SERVED`. Threads may share it."""

    def __init__(self, spec: FeatureSpec) -> None:
        self._fields = sum(len(window.fields) for window in spec.windows)
        self._valid = re.compile(rf"{_word_of(spec)}(?: (?:-|[0-9]{{1,18}})){{{self._fields}}}".encode())

    def buckets(
        self, cells: Cells, status: NDArray[np.uint8], columns: Sequence[str], rows: slice, *, take_in: bool
    ) -> list[Buckets]:
        """The features of these rows of `cells`, as they were served.

        A row without them has the problem `RowStatus.UNSERVED`, one with those of other windows
        `RowStatus.OTHER_WINDOWS`.
        """
        column = Columns(cells, status, rows, columns)[SERVED]
        buffer, starts, ends, of_rows = column.text
        problem = np.zeros(of_rows.size, np.uint8)
        good, texts = [], []
        for i in np.flatnonzero(of_rows == 0).tolist():
            text = buffer[starts[i] : ends[i]].tobytes()
            if self._valid.fullmatch(text):
                good.append(i)
                texts.append(text.partition(b" ")[2])
            else:
                problem[i] = RowStatus.OTHER_WINDOWS if text else RowStatus.UNSERVED
        words = np.full((self._fields, of_rows.size), -1, np.int64)
        flat = b" ".join(texts).replace(_ABSENT.encode(), b"-1").split()
        words[:, good] = np.array(flat, np.bytes_).astype(np.int64).reshape(-1, self._fields).T
        return [Buckets(each.astype(np.uint64), each >= 0, problem) for each in words]
