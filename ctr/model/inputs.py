"""`inputs_of`: turns the data that a program passes into paths for `ctr.features.open_source`."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeGuard

import numpy as np
import pyarrow as pa

from ctr.errors import CtrError, DataError
from ctr.features import FeatureSpec, check_categories, stream_of

TABLE = "the table"
"""What messages call a table, whatever file it is read from."""


@contextmanager
def inputs_of(data: object, *specs: FeatureSpec | None) -> Iterator[list[str]]:
    """Yield paths of `data`: a path, folder, pattern or URI, a list of those, or a table (see `table_of`).

    A table is written to a temporary file for the duration of the block, so that it is read like other files,
    in bounded memory. Its types are checked for `specs`, with which it will be read; see `check_categories`.
    Raises DataError for other data, and if the disk has no space for the file.
    """
    data = table_of(data)
    if (paths := paths_of(data)) is not None:
        yield paths
    elif hasattr(data, "__arrow_c_stream__") and not isinstance(data, type):
        with tempfile.TemporaryDirectory(prefix="ctr-table-") as folder:
            path = Path(folder, "table.arrow")
            try:
                with (
                    stream_of(data) as reader,
                    pa.OSFile(str(path), "wb") as file,
                    pa.ipc.new_file(file, reader.schema) as writer,
                ):
                    for batch in reader:
                        writer.write_batch(batch)
            except (OSError, pa.ArrowException) as error:
                raise DataError(f"{TABLE}: it cannot be written to {folder} ({error}).") from None
            for spec in filter(None, specs):
                with pa.memory_map(str(path)) as file, pa.ipc.open_file(file) as written:
                    check_categories(written.read_all(), spec)
            try:
                yield [str(path)]
            except CtrError as error:
                error.args = tuple(str(each).replace(str(path), TABLE) for each in error.args)
                raise
    else:
        raise DataError(
            "the data: expected a path, a list of paths, an Arrow table, a frame of pandas (2.2 or newer) or"
            f" polars, a list of dicts, or a dict of lists, got {type(data).__name__}."
        )


def paths_of(data: object) -> list[str] | None:
    """The paths in `data`, which is one or a list of them; None for other data."""
    if isinstance(data, str | Path):
        return [str(data)]
    if isinstance(data, list | tuple) and data and all(isinstance(each, str | Path) for each in data):
        return [str(each) for each in data]
    return None


def without_file(text: str, data: object, path: str) -> str:
    """`text` with the word for a table instead of the temporary file that `inputs_of` wrote it to."""
    return text.replace(path, TABLE) if paths_of(data) is None else text


def is_table(data: object) -> TypeGuard[Mapping[str, Sequence[object]]]:
    """True if `data` is a dict of columns, each a list or an array."""
    if not isinstance(data, Mapping) or not data:
        return False
    return all(isinstance(each, list | tuple | np.ndarray) for each in data.values())


def table_of(data: object) -> object:
    """An Arrow table of a dict of lists or a list of dicts; other data unchanged.

    A column that a dict lacks is missing in its row. Raises DataError if a column has several types.
    """
    try:
        if is_table(data):
            return pa.table(dict(data))
        if isinstance(data, list) and data and all(isinstance(row, Mapping) for row in data):
            names = dict.fromkeys(name for row in data for name in row)
            return pa.table({name: [row.get(name) for row in data] for name in names})
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise DataError(f"the rows cannot be converted to a table ({error}).") from None
    return data
