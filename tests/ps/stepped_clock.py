"""`SteppedClock`: a wall clock for redis-servers of tests, which is stepped while they run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from ctr.errors import StoreError

_LIBRARY = "faketime/libfaketimeMT.so.1"
_FOLDERS = ("/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/lib/*-linux-gnu*")
_SHARED = Path("/dev/shm")


class SteppedClock:
    """The system's clock plus an offset, which `step` sets.

    It is libfaketime, loaded before the C library. Only the time of day differs, not the monotonic clock, by
    which Redis measures timeouts and pauses. Raises StoreError when libfaketime is not installed.
    """

    def __init__(self, file: Path) -> None:
        """`file` holds the offset; it is created, and must exist as long as the servers run."""
        self._file = file
        library = find_libfaketime()
        self.step(0)
        self.environment: Mapping[str, str] = {
            "LD_PRELOAD": str(library),
            "FAKETIME_TIMESTAMP_FILE": str(file.absolute()),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
        """What a process has to be started with to see this clock: `BreakableRedis(environment=…)`."""

    def step(self, offset_s: float) -> None:
        """From now on the clock is so far ahead of the system's, or behind it: 0 sets it right again."""
        new = self._file.with_name(f"{self._file.name}.new")
        new.write_text(f"{offset_s:+.3f}s\n")
        os.replace(new, self._file)

    def clean(self) -> None:
        """Remove the shared memory that libfaketime made for processes which were killed since."""
        for path in _SHARED.glob("*faketime_*_*"):
            if not Path("/proc", path.name.rpartition("_")[2]).exists():
                path.unlink(missing_ok=True)


def find_libfaketime() -> Path:
    """The library where systems' packages put it. Raises StoreError, with the remedy, when it is missing."""
    for folder in _FOLDERS:
        for path in sorted(Path("/").glob(f"{folder.lstrip('/')}/{_LIBRARY}")):
            return path
    raise StoreError(
        "libfaketime was not found, which steps the clocks of redis-servers: install your system's package "
        "(apt-get install faketime)"
    )
