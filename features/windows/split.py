"""Windows over rows that several tasks read: each task notes its rows; features are made per bucket of keys.

There are three steps, with a task per split, a task per bucket of keys, and again a task per split:

1. `WindowNotes` notes key, time and click of the rows of a split, and the latest time before each.
2. `bucket_features` goes through the rows of some keys, in order, as `Windows` does with all keys.
3. `NotedWindows` gives the rows of a split the features from step 2.

No step knows what a row's features depend on beyond its own key: see `needs_totals`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from ctr.features.columns import Buckets
from ctr.features.spec import FeatureSpec, Window
from ctr.features.text import Cells, RowStatus
from ctr.features.windows.ring_kernels import Layout
from ctr.features.windows.row_kernels import NO_KEY, WindowRows
from ctr.features.windows.table import WindowTable, layout_of
from ctr.features.windows.windows import Windows, rows_of_windows

_BEFORE = -(1 << 61)
"""The latest time before the first row, like `WindowTable.end`."""


def needs_totals(spec: FeatureSpec) -> Window | None:
    """A window whose features depend on rows of all keys, if any: one with rates, see `Window.strength`."""
    return next((window for window in spec.windows if "rate" in window.features), None)


class WindowNotes:
    """A `History` that notes rows and gives them no features."""

    def __init__(self, spec: FeatureSpec) -> None:
        self._spec = spec
        self._notes: list[list[tuple[NDArray[Any], ...]]] = [[] for _ in spec.windows]
        self.rows = 0
        """The number of rows so far, good or bad."""
        self.latest = [_BEFORE] * len(spec.windows)
        """Per window, the latest time of a row that counts."""

    def buckets(
        self, cells: Cells, status: NDArray[np.uint8], columns: Sequence[str], rows: slice, *, take_in: bool
    ) -> list[Buckets]:
        features = []
        for k, each in enumerate(rows_of_windows(self._spec, cells, status, columns, rows)):
            before = latest_before(each.times, each.counts, self.latest[k])
            self.latest[k] = int(before[-1])
            noted = np.flatnonzero(each.counts & (each.keys != NO_KEY))
            arrays = each.keys, each.times, each.clicks, before[:-1]
            self._notes[k].append((noted + self.rows, *(array[noted] for array in arrays)))
            size = each.keys.size
            nothing = Buckets(np.zeros(size, np.uint64), np.zeros(size, np.bool_), each.problem)
            features += [nothing] * len(self._spec.windows[k].fields)
        self.rows += size
        return features

    def write(self, path: Path, buckets: int) -> None:
        """Writes the notes by bucket of keys, each in row order. Raises OSError."""
        arrays: dict[str, NDArray[Any]] = {}
        for k, notes in enumerate(self._notes):
            none = (np.empty(0, kind) for kind in (np.int64, np.uint64, np.int64, np.int8, np.int64))
            rows, keys, times, clicks, before = map(np.concatenate, zip(tuple(none), *notes, strict=True))
            of_keys = (keys % np.uint64(buckets)).astype(np.int64)
            order = np.argsort(of_keys, kind="stable")
            arrays[f"{k}.starts"] = np.searchsorted(of_keys[order], np.arange(buckets + 1))
            for name, array in zip(_NOTED, (rows, keys, times, clicks, before), strict=True):
                arrays[f"{k}.{name}"] = array[order]
        save_file(arrays, path)


_NOTED = ("rows", "keys", "times", "clicks", "before")


def latest_before(times: NDArray[np.int64], counts: NDArray[np.bool_], latest: int) -> NDArray[np.int64]:
    """int64[n + 1]: the latest time of rows that count, before each row and after the last; initially
    `latest`."""
    seen = np.concatenate([np.array([latest]), np.where(counts, times, latest)])
    return np.maximum.accumulate(seen)


def bucket_features(
    windows: Windows,
    notes: Sequence[Path],
    bucket: int,
    buckets: int,
    latest: Sequence[Sequence[int]],
    out: Path,
) -> None:
    """Writes the features of the rows of a bucket of keys, and the state of these keys after the last row.

    `windows`: the state of all keys before the first row; expired keys are dropped from it. `notes`: the
    files of the splits, in order; `latest[s][k]`: the latest time of a row that counts in window `k`, before
    split `s`; the last entry: after all splits. Raises OSError.
    """
    arrays: dict[str, NDArray[Any]] = {}
    for k, whole in enumerate(windows.tables):
        table = _of_bucket(whole, bucket, buckets)
        rows, words, present, starts = [], [], [], [0]
        for path, before_split in zip(notes, latest, strict=False):
            noted = _slices(path, k, bucket)
            before = np.maximum(noted["before"], before_split[k])
            in_time = noted["times"] >= before - table.layout.numbers.slack
            keys, times, clicks = (noted[name][in_time] for name in ("keys", "times", "clicks"))
            timed, problem = np.ones(keys.size, np.bool_), np.zeros(keys.size, np.uint8)
            of_keys = WindowRows(keys, times, timed, problem, clicks)
            buckets_of_rows, has_bucket, _ = table.features(of_keys, take_in=True)
            rows.append(noted["rows"][in_time])
            words.append(buckets_of_rows.T)
            present.append(has_bucket.T)
            starts.append(starts[-1] + keys.size)
        table.reach(latest[-1][k])
        arrays |= {f"{k}.known.{name}": array for name, array in table.arrays().items()}
        arrays |= {
            f"{k}.starts": np.array(starts),
            f"{k}.rows": np.concatenate(rows),
            f"{k}.words": np.ascontiguousarray(np.concatenate(words)),
            f"{k}.present": np.ascontiguousarray(np.concatenate(present)),
        }
    save_file(arrays, out)


def _of_bucket(whole: WindowTable, bucket: int, buckets: int) -> WindowTable:
    """A table with the keys of a bucket; only the first bucket has the totals."""
    arrays, table = whole.arrays(), WindowTable(whole.layout)
    empty = table.arrays()
    for size, first in (("narrow", 0), ("wide", 1)):
        mine = arrays[f"{size}.keys"] % np.uint64(buckets) == bucket
        mine[:first] = bucket == 0
        for name in (name for name in arrays if name.startswith(f"{size}.")):
            begin = empty[name][: 0 if bucket == 0 else first]
            arrays[name] = np.concatenate([begin, arrays[name][mine]])
    table.restore(arrays)
    return table


def write_copy(windows: Windows, path: Path) -> None:
    """Writes the state of windows, for `read_copy`. Raises OSError."""
    arrays = [windows.arrays(k) for k in range(len(windows.tables))]
    save_file({f"{k}.{name}": array for k in range(len(arrays)) for name, array in arrays[k].items()}, path)


def read_copy(windows: Windows, path: Path) -> None:
    """Replaces the state of windows of the same spec by that in the file."""
    content = load_file(path)
    for k in range(len(windows.tables)):
        prefix = f"{k}."
        arrays = content.items()
        windows.restore(
            k, {name.removeprefix(prefix): each for name, each in arrays if name.startswith(prefix)}
        )


def take_buckets(windows: Windows, files: Sequence[Path]) -> None:
    """Replaces the state of windows by that of the keys of all buckets."""
    for k, window in enumerate(windows.spec.windows):
        buckets = []
        for path in files:
            with safe_open(path, "numpy") as file:
                names = file.keys()
                mine = (name for name in names if name.startswith(f"{k}.known."))
                buckets.append({name.removeprefix(f"{k}.known."): file.get_tensor(name) for name in mine})
        windows.restore(k, _joined(layout_of(window), buckets))


def _joined(layout: Layout, buckets: Sequence[Mapping[str, NDArray[Any]]]) -> dict[str, NDArray[Any]]:
    """The arrays of a table with the keys of all `buckets`."""
    time = max(int(arrays["wide.last"][0]) for arrays in buckets)
    totals = []
    for arrays in buckets:
        table = WindowTable(layout)
        none = {name: array[: name.startswith("wide")] for name, array in arrays.items() if name != "latest"}
        table.restore({**none, "latest": arrays["latest"]})
        table.move_totals(time)
        totals.append(table.arrays())
    joined = {"latest": buckets[0]["latest"]}
    for size, first in (("narrow", 0), ("wide", 1)):
        keys = np.concatenate([arrays[f"{size}.keys"][first:] for arrays in buckets])
        order = np.argsort(keys)
        for name in (name for name in buckets[0] if name.startswith(f"{size}.")):
            array = np.concatenate([arrays[name][first:] for arrays in buckets])[order]
            total = totals[0][name][:first]
            if name not in (f"{size}.keys", f"{size}.last"):
                total = np.sum([each[name][:first] for each in totals], axis=0, dtype=array.dtype)
            joined[name] = np.concatenate([total, array])
    return joined


class NotedWindows:
    """A `History` for the rows of one split, with the features that `bucket_features` wrote."""

    def __init__(
        self, spec: FeatureSpec, files: Sequence[Path], split: int, rows: int, latest: Sequence[int]
    ) -> None:
        """`files`: of all buckets. Split number `split` has `rows` rows; `latest`: per window, the latest
        time of an earlier row that counts.
        """
        self._spec = spec
        self._layouts = [layout_of(window) for window in spec.windows]
        self._latest = list(latest)
        self._row = 0
        self._words = [np.zeros((rows, len(window.fields)), np.uint64) for window in spec.windows]
        self._present = [np.zeros(words.shape, np.bool_) for words in self._words]
        for path in files:
            for k in range(len(spec.windows)):
                of_bucket = _slices(path, k, split)
                self._words[k][of_bucket["rows"]] = of_bucket["words"]
                self._present[k][of_bucket["rows"]] = of_bucket["present"]

    def buckets(
        self, cells: Cells, status: NDArray[np.uint8], columns: Sequence[str], rows: slice, *, take_in: bool
    ) -> list[Buckets]:
        features = []
        for k, each in enumerate(rows_of_windows(self._spec, cells, status, columns, rows)):
            before = latest_before(each.times, each.counts, self._latest[k])
            self._latest[k] = int(before[-1])
            late = each.counts & (each.times < before[:-1] - self._layouts[k].numbers.slack)
            problem = np.where(late, np.uint8(RowStatus.LATE), each.problem)
            mine = slice(self._row, self._row + each.keys.size)
            words, present = self._words[k][mine].T, self._present[k][mine].T
            features += [Buckets(*of_field, problem) for of_field in zip(words, present, strict=True)]
        self._row += each.keys.size
        return features


_TYPES = {"U64": np.uint64, "I64": np.int64, "I8": np.int8, "BOOL": np.bool_}


def _slices(path: Path, k: int, number: int) -> dict[str, NDArray[Any]]:
    """The entries of window `k`'s arrays in a file that belong to this bucket or split."""
    prefix, slices = f"{k}.", {}
    with safe_open(path, "numpy") as file:
        first, last = file.get_slice(f"{k}.starts")[number : number + 2].tolist()
        names = file.keys()
        for name in names:
            if not name.startswith(prefix) or name == f"{k}.starts" or ".known." in name:
                continue
            whole = file.get_slice(name)
            # safetensors has no slices without elements.
            empty = np.empty((0, *whole.get_shape()[1:]), _TYPES[whole.get_dtype()])
            slices[name.removeprefix(prefix)] = whole[first:last] if first < last else empty
    return slices
