"""Compiled kernels on disk: never older than the sources, kept where they can be, and not kept for ever."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.ps.redis_servers import eventually

pytestmark = pytest.mark.xdist_group("numba-cache")  # they share `forks`

ROOT = Path(__file__).parents[3]
GENERIC = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}
"""What Numba compiles for is fixed once it has compiled; `forks` does so before it loads anything of ours."""
INLINED = "ctr/synth/kernels.py"
CALLER = """
from ctr.jit import njit
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
COMPILE = """
import numba, numpy as np
from ctr.synth.kernels import mix
assert mix(np.uint64(3)) == {expected}
negative = numba.njit(lambda x: ~mix(x))
print(~negative(np.uint64(3)) & (2**64 - 1), len(mix.stats.cache_misses))
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


FORKS = """
import contextlib, io, json, os, sys, traceback
import numba
numba.njit(lambda x: x)(1)  # loads what compiles
for line in sys.stdin:
    folder, code, environment, result = json.loads(line)
    if os.fork():
        continue
    os.chdir(folder)
    os.environ.update(environment)
    out, error = io.StringIO(), ""
    try:
        with contextlib.redirect_stdout(out):
            exec(code, {})
    except BaseException:
        error = traceback.format_exc()
    with open(result + ".draft", "w") as file:
        json.dump([out.getvalue(), error], file)
    os.rename(result + ".draft", result)
    os._exit(0)
"""


@pytest.fixture(scope="module")
def forks() -> Iterator[subprocess.Popen[str]]:
    """A process that has loaded Numba but nothing of ours, and forks itself (see `start`)."""
    environment = {**os.environ, **GENERIC, "NUMBA_CACHE_DIR": "", "OPENBLAS_NUM_THREADS": "1"}
    words = [sys.executable, "-c", FORKS]
    with subprocess.Popen(words, stdin=subprocess.PIPE, text=True, env=environment) as process:
        yield process
        process.kill()


@dataclass(frozen=True)
class Copy:
    """The packages of this project in a folder of their own, and processes that find them there."""

    folder: Path
    forks: subprocess.Popen[str]

    def start(self, code: str, **environment: str) -> Path:
        """Run `code` in a process of its own; where it will say what came of that."""
        result = self.folder / f"result-{len(list(self.folder.glob('result-*.asked')))}"
        Path(f"{result}.asked").touch()
        assert self.forks.stdin is not None
        request = json.dumps([str(self.folder), code, environment, str(result)])
        print(request, file=self.forks.stdin, flush=True)
        return result

    def run(self, code: str = CALL, **environment: str) -> str:
        """What `code` prints in such a process."""
        return printed(self.start(code, **environment))


@pytest.fixture
def copy(tmp_path: Path, forks: subprocess.Popen[str]) -> Copy:
    """The packages of this project in a folder of their own, and a kernel that inlines another module's."""
    for package in ("ctr", "features", "ps"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "ctr" / "caller_kernels.py").write_text(CALLER)
    return Copy(tmp_path, forks)


def printed(result: Path) -> str:
    """What a process has printed until it ended."""
    eventually(result.exists, 120)
    out, error = json.loads(result.read_text())
    assert not error, error
    return str(out).strip()


def run_read_only(copy: Copy, folder: Path, code: str, **environment: str) -> str:
    """What `code` prints in a process of its own, which cannot write to a folder."""
    read_only = f'mount --bind {folder} {folder} && mount -o remount,ro,bind {folder} && exec "$@"'
    words = ["unshare", "--mount", "sh", "-c", read_only, "sh", sys.executable, "-c", code]
    environment = {**os.environ, **GENERIC, "NUMBA_CACHE_DIR": "", **environment}
    done = subprocess.run(
        words, cwd=copy.folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def caches(folder: Path) -> set[Path]:
    return {path.parent for path in folder.rglob("*caller_kernels.parity*.nbc")}


def test_of_processes_that_need_a_kernel_at_once_one_compiles_it(copy: Copy) -> None:
    processes = [copy.start(CALL_WHEN_TOLD) for _ in range(2)]
    eventually(lambda: len(list(copy.folder.glob("ready-*"))) == 2, 120)
    (copy.folder / "go").touch()
    assert sorted(map(printed, processes)) == ["0", "1"]


@pytest.mark.parametrize("chosen", ["", "generic"])
def test_kernels_are_compiled_for_common_processors_unless_another_is_chosen(chosen: str) -> None:
    code = (
        "import ctr.jit.cache, numba, platform; from llvmlite import binding;"
        "features = binding.get_host_cpu_features();"
        "fits = platform.machine() == 'x86_64' and features['avx2'] and features['fma'];"
        "print(numba.config.CPU_NAME, 'x86-64-v3' if fits else None)"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_CPU")}
    if chosen:
        environment["NUMBA_CPU_NAME"] = chosen
    words = [sys.executable, "-c", code]
    said = subprocess.run(words, env=environment, cwd=ROOT, capture_output=True, text=True, check=True)
    name, expected = said.stdout.split()
    assert name == (chosen or expected)


def test_a_kernel_is_compiled_again_when_one_that_it_calls_has_changed(copy: Copy) -> None:
    before = copy.run()
    (old,) = caches(copy.folder)
    assert old.parent == copy.folder / "ctr" / "__pycache__"

    source = (copy.folder / INLINED).read_text()
    last = "return np.uint64(x ^ (x >> np.uint64(31)))"
    assert source.count(last) == 1
    (copy.folder / INLINED).write_text(source.replace(last, last + " ^ np.uint64(1)"))
    assert {before, copy.run()} == {"0", "1"}
    assert len(caches(copy.folder)) == 2


def test_a_kernel_from_the_cache_can_be_part_of_one_that_is_compiled(copy: Copy) -> None:
    expected = copy.run("import numpy as np; from ctr.synth.kernels import mix; print(mix(np.uint64(3)))")
    assert copy.run(COMPILE.format(expected=expected)).split() == [expected, "0"]


def test_a_kernel_that_only_kernels_call_is_not_kept_by_itself(copy: Copy) -> None:
    copy.run()
    assert caches(copy.folder)
    assert not list(copy.folder.rglob("kernels.mix*.nb?"))


def test_a_kernel_in_a_file_that_the_cache_does_not_look_at_is_refused(copy: Copy) -> None:
    (copy.folder / "ctr" / "caller_kernels.py").rename(copy.folder / "ctr" / "caller.py")
    result = copy.start("import ctr.caller")
    with pytest.raises(AssertionError, match="holds kernels: name it"):
        printed(result)


def test_outdated_kernels_are_removed_unless_a_process_may_still_run_on_them(copy: Copy) -> None:
    kept, removed, other = (
        copy.folder / "ctr" / "__pycache__" / name for name in ("kernels-1", "kernels-2", "other")
    )
    long_ago = time.time() - 7 * 24 * 3600
    for folder in (kept, removed, other):
        folder.mkdir(parents=True)
        (folder / "kernel.nbi").write_bytes(b"compiled")
    for folder in (removed, other):
        os.utime(folder, (long_ago, long_ago))
    copy.run()
    assert (kept.exists(), removed.exists(), other.exists()) == (True, False, True)


def test_kernels_that_cannot_be_kept_beside_the_source_are_kept_for_the_user(copy: Copy) -> None:
    (copy.folder / "ctr" / "__pycache__").write_text("in the way, as a read-only folder would be")
    cache = copy.folder / "cache"
    result = copy.run(XDG_CACHE_HOME=str(cache))
    (folder,) = caches(copy.folder)
    assert folder.is_relative_to(cache)
    times = {path: path.stat().st_mtime_ns for path in cache.rglob("*.nb?")}
    assert copy.run(XDG_CACHE_HOME=str(cache)) == result
    assert {path: path.stat().st_mtime_ns for path in cache.rglob("*.nb?")} == times


def test_kernels_beside_a_source_that_cannot_be_written_to_are_loaded(copy: Copy) -> None:
    """Those that a wheel brings; what it lacks is kept for the user."""
    (copy.folder / "go").touch()
    assert copy.run(CALL_WHEN_TOLD) == "1"
    source, cache = copy.folder / "ctr", copy.folder / "cache"
    assert run_read_only(copy, source, CALL_WHEN_TOLD, XDG_CACHE_HOME=str(cache)) == "0"
    assert not list(cache.rglob("*.nb?"))
    other = "import numpy as np; from ctr.synth.kernels import mix; mix(np.uint64(3))"
    run_read_only(copy, source, other, XDG_CACHE_HOME=str(cache))
    assert len(list(cache.rglob("kernels.mix*.nbc"))) == 1


def test_other_peoples_kernels_stay_where_numba_keeps_them(copy: Copy) -> None:
    (copy.folder / "theirs.py").write_text(
        "import numba\nimport ctr.synth.kernels\n@numba.njit(cache=True)\ndef twice(x):\n    return 2 * x\n"
    )
    assert copy.run("import theirs; print(theirs.twice(4))") == "8"
    assert [path.parent.name for path in copy.folder.rglob("theirs.twice*.nbc")] == ["__pycache__"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a folder read-only for root")
def test_kernels_in_a_read_only_folder_are_loaded_and_others_compiled(copy: Copy) -> None:
    cache = copy.folder / "cache"
    cache.mkdir()
    copy.run(NUMBA_CACHE_DIR=str(cache))
    code = (
        "import numpy as np; from ctr import caller_kernels; from ctr.jit import COMPILATION;"
        "from ctr.synth.kernels import mix; caller_kernels.parity(np.uint64(0)); print(COMPILATION.begun);"
        "mix(np.uint64(3)); print(COMPILATION.begun)"
    )
    environment = {"NUMBA_CACHE_DIR": str(cache), "XDG_CACHE_HOME": str(copy.folder / "unused")}
    assert run_read_only(copy, cache, code, **environment).split() == ["0", "1"]
