"""Compiled kernels on disk: never older than the sources, kept where they can be, and not kept for ever."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.ps.redis_servers import eventually

ROOT = Path(__file__).parents[2]
INLINED = "ctr/synth/kernels.py"
CALLER = """
from ctr.numba_cache import njit
from ctr.synth.kernels import mix

@njit(nogil=True, cache=True)
def parity(x):
    return mix(x) & 1
"""
CALL = """
import numpy as np
from ctr import caller_kernels
print(caller_kernels.parity(np.uint64(0)))
"""
CALL_WHEN_TOLD = """
import os
import time
from pathlib import Path
import numpy as np
from ctr import caller_kernels
Path(f"ready-{os.getpid()}").touch()
while not Path("go").exists():
    time.sleep(0.001)
caller_kernels.parity(np.uint64(0))
print(sum(caller_kernels.parity.stats.cache_misses.values()))
"""


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The packages of this project in a folder of their own, and a kernel that inlines another module's."""
    for package in ("ctr", "features", "ps"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "ctr" / "caller_kernels.py").write_text(CALLER)
    return tmp_path


def start(folder: Path, code: str, **environment: str) -> subprocess.Popen[str]:
    """A process that finds our packages in `folder`."""
    return subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=folder,
        env={**os.environ, "NUMBA_CACHE_DIR": "", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def printed(process: subprocess.Popen[str]) -> str:
    """What it prints until it ends."""
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return out.strip()


def run(folder: Path, code: str = CALL, **environment: str) -> str:
    """What `code` prints in such a process."""
    return printed(start(folder, code, **environment))


def caches(folder: Path) -> set[Path]:
    return {path.parent for path in folder.rglob("*caller_kernels.parity*.nbc")}


def test_of_processes_that_need_a_kernel_at_once_one_compiles_it(copy: Path) -> None:
    processes = [start(copy, CALL_WHEN_TOLD) for _ in range(2)]
    eventually(lambda: len(list(copy.glob("ready-*"))) == 2, 120)
    (copy / "go").touch()
    assert sorted(map(printed, processes)) == ["0", "1"]


def test_a_kernel_is_compiled_again_when_one_that_it_calls_has_changed(copy: Path) -> None:
    before = run(copy)
    (old,) = caches(copy)
    assert old.parent == copy / "ctr" / "__pycache__"

    source = (copy / INLINED).read_text()
    last = "return np.uint64(x ^ (x >> np.uint64(31)))"
    assert source.count(last) == 1
    (copy / INLINED).write_text(source.replace(last, last + " ^ np.uint64(1)"))
    assert {before, run(copy)} == {"0", "1"}
    assert len(caches(copy)) == 2


def test_outdated_kernels_are_removed_unless_a_process_may_still_run_on_them(copy: Path) -> None:
    kept, removed, other = (
        copy / "ctr" / "__pycache__" / name for name in ("kernels-1", "kernels-2", "other")
    )
    long_ago = time.time() - 7 * 24 * 3600
    for folder in (kept, removed, other):
        folder.mkdir(parents=True)
        (folder / "kernel.nbi").write_bytes(b"compiled")
    for folder in (removed, other):
        os.utime(folder, (long_ago, long_ago))
    run(copy, "import ctr.caller_kernels")
    assert (kept.exists(), removed.exists(), other.exists()) == (True, False, True)


def test_kernels_that_cannot_be_kept_beside_the_source_are_kept_for_the_user(copy: Path) -> None:
    (copy / "ctr" / "__pycache__").write_text("in the way, as a read-only folder would be")
    cache = copy / "cache"
    result = run(copy, XDG_CACHE_HOME=str(cache))
    (folder,) = caches(copy)
    assert folder.is_relative_to(cache)
    times = {path: path.stat().st_mtime_ns for path in cache.rglob("*.nb?")}
    assert run(copy, XDG_CACHE_HOME=str(cache)) == result
    assert {path: path.stat().st_mtime_ns for path in cache.rglob("*.nb?")} == times


def test_other_peoples_kernels_stay_where_numba_keeps_them(copy: Path) -> None:
    (copy / "theirs.py").write_text(
        "import numba\nimport ctr.synth.kernels\n@numba.njit(cache=True)\ndef twice(x):\n    return 2 * x\n"
    )
    assert run(copy, "import theirs; print(theirs.twice(4))") == "8"
    assert [path.parent.name for path in copy.rglob("theirs.twice*.nbc")] == ["__pycache__"]
