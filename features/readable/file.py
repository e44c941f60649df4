"""The file of a dictionary in a data set or model."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pyarrow as pa

from ctr.errors import DataError
from ctr.features.folder import MANIFEST

DICTIONARY = "dictionary.arrow"
"""Its name in the folder; the manifest has its SHA-256 under `sha256`, if there is one."""


def dictionary_bytes(table: pa.Table) -> bytes:
    """The content of the file."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as file:
        file.write_table(table)
    return bytes(sink.getvalue())


def read_dictionary_bytes(path: Path) -> bytes | None:
    """The content of the file in the data set or model `path`; None if it has none.

    Raises DataError if it is not the one that was written.
    """
    try:
        sums = json.loads((path / MANIFEST).read_bytes()).get("sha256", {})
        if DICTIONARY not in sums:
            return None
        content = (path / DICTIONARY).read_bytes()
    except (OSError, ValueError, AttributeError) as error:
        raise DataError(f"{path}: its dictionary cannot be read ({error}).") from None
    if hashlib.sha256(content).hexdigest() != sums[DICTIONARY]:
        raise DataError(
            f"{path / DICTIONARY}: is not the file that was written (its SHA-256 is not the manifest's);"
            f" restore it, or build the data set again with `ctr features build --dictionary`."
        )
    return content


def read_dictionary(path: str | Path) -> pa.Table:
    """The features that a data set, or a model trained on it, has texts for: the most frequent ones first.

    Columns: `slot` (uint64), `feature` (its text, such as `site=example.com`), `count` (how often it occurs),
    and `missed`: it may occur so many times more. A slot with several rows is one that features share. Raises
    DataError if there is no dictionary, or not the one that was written.
    """
    content = read_dictionary_bytes(Path(path))
    if content is None:
        raise DataError(
            f"{path}: it has no dictionary; build the data set with `ctr features build --dictionary N`."
        )
    return pa.ipc.open_file(content).read_all()
