"""What is wrong with a bad row, in words."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ctr.features.columns import Columns
from ctr.features.spec import SERVED, FeatureSpec, TimeField, column_of
from ctr.features.steps.index_kernels import bad_token
from ctr.features.text import Cells, RowStatus, expected_time, shown

_EXPECTED = {
    RowStatus.LABEL: "is no label; it must be 0 or 1, or -1 or 1",
    RowStatus.LABEL_MINUS: "is a label of -1 or 1, but other rows have 0 or 1; write all labels one way",
    RowStatus.LABEL_ZERO: "is a label of 0 or 1, but other rows have -1 or 1; write all labels one way",
    RowStatus.WEIGHT: "is no weight; it must be a finite number above 0",
    RowStatus.NUMBER: "is not a number; write it in decimal digits, or leave it empty when it is missing",
    RowStatus.INDEX: "is not index:value with a whole number as index",
    RowStatus.VALUE: "does not have a finite number after its colon",
    RowStatus.NAMED: "has a value that is not a finite number after a colon",
    RowStatus.QUERY: "is a query id: ranking data is not supported; write index:value",
    RowStatus.FEATURES: "has so many values that they and their crosses are more features than the spec's"
    " most_features; shorten such lists, cross fewer of them, or raise most_features",
    RowStatus.LATE: "is earlier than the latest row before it (for a model, those of its training), by more"
    " than the slack of a window; if the model was trained on these rows, give their data set, otherwise sort"
    " the rows by time, or raise that slack",
    RowStatus.UNSERVED: "holds no window features: the server that logged the row had a model without"
    " windows, or was an older version",
    RowStatus.OTHER_WINDOWS: "does not hold the features of the spec's windows; train with the spec of the"
    " model that served the row",
}
_REASONS = {
    RowStatus.LABEL: "no label (0 or 1, or -1 or 1)",
    RowStatus.LABEL_MINUS: "a label of -1 where other rows have 0",
    RowStatus.LABEL_ZERO: "a label of 0 where other rows have -1",
    RowStatus.WEIGHT: "no weight (finite, above 0)",
    RowStatus.NUMBER: "not a number",
    RowStatus.INDEX: "no index:value with a whole number as index",
    RowStatus.VALUE: "a value that is no finite number",
    RowStatus.NAMED: "a feature whose value is no finite number",
    RowStatus.QUERY: "query ids",
    RowStatus.FEATURES: "more features than most_features",
    RowStatus.LATE: "earlier than a row before it, by more than the slack of a window",
    RowStatus.UNSERVED: "no window features",
    RowStatus.OTHER_WINDOWS: "features of other windows",
}
_TOKENS = (RowStatus.INDEX, RowStatus.VALUE, RowStatus.QUERY)
"""Problems of one of several features in a cell."""


def explain(
    spec: FeatureSpec, columns: Sequence[str], cells: Cells, row: int, status: RowStatus, column: int
) -> tuple[str, str]:
    """See `Transform.explain`; `columns`: of the cells."""
    if status in (RowStatus.TIME, RowStatus.SINCE):
        return _explain_time(spec, columns, cells, row, status, column)
    if status in (RowStatus.UNSERVED, RowStatus.OTHER_WINDOWS):
        column = columns.index(SERVED)
    text = cells.buffer[cells.starts[row, column] : cells.ends[row, column]]
    if status in _TOKENS:
        text = text[slice(*bad_token(text))]
    where = f"column {columns[column]!r}: "
    return f"{where}{shown(text)!r} {_EXPECTED[status]}", where + _REASONS[status]


def _explain_time(
    spec: FeatureSpec, columns: Sequence[str], cells: Cells, row: int, status: RowStatus, column: int
) -> tuple[str, str]:
    """As `explain`, for a column that a field or window reads as times, without a valid time in this row."""
    of_row = Columns(cells, np.zeros(len(cells), np.uint8), slice(row, row + 1), columns)
    fields = [field for field in spec.fields if isinstance(field, TimeField)]
    read = [(column_of(f), f.since_column, f.format) for f in fields]
    read += [(window.time, None, window.format) for window in spec.windows]
    for at, since, time_format in read:
        name = at if status is RowStatus.TIME else since
        if columns.index(at) != column or name is None:
            continue
        if of_row[name].times(time_format).problem[0]:
            text, expected = cells.text(row, columns.index(name)), expected_time(time_format)
            return f"column {name!r}: {text!r} is no time; expected {expected}", f"column {name!r}: no time"
    raise ValueError("this row is not bad")
