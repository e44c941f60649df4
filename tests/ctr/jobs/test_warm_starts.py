"""Penalties and settings of jobs that go on from a model."""

from __future__ import annotations

import json
import os
import signal
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

import ctr
from ctr.features import parse_spec
from ctr.jobs.training.setup import set_up
from ctr.model import LinearModel, Model, load_model, save_model
from ctr.optimizers.ftrl import Ftrl
from ctr.settings import TrainJob
from ctr.synth import AD_COLUMNS, ad_rows
from tests.command_line import Cli
from tests.ctr.distributed_jobs import Command, wait_for
from tests.ps.redis_servers import needs_redis

SPEC = """
version: 1
source: {format: delimited}
label: click
bits: 18
fields:
  - {name: site, type: category}
  - {name: device, type: category}
crosses:
  - {name: site x device, of: [site, device]}
"""
DAYS = 5
PENALTIES = {"l1": 1.0, "l2": 1.0}


def write_rows(path: Path, rows: list[tuple[object, ...]]) -> Path:
    lines = [",".join(map(str, each)) for each in [AD_COLUMNS, *rows]]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def days(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Five days of 4,000 rows, and a file with all of them at the end."""
    folder, rows = tmp_path_factory.mktemp("days"), list(ad_rows(DAYS * 4_000))
    files = [
        write_rows(folder / f"day{day}.csv", rows[day * 4_000 : (day + 1) * 4_000]) for day in range(DAYS)
    ]
    return [*files, write_rows(folder / "all.csv", rows)]


def one_after_the_other(days: list[Path], folder: Path, epochs: list[int]) -> Model:
    model = ctr.train(days[0], SPEC, epochs=epochs[0], **PENALTIES)
    for day, passes in zip(days[1:DAYS], epochs[1:], strict=True):
        model.save(folder / "model")
        model = ctr.train(day, warm_start=folder / "model", epochs=passes)
    return model


def nonzero(model: Model) -> int:
    return model.linear.weights.size


def test_the_memory_that_a_state_takes_before_it_is_in_a_store(days: list[Path], tmp_path: Path) -> None:
    """A block of it is converted at a time, to a file."""
    slots = np.arange(1 << 22, dtype=np.uint32)
    model = Model.of(
        parse_spec(SPEC.replace("bits: 18", "bits: 23"), "spec.yaml"),
        LinearModel.of_weights(slots[:1], np.ones(1, np.float32)),
        {"optimizer": {**Ftrl().to_json(), "passes": 1}},
    )
    save_model(model, tmp_path / "model", (slots, np.ones((slots.size, 2), np.float32)))
    setup = set_up(
        TrainJob(
            inputs=[days[0]],
            spec=None,
            warm_start=tmp_path / "model",
            forget=0.1,
            store="embedded://?shards=2",
            model=tmp_path / "next",
        )
    )
    tracemalloc.start()
    try:
        initial = setup.initial_state()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert initial is not None
    assert initial[1][-1, 1] == np.float32(0.9)
    assert peak < 24 * slots.size


def test_days_of_several_passes_have_the_penalties_of_one_job(days: list[Path], tmp_path: Path) -> None:
    whole = ctr.train(days[DAYS], SPEC, epochs=3, **PENALTIES)
    by_day = one_after_the_other(days, tmp_path, [3] * DAYS)
    assert by_day.manifest["optimizer"]["passes"] == whole.manifest["optimizer"]["passes"] == 3
    assert nonzero(by_day) == pytest.approx(nonzero(whole), rel=0.03)
    both = np.intersect1d(by_day.linear.slots, whole.linear.slots)
    weights = [each.linear.weights[np.isin(each.linear.slots, both)] for each in (by_day, whole)]
    assert np.abs(weights[0] - weights[1]).mean() < 0.05 * np.abs(weights[1]).mean()


@pytest.mark.parametrize(("epochs", "mean"), [([3, 1, 1, 1, 1], 1.4), ([1, 1, 1, 1, 3], 1.4)])
def test_a_day_of_several_passes_counts_as_what_it_is(
    days: list[Path], tmp_path: Path, epochs: list[int], mean: float
) -> None:
    """One in five: penalties are not three times as large for all."""
    model = one_after_the_other(days, tmp_path, epochs)
    assert model.manifest["optimizer"]["passes"] == pytest.approx(mean)
    once = nonzero(ctr.train(days[DAYS], SPEC, **PENALTIES))
    assert nonzero(model) == pytest.approx(once, rel=0.1)


def test_days_of_one_command(cli: Cli, days: list[Path], tmp_path: Path) -> None:
    spec = tmp_path / "spec.yaml"
    spec.write_text(SPEC)
    words = ["--epochs", 3, "--l1", 1, "--l2", 1, "--workers", 1, "--model", tmp_path / "model"]
    done = cli("train", "--spec", spec, *days[:DAYS], *words, "--progressive-days")
    assert done.code == 0, done.err
    by_day = load_model(tmp_path / "model").id
    assert by_day == one_after_the_other(days, tmp_path, [3] * DAYS).id


def test_weights_depend_continuously_on_the_settings_of_a_warm_start(
    days: list[Path], tmp_path: Path
) -> None:
    """A larger l1 leaves as few weights, whether alpha is the same or nearly so."""
    ctr.train(days[0], SPEC, l1=0.1, l2=0.1).save(tmp_path / "model")

    def on(**settings: float) -> Model:
        return ctr.train(days[1], warm_start=tmp_path / "model", **settings)

    same, few = on(), on(l1=20)
    assert nonzero(few) < 0.2 * nonzero(same)
    for near in ({"alpha": 0.0999}, {"beta": 1.001}, {"l2": 0.1001}):
        assert nonzero(on(l1=20, **near)) == pytest.approx(nonzero(few), abs=3)
        assert nonzero(on(**near)) == pytest.approx(nonzero(same), abs=10)


@needs_redis
def test_it_goes_on_from_a_checkpoint(cli: Cli, days: list[Path], tmp_path: Path, redis_url: str) -> None:
    """Interrupted and resumed, a warm start ends with the penalties of one that was not."""
    spec, former = tmp_path / "spec.yaml", tmp_path / "former"
    spec.write_text(SPEC)
    first = ["--l1", 1, "--l2", 1, "--epochs", 4]
    assert cli("train", "--spec", spec, days[0], *first, "--model", former).code == 0
    words = ["train", "--spec", spec, days[1], "--epochs", 20, "--chunk", 400]
    store = ["--store", f"{redis_url}?model=warm", "--checkpoint", tmp_path / "checkpoint"]
    words += [*store, "--model", tmp_path / "model", "--warm-start", former, "--forget", 0.1]
    begun = Command(*words, "--checkpoint-every", "0.1s")
    wait_for((tmp_path / "checkpoint").exists)
    os.kill(begun.popen.pid, signal.SIGINT)
    code, said = begun.end()
    assert code == 130, said
    resumed = cli(*words, "--resume")  # the penalties come from the former model
    assert resumed.code == 0, resumed.err
    manifest = load_model(tmp_path / "model").manifest
    assert manifest["optimizer"]["passes"] == 12
    training = manifest["training"]
    assert [each["id"] for each in training["lineage"]] == [load_model(former).id]
    assert (training["warm_start"], training["forget"]) == (str(former), 0.1)
    once = ctr.train(days[2], warm_start=tmp_path / "model").manifest["optimizer"]["passes"]
    assert once == pytest.approx((4 + 20 + 1) / 3)


@needs_redis
def test_a_checkpoint_that_counted_passes_otherwise_is_refused(
    cli: Cli, days: list[Path], tmp_path: Path, redis_url: str
) -> None:
    """One of a former version, where a warm start kept no lineage in its job."""
    former, checkpoint = tmp_path / "former", tmp_path / "checkpoint"
    ctr.train(days[0], SPEC).save(former)
    words = ["train", days[1], "--chunk", 400, "--checkpoint", checkpoint, "--model", tmp_path / "model"]
    words += ["--store", f"{redis_url}?model=warm"]
    begun = Command(*words, "--warm-start", former, "--epochs", 20, "--checkpoint-every", "0.1s")
    wait_for(checkpoint.exists)
    os.kill(begun.popen.pid, signal.SIGINT)
    begun.end()
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    del manifest["job"]["lineage"], manifest["job"]["rows_before"]
    (checkpoint / "manifest.json").write_text(json.dumps(manifest))
    spec = tmp_path / "spec.yaml"
    spec.write_text(SPEC)
    resumed = cli(*words, "--spec", spec, "--epochs", 20, "--resume")
    assert resumed.code == 1
    assert f"{checkpoint}: this checkpoint of a warm start is of an earlier version" in resumed.err
