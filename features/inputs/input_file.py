"""`InputFile`: one raw file, wherever it lies; `LocalFile`: one on this machine's disks."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, Protocol
from urllib.parse import unquote

from ctr.errors import DataError

_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"


class InputFile(Protocol):
    """One raw file, to be read as often as wanted. `str` of it is its name in messages."""

    @property
    def location(self) -> str:
        """Its path or URI, by which any process on this machine finds it."""

    @property
    def size(self) -> int:
        """In bytes; 0 if that is not known."""

    @property
    def is_remote(self) -> bool:
        """Whether reading it goes over a network, so that few large requests are better than many."""

    def open(self) -> io.BufferedReader:
        """Its bytes, from the first. Raises DataError."""

    def seekable(self) -> Any:
        """What Arrow reads in any order: a path, or an open file. Raises DataError."""


@dataclass(frozen=True)
class LocalFile:
    """A file by its path."""

    path: Path
    is_remote = False

    def __str__(self) -> str:
        return str(self.path)

    @property
    def location(self) -> str:
        return os.path.abspath(self.path)

    @cached_property
    def size(self) -> int:
        try:
            return self.path.stat().st_size
        except OSError as error:
            raise self._unreadable(error) from None

    def open(self) -> io.BufferedReader:
        self.require()
        try:
            return self.path.open("rb")
        except OSError as error:
            raise self._unreadable(error) from None

    def seekable(self) -> Any:
        self.require()
        return self.path

    def require(self) -> None:
        """Raises DataError unless it is a file."""
        if not self.path.is_file():
            problem = "not a regular file" if self.path.exists() else "there is no such file"
            raise DataError(f"{self.path}: {problem}; check the path.")

    def _unreadable(self, error: OSError) -> DataError:
        return DataError(f"{self.path}: cannot be read ({error.strerror}).")


def suffixes(file: InputFile) -> list[str]:
    """The suffixes of its name, in lower case, such as `['.csv', '.gz']`."""
    return [suffix.lower() for suffix in PurePosixPath(str(file)).suffixes]


def partition_columns(file: InputFile) -> Mapping[str, bytes]:
    """The columns that the folders above a file give it: `day` for `logs/day=2017-11-06/part-0.parquet`.

    As Apache Hive lays out tables: `%` and two hex digits are a byte, its word for null is a missing value.
    """
    columns = {}
    for part in os.path.dirname(file.location).split("/"):
        name, equals, value = part.partition("=")
        if equals and name:
            columns[unquote(name)] = b"" if value == _NO_VALUE else os.fsencode(unquote(value))
    return columns
