"""Windows of data sets that several tasks build: features and what is known in the end, as of one process."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from ctr.features.dataset import manifest_of
from ctr.jobs.splits import tasks
from tests.command_line import Cli
from tests.ctr.datasets import rows_of_dataset

pytestmark = pytest.mark.xdist_group("splits")  # one process starts those of the tasks

SPEC = """
version: 1
source: {format: delimited, header: true, quote: false}
label: y
fields:
- {name: ip, type: category}
windows:
- {name: ip, key: [ip], time: t, format: unix, features: [count, clicks, since_last], spans: [1m, 10m],
   delay: 5s, slack: 20s}
- {name: both, key: [ip, ad], time: t, format: unix, features: [count, since_last], spans: [30s], expire: 40s}
- {name: ad, key: [ad], time: t, format: unix, features: [count, clicks], half_life: 2m, delay: 0s}
crosses: [ip.count.1m * ad.count.half_2m]
"""


def write_log(path: Path, rows: int, seed: int, begin: float) -> None:
    """Rows with missing keys, labels and times, some late, most in order."""
    rng = np.random.default_rng(seed)
    times = begin + np.cumsum(rng.exponential(0.4, rows))
    times -= np.where(rng.random(rows) < 0.01, rng.uniform(0, 60, rows), 0)
    with path.open("w") as file:
        file.write("y,t,ip,ad\n")
        for time, gone in zip(times, rng.random(rows), strict=True):
            y, ip, ad = rng.integers(0, 2), f"10.0.0.{rng.geometric(0.05)}", f"a{rng.integers(0, 9)}"
            cells = [y, f"{time:.3f}", ip, ad]
            if gone < 0.02:
                cells[int(gone * 200)] = "" if gone < 0.017 else "x"
            file.write(",".join(map(str, cells)) + "\n")


@pytest.fixture
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, list[Path]]:
    monkeypatch.setattr(tasks, "_LEAST_BYTES", 5_000)
    monkeypatch.setattr(tasks, "_MOST_BYTES", 5_000)
    spec, paths = tmp_path / "spec.yaml", [tmp_path / f"{day}.csv" for day in range(4)]
    spec.write_text(SPEC)
    for day, path in enumerate(paths):
        write_log(path, 900, day, 1_700_000_000 + 360 * day)
    return spec, paths


def test_as_of_one_process(cli: Cli, logs: tuple[Path, list[Path]], tmp_path: Path) -> None:
    spec, paths = logs
    build = ("features", "build", "--spec", spec, "--on-bad-rows", "quarantine", "--max-bad-fraction", 0.5)
    for name, engine in {"one": (), "tasks": ("--engine", "processes")}.items():
        facts = {}
        for day, before in (("days", ()), ("next", ("--windows-from", tmp_path / f"{name}-days"))):
            out, rows = tmp_path / f"{name}-{day}", paths[:3] if day == "days" else paths[3:]
            held_out = ("--holdout-where", "ad = a3", "--holdout-out", f"{out}-held")
            done = cli(*build, *rows, "--out", out, *before, *held_out, *engine, "--json", "-")
            assert done.code == 0, done.err
            facts[day] = json.loads(done.out)
        assert facts["days"]["windows"]["keys"] > 100
        assert facts["days"]["bad_rows"] > 30
    for name in ("days", "next", "days-held", "next-held"):
        one, tasks = tmp_path / f"one-{name}", tmp_path / f"tasks-{name}"
        assert rows_of_dataset(one) == rows_of_dataset(tasks)
        before, after = manifest_of(one), manifest_of(tasks)
        assert (before.raw_files, before.windows_before) == (after.raw_files, after.windows_before)
        assert Path(f"{one}.bad-rows").read_bytes() == Path(f"{tasks}.bad-rows").read_bytes()
        for k in range(3):
            path = f"window-{k:02d}.safetensors"
            assert (before.sha256[path] == after.sha256[path]) == (k < 2), "to the bit without half-lives"
        known = [load_file(folder / "window-02.safetensors") for folder in (one, tasks)]
        for part, array in known[0].items():
            np.testing.assert_array_equal(array[1:], known[1][part][1:])
            # Of all keys together, decayed sums come in another order.
            np.testing.assert_allclose(array[:1], known[1][part][:1], rtol=1e-12)
    assert not list(tmp_path.glob(".*"))


def test_what_no_task_can_know_is_refused(cli: Cli, logs: tuple[Path, list[Path]], tmp_path: Path) -> None:
    spec, paths = logs
    build = ("features", "build", "--spec", spec, *paths, "--engine", "processes", "--out")
    done = cli(*build, "s3://bucket/out")
    assert done.code == 2
    assert "with windows, tasks exchange files beside the data set; give --out a folder" in done.err
    spec.write_text(SPEC.replace("[count, clicks, since_last]", "[count, rate]"))
    done = cli(*build, tmp_path / "out")
    assert done.code == 2
    assert "click rates, as of window 'ip', depend on the click rate of all earlier rows" in done.err
    assert not (tmp_path / "out").exists()
