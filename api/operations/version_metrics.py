"""`VersionMetrics`: metrics of the served versions and of their predictions, for Prometheus."""

from __future__ import annotations

import mmap
import os
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from threading import Lock

import numpy as np
from numpy.typing import NDArray
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 0.9, 1.0)
SAMPLE = 8
"""The most predictions counted per request."""
_SUFFIX = ".predictions"


class VersionMetrics(Collector):
    """Time series by version id, which end when the version is no longer served.

    Several processes count in files of a shared folder, one per process and version. The library's own files
    would grow with every version, as nothing can be removed from them.
    """

    def __init__(self, folder: Path | None) -> None:
        """`folder`: shared by several processes; None: there is one process."""
        self._folder = folder
        self._lock = Lock()
        self.served: tuple[str, ...] = ()
        """The ids of the versions that are served now."""
        self._created: dict[str, float] = {}
        self._histograms: dict[str, NDArray[np.float64]] = {}
        """By version: this process's predictions per bucket, those above the last bucket, and their sum."""

    def serve(self, versions: Iterable[str]) -> None:
        """Set the ids of the versions that are served now."""
        self.served = tuple(dict.fromkeys(versions))
        for version in self._histograms.keys() - set(self.served):  # also those that were tried and failed
            del self._histograms[version]
            self._created.pop(version, None)
            if self._folder is not None:
                _remove_files(self._folder, version)

    def predicted_by(self, version: str, created: str) -> Callable[[NDArray[np.float32]], None]:
        """Counts the predictions of a version for a request; `created`: ISO 8601, or empty."""
        with suppress(ValueError):
            self._created[version] = datetime.fromisoformat(created).timestamp()
        if version not in self._histograms:
            self._histograms[version] = self._new_histogram(version)
        histogram, lock = self._histograms[version], self._lock

        def count(predictions: NDArray[np.float32]) -> None:
            sample = predictions[:: -(-predictions.size // SAMPLE) or 1].tolist()
            with lock:  # large requests are answered in threads
                for prediction in sample:
                    histogram[bisect_left(BUCKETS, prediction)] += 1
                histogram[-1] += sum(sample)

        return count

    def collect(self) -> Iterator[Metric]:
        """The metrics of the served versions, over all processes."""
        served = GaugeMetricFamily("ctr_model", "1 for each version served.", labels=["id"])
        created = GaugeMetricFamily(
            "ctr_model_created_seconds", "When a version was made, in seconds since 1970.", labels=["id"]
        )
        predictions = HistogramMetricFamily(
            "ctr_prediction",
            f"Predictions of each version: of up to {SAMPLE} rows of each request.",
            labels=["id"],
        )
        bounds = [*map(floatToGoString, BUCKETS), "+Inf"]
        for version in sorted(self.served):
            served.add_metric([version], 1)
            if version in self._created:
                created.add_metric([version], self._created[version])
            if version in self._histograms:
                *counts, total = self._histogram_of_all(version)
                buckets = list(zip(bounds, np.cumsum(counts).tolist(), strict=True))
                predictions.add_metric([version], buckets, total)
        yield from (served, created, predictions)

    def _new_histogram(self, version: str) -> NDArray[np.float64]:
        size = len(BUCKETS) + 2
        if self._folder is None:
            return np.zeros(size)
        with (self._folder / f"{version}-{os.getpid()}{_SUFFIX}").open("w+b") as file:
            file.truncate(8 * size)
            return np.frombuffer(mmap.mmap(file.fileno(), 8 * size), np.float64)

    def _histogram_of_all(self, version: str) -> NDArray[np.float64]:
        if self._folder is None:
            return self._histograms[version]
        total = np.zeros(len(BUCKETS) + 2)
        for path in _files_of(self._folder, version):
            with suppress(OSError, ValueError):  # its process is removing it, or creating it
                total += np.fromfile(path)
        return total


def _files_of(folder: Path, version: str) -> list[Path]:
    return list(folder.glob(f"{version}-*{_SUFFIX}"))


def _remove_files(folder: Path, version: str) -> None:
    """Remove the files of this process, and of dead processes."""
    for path in _files_of(folder, version):
        pid = int(path.stem.rpartition("-")[2])
        if pid == os.getpid() or not _is_alive(pid):
            path.unlink(missing_ok=True)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
