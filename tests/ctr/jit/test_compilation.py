"""A user is told that kernels are compiled, and rates are not of that."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ctr.jit import COMPILATION
from ctr.progress import progress

ROOT = Path(__file__).parents[3]
COMPILES = """
import sys, time
import numpy as np
from ctr.jit import show_compilation
show_compilation()
from ctr.progress import progress
from ctr.synth.kernels import mix
if sys.argv[1] == "bar":
    with progress("training") as report:
        report(100, 0.1)
        mix(np.uint64(3))
        time.sleep(0.3)  # in which the bar is drawn anew, three times
else:
    mix(np.uint64(3))
print("the end")
"""


def on_a_terminal(code: str, cache: Path, *words: str) -> str:
    """What a program of ours writes to a terminal, with kernels that are not in the cache."""
    reader, terminal = pty.openpty()
    environment = os.environ | {"NUMBA_CACHE_DIR": str(cache), "PYTHONPATH": str(ROOT), "TERM": "xterm"}
    process = subprocess.Popen(
        [sys.executable, "-c", code, *words], stdout=terminal, stderr=terminal, env=environment
    )
    os.close(terminal)
    shown = b""
    try:
        while more := os.read(reader, 1 << 16):
            shown += more
    except OSError:  # its end, as Linux has it
        pass
    finally:
        os.close(reader)
    assert process.wait() == 0, shown
    return shown.decode()


def test_a_terminal_shows_how_many_until_they_are_done(tmp_path: Path) -> None:
    shown = on_a_terminal(COMPILES, tmp_path, "none")
    texts = re.findall(r"compiling kernels \(first run only\): (\d+) …", shown)
    assert texts
    assert texts[0] == "1"
    assert shown.endswith("\r\x1b[Kthe end\r\n")  # nothing of it stays
    assert "compiling" not in on_a_terminal(COMPILES, tmp_path, "none")


def test_where_there_is_a_bar_it_is_shown_there(tmp_path: Path) -> None:
    shown = on_a_terminal(COMPILES, tmp_path, "bar")
    assert "compiling kernels (first run only): 1" in shown
    assert "1 …" not in shown


def test_rates_leave_out_the_time_of_compiling(capsys: pytest.CaptureFixture[str]) -> None:
    compiled = 3.0  # s
    with progress("training") as report:
        COMPILATION.begin()
        time.sleep(compiled)
        COMPILATION.end()
        began, line = time.monotonic(), ""
        while "rows/s" not in line:  # on a slow machine, the compiling is told of first
            report(1_000_000, 0.5)
            line = capsys.readouterr().err
        seconds = time.monotonic() - began
    (rate,) = re.findall(r"([\d,]+) rows/s", line)
    assert seconds >= 0.9  # a second of work, as without compiling
    assert float(rate.replace(",", "")) > 1_000_000 / (seconds + compiled / 2)


def test_what_is_compiled_after_the_first_rows_counts(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("training") as report:
        report(1, 0.1)
        COMPILATION.begin()
        try:
            time.sleep(1.2)  # in which other threads go on
            report(1_000_000, 0.5)
        finally:
            COMPILATION.end()
    (rate,) = re.findall(r"([\d,]+) rows/s", capsys.readouterr().err)
    assert float(rate.replace(",", "")) < 1_000_000 / 1.2


FAILS = """
import sys
from ctr.jit import COMPILATION
from ctr.synth.kernels import mix
try:
    mix("text")
except Exception as error:
    print(type(error).__name__)
print(COMPILATION.begun, COMPILATION.is_running)
"""
UNREAD = """
import sys, time
from ctr.jit import COMPILATION, show_compilation
show_compilation()
if sys.argv[1:]:
    sys.stderr.close()
COMPILATION.begin()
time.sleep(1.1)
COMPILATION.end()
print("the end")
"""


def test_a_kernel_that_cannot_be_compiled_is_no_longer_being_compiled(tmp_path: Path) -> None:
    shown = on_a_terminal(FAILS, tmp_path)
    assert shown.splitlines() == ["TypingError", "1 False"]


@pytest.mark.parametrize("words", [[], ["closed"]])
def test_a_program_goes_on_where_nobody_reads_that_it_compiles(words: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-c", UNREAD, *words],
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=writer,
            check=False,
        )
    finally:
        os.close(writer)
    assert done.stdout == b"the end\n"
    assert done.returncode == 0
