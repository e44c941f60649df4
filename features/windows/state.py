"""How windows are stored: `WindowRecords` as bytes by key, for Redis, and files in a data set or model."""

from __future__ import annotations

import json
import re
import shutil
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save_file

from ctr.errors import DataError
from ctr.features.folder import MANIFEST, read_verified
from ctr.features.spec import FeatureSpec
from ctr.features.text import Cells
from ctr.features.windows.ring_kernels import KEY, LAST, LOOKED, TOTALS, Layout
from ctr.features.windows.table import WindowTable, layout_of
from ctr.features.windows.windows import Windows

_FIRST_CAPACITY = 16
"""The number of keys for which a new table has space."""
_AT_A_TIME = 1 << 16
_TIME = struct.Struct("<q")


class WindowRecords:
    """Writes the records of a spec's windows as bytes, and makes `Windows` from some of them.

    A record is the time of a key's last row, the sums of a half-life, if any, and the counters (see
    `ring_kernels`), of one byte each, or four if one is above 255. Its name is two bytes for the window, then
    the key. The totals are the latest time of each window and its record of all keys, with counters of four
    bytes. The totals, and the records of all keys of some rows, suffice to make `Windows` for these rows.
    """

    def __init__(self, spec: FeatureSpec) -> None:
        self._layouts = [layout_of(window) for window in spec.windows]
        self._nothing = Windows(spec, [WindowTable(layout, _FIRST_CAPACITY) for layout in self._layouts])
        self._forms = [
            _Form(layout, table) for layout, table in zip(self._layouts, self._nothing.tables, strict=True)
        ]

    def names_in(
        self, cells: Cells, status: NDArray[np.uint8], columns: Sequence[str], rows: slice
    ) -> list[bytes]:
        """The names of the records that these rows read and change."""
        return [
            name
            for k, keys in enumerate(self._nothing.keys_in(cells, status, columns, rows))
            for name in _names(k, keys)
        ]

    def forgotten(self, totals: bytes, records: Iterable[tuple[bytes, bytes]]) -> list[bytes]:
        """The names of records that have expired for every later row, by the time in `totals`.

        That is event time, which may pause, or pass at any speed.
        """
        oldest, at = [], 0
        for form, layout in zip(self._forms, self._layouts, strict=True):
            (latest,) = _TIME.unpack_from(totals, at)
            oldest.append(latest - int(layout.numbers.expires + layout.numbers.slack))
            at += form.totals_bytes
        return [name for name, value in records if _TIME.unpack_from(value)[0] < oldest[_window_of(name)]]

    def windows(self, totals: bytes, records: Mapping[bytes, bytes]) -> Windows:
        """Windows of these keys only. Raises ValueError for records of another spec."""
        spec = self._nothing.spec
        by_window: list[dict[bytes, bytes]] = [{} for _ in self._forms]
        for name, value in records.items():
            by_window[_window_of(name)][name] = value
        if len(totals) != sum(form.totals_bytes for form in self._forms):
            raise ValueError("the totals are not those of these windows")
        tables, at = [], 0
        for form, layout, of_window in zip(self._forms, self._layouts, by_window, strict=True):
            table = WindowTable(layout, _FIRST_CAPACITY)
            form.load(table, totals[at : at + form.totals_bytes], of_window)
            at += form.totals_bytes
            tables.append(table)
        return Windows(spec, tables)

    def totals(self, windows: Windows) -> bytes:
        """The totals of all keys."""
        return b"".join(map(_totals_of, windows.tables))

    def records(self, windows: Windows) -> Iterator[tuple[bytes, bytes]]:
        """The name and value of each key's record; windows with the same content give the same records."""
        for k, (form, table) in enumerate(zip(self._forms, windows.tables, strict=True)):
            yield from form.records(k, table)


class _Form:
    """The records of a window as bytes."""

    def __init__(self, layout: Layout, table: WindowTable) -> None:
        narrow, wide = table.rows
        self._head = int(layout.numbers.head)
        self._columns = narrow.shape[1], wide.shape[1]
        self.totals_bytes = 8 * wide.shape[1]

    def load(self, table: WindowTable, totals: bytes, records: Mapping[bytes, bytes]) -> None:
        """Replaces the content of the table."""
        small, large = (8 * (columns - 1) for columns in self._columns)
        narrow = {name: value for name, value in records.items() if len(value) == small}
        wide = {name: value for name, value in records.items() if len(value) == large and large != small}
        if len(narrow) + len(wide) < len(records):
            raise ValueError("a record is not one of this window")
        rows = np.empty((LOOKED + 1 + len(wide), self._columns[1]), np.int64)
        rows[: LOOKED + 1] = 0
        rows[TOTALS, LAST:] = np.frombuffer(totals, np.int64, offset=8)
        _fill(rows[LOOKED + 1 :], wide)
        bytes_ = np.empty((len(narrow), self._columns[0]), np.int64)
        _fill(bytes_, narrow)
        (latest,) = _TIME.unpack_from(totals)
        table.adopt(latest, bytes_, rows)

    def records(self, k: int, table: WindowTable) -> Iterator[tuple[bytes, bytes]]:
        """The name and value of each record."""
        narrow, wide = table.rows
        for rows in _blocks(narrow):
            yield from _values(k, rows[rows[:, KEY] != 0])
        for rows in _blocks(wide[LOOKED + 1 :]):
            counters = rows[:, self._head :].view(np.uint32)
            is_small = counters.max(axis=1, initial=0) < 256  # these need not be wide any more
            counters = counters[is_small].astype(np.uint8).view(np.int64)
            yield from _values(k, np.concatenate([rows[is_small, : self._head], counters], axis=1))
            yield from _values(k, rows[~is_small])


def _window_of(name: bytes) -> int:
    return int.from_bytes(name[:2], "big")


def _totals_of(table: WindowTable) -> bytes:
    _, wide = table.rows
    return _TIME.pack(table.end) + wide[TOTALS, LAST:].tobytes()


def _fill(rows: NDArray[np.int64], records: Mapping[bytes, bytes]) -> None:
    """Writes records as rows."""
    if records:
        names = np.frombuffer(b"".join(records), np.uint8).reshape(len(records), 10)
        rows[:, KEY] = np.ascontiguousarray(names[:, 2:]).view(np.int64)[:, 0]
        rows[:, LAST:] = np.frombuffer(b"".join(records.values()), np.int64).reshape(len(records), -1)


def _blocks(rows: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    return (rows[first : first + _AT_A_TIME] for first in range(0, len(rows), _AT_A_TIME))


def _values(k: int, rows: NDArray[np.int64]) -> Iterator[tuple[bytes, bytes]]:
    """Rows as records."""
    content, size = rows[:, LAST:].tobytes(), 8 * (rows.shape[1] - 1)
    names = _names(k, rows[:, KEY])
    return ((name, content[i * size : (i + 1) * size]) for i, name in enumerate(names))


def _names(k: int, keys: NDArray[np.uint64] | NDArray[np.int64]) -> list[bytes]:
    content, window = keys.tobytes(), k.to_bytes(2, "big")
    return [window + content[i : i + 8] for i in range(0, len(content), 8)]


WINDOW_FILE = re.compile(r"window-[0-9]{2,}\.safetensors")
"""The names of the files of windows."""


def window_files(spec: FeatureSpec) -> list[str]:
    """The file names for the windows of `spec`."""
    return [f"window-{k:02d}.safetensors" for k in range(len(spec.windows))]


def write_windows(windows: Windows, folder: Path, beside: Path) -> list[str]:
    """Writes the files into `folder`, with the permissions of the file `beside`; returns their names.

    Raises OSError and SafetensorError.
    """
    names = window_files(windows.spec)
    for k, name in enumerate(names):
        save_file(windows.arrays(k), folder / name, {"window": _identity(windows.spec, k)})
        shutil.copymode(beside, folder / name)  # safetensors makes files that other users cannot read
    return names


def load_windows(spec: FeatureSpec, folder: Path) -> Windows:
    """The windows of `spec` from the files in the folder of a data set or model: see `read_windows`.

    Raises DataError also if files are missing, or are not those that the manifest names.
    """
    try:
        sums = json.loads((folder / MANIFEST).read_bytes()).get("sha256", {})
    except (OSError, ValueError, AttributeError) as error:
        problem = "there is no such folder"
        if folder.exists():
            problem = f"is neither a data set nor a model ({error})"
        raise DataError(
            f"{folder}: {problem}; give one that was made with the same windows as the spec's."
        ) from None

    def read(name: str) -> bytes:
        if name not in sums:
            raise DataError(
                f"{folder}: it has fewer windows than the spec; give one that was made with the same windows."
            )
        return read_verified(folder / name, sums[name], "make it again")

    return read_windows(spec, read, str(folder))


def read_windows(spec: FeatureSpec, read: Callable[[str], bytes], where: str) -> Windows:
    """The windows that were written for `spec`; `read` returns the content of a file by its name.

    Raises DataError, which begins with `where`, for damaged files and those of other windows.
    """
    windows = Windows(spec)
    for k, name in enumerate(window_files(spec)):
        content = read(name)
        try:
            header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
            identity = header["__metadata__"]["window"]
            if identity != _identity(spec, k):
                raise DataError(
                    f"{where}: {name} is of another window than {spec.windows[k].name!r} of the spec; to go"
                    f" on from it, windows and seed of both must be the same."
                )
            windows.restore(k, load(content))
        except (SafetensorError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"{where}: {name} cannot be read ({error}).") from error
    return windows


def identity_of(spec: FeatureSpec) -> str:
    """The settings that other windows must share for those of `spec` to continue from them: a JSON list."""
    return json.dumps([json.loads(_identity(spec, k)) for k in range(len(spec.windows))], sort_keys=True)


def difference(there: str, here: str) -> str:
    """How the settings of two identities differ, for messages."""
    before, now = json.loads(there), json.loads(here)
    if len(before) != len(now):
        return f"there are {len(before)} windows and here {len(now)}"
    return ", ".join(
        f"window {mine['name']!r}: {key} is {its.get(key)!r} there and {mine.get(key)!r} here"
        for its, mine in zip(before, now, strict=True)
        for key in mine
        if its.get(key) != mine[key]
    )


def _identity(spec: FeatureSpec, k: int) -> str:
    """The settings that two windows must share for one to continue from the other's files."""
    window = spec.windows[k].model_dump(mode="json", exclude={"time", "rate_edges", "strength", "format"})
    return json.dumps({"seed": spec.seed, **window}, sort_keys=True)
