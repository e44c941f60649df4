"""`read`, `draft_spec` and `check`: functions for Python programs to inspect data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from ctr.errors import DataError, require_counts
from ctr.features import FeatureSpec, parse_spec, read_table, spec_of
from ctr.features.inspect import Check
from ctr.features.inspect import check as look
from ctr.features.inspect import draft_spec as draft
from ctr.model import inputs_of, paths_of, without_file


def read(
    data: str | Path | Sequence[str | Path], spec: str | Path | Mapping[str, Any] | FeatureSpec
) -> pa.Table:
    r"""Read raw files into an Arrow table with the texts that training on the files reads.

    `data` is a path, a folder, a pattern, a URI, or a list of those; `spec` as for `ctr.train`.
    The table has the columns that the spec names, as strings, null where a value is missing: so `00007` stays
    `00007`, and `0.50` does not become 0.5. Training on it gives the same model as training on the files. All
    rows are in memory.

    Raises DataError for a file that cannot be read, a missing column, or a row that cannot be split into
    cells, and SpecError for a wrong spec, or for data that carries its own features.

    >>> import ctr, pathlib, tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = pathlib.Path(folder.name, "log.csv")
    >>> _ = path.write_text("click,zip\n1,00007\n0,\n")
    >>> ctr.read(path, '''{version: 1, source: {format: csv}, label: click,
    ...   fields: [{name: zip, type: category}]}''').to_pylist()
    [{'click': '1', 'zip': '00007'}, {'click': '0', 'zip': None}]
    >>> folder.cleanup()
    """
    inputs = paths_of(data)
    if inputs is None:
        raise DataError(
            f"data: expected the path of a file, or a list of paths, got {type(data).__name__}; ctr.train "
            "and the other functions take tables as they are."
        )
    return read_table(inputs, spec_of(spec))


def draft_spec(data: object, *, label: str | None = None) -> FeatureSpec:
    """Draft a feature spec for data, as `ctr features init` does; `to_yaml` gives its text.

    `data` as for `ctr.train`; `label` names the column of clicks, if it cannot be guessed. Raises DataError.

    >>> import ctr
    >>> rows = {"click": [0, 1] * 50, "site": ["news", "shop"] * 50}
    >>> [field.name for field in ctr.draft_spec(rows, label="click").fields]
    ['site']
    """
    with inputs_of(data) as inputs:
        return parse_spec(draft(inputs[0], label=label), "the drafted spec")


def check(data: object, spec: str | Path | Mapping[str, Any] | FeatureSpec, *, rows: int = 200_000) -> Check:
    """Check a spec on the first rows, as `ctr features check` does; the result has `fields` and `warnings`.

    Raises DataError if a column is missing, or if there is no good row.
    """
    require_counts(rows=rows)
    with inputs_of(data) as inputs:
        result = look(spec_of(spec), inputs, rows)
    for texts in (result.bad_examples, result.layout):
        texts[:] = [without_file(text, data, inputs[0]) for text in texts]
    return result
