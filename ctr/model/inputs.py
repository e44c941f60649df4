"""`inputs_of`: what a program gives as data, as paths that `ctr.features.open_source` takes."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from ctr.errors import CtrError, DataError
from ctr.features import FeatureSpec, check_categories

TABLE = "table.arrow"


@contextmanager
def inputs_of(data: object, spec: FeatureSpec | None = None) -> Iterator[list[str]]:
    """`data` is a path, folder, pattern or URI, a list of those, or a table: anything that `table_of` takes.

    A table is written to a temporary file for the block: so it is read as files are, in bounded memory.
    `spec`: what it will be read with; see `check_categories` for what is then wrong with its types. Raises
    DataError for what is none of these, and when there is no room for the file.
    """
    if isinstance(data, str | Path):
        yield [str(data)]
    elif isinstance(data, list | tuple) and data and all(isinstance(each, str | Path) for each in data):
        yield [str(each) for each in data]
    elif hasattr(data, "__arrow_c_stream__") and not isinstance(data, type):
        with tempfile.TemporaryDirectory(prefix="ctr-table-") as folder:
            path = Path(folder, TABLE)
            try:
                with (
                    pa.RecordBatchReader.from_stream(data) as reader,
                    pa.OSFile(str(path), "wb") as file,
                    pa.ipc.new_file(file, reader.schema) as writer,
                ):
                    for batch in reader:
                        writer.write_batch(batch)
            except (OSError, pa.ArrowException) as error:
                raise DataError(f"the table: it cannot be written to {folder} ({error}).") from None
            if spec is not None:
                with pa.memory_map(str(path)) as file, pa.ipc.open_file(file) as written:
                    check_categories(written.read_all(), spec)
            try:
                yield [str(path)]
            except CtrError as error:  # about rows of the table, whatever file they were read from
                error.args = tuple(str(each).replace(str(path), "the table") for each in error.args)
                raise
    else:
        raise DataError(
            "the data: expected a path, a list of paths, an Arrow table, or a frame of pandas (2.2 or"
            f" newer) or polars, got {type(data).__name__}."
        )
