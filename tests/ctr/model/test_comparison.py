"""Several models on the same rows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from time import perf_counter

import numpy as np
import pytest
from scipy import stats

import ctr
from ctr.errors import DataError
from ctr.features import SKIP, Batch, RawSource, open_source
from ctr.features.block import UnfitColumnError
from ctr.model import Model, compare, evaluate
from ctr.model.comparison import naming, scored_alike
from tests.command_line import Cli
from tests.ctr.sources import BatchSource

SPEC = """
version: 1
source: {format: delimited}
label: click
weight: weight
bits: 12
fields:
  - {name: site, type: category}
"""


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """600 rows whose clicks depend on the site, with weights."""
    rng = np.random.default_rng(7)
    path = tmp_path_factory.mktemp("log") / "log.csv"
    sites = rng.integers(0, 30, 600)
    clicks = rng.random(600) < sites / 40
    lines = [f"{c:d},s{s},{w}" for c, s, w in zip(clicks, sites, rng.integers(1, 4, 600), strict=True)]
    path.write_text("click,site,weight\n" + "\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def models(log: Path) -> list[Model]:
    return [ctr.train(log, SPEC, alpha=alpha) for alpha in (0.1, 0.5)]


def sources(models: list[Model], log: Path) -> list[RawSource]:
    return [open_source([log], model.spec) for model in models]


def test_the_interval_is_that_of_a_paired_test(models: list[Model], log: Path) -> None:
    first, second = compare(models, sources(models, log))
    assert first.metrics.summary() == evaluate(models[0], sources(models, log)[0]).summary()
    nothing = first.against_first.difference()
    assert (nothing.logloss, nothing.low, nothing.high) == (0, 0, 0)
    found = second.against_first.difference()
    assert found.logloss == pytest.approx(second.metrics.summary().logloss - first.metrics.summary().logloss)
    batch = sources(models, log)[0].sample(600)
    losses = [np.logaddexp(0, m) - batch.labels * m for m in (x.margins(batch).astype(float) for x in models)]
    d, w = losses[1] - losses[0], batch.weights.astype(float)
    error = np.sqrt(np.sum((w * (d - np.average(d, weights=w))) ** 2) * 600 / 599) / w.sum()
    assert (found.low, found.high) == pytest.approx(stats.norm.interval(0.95, found.logloss, error), rel=1e-6)


def test_without_weights_it_is_that_of_scipy(log: Path) -> None:
    spec = SPEC.replace("weight: weight\n", "")
    some = [ctr.train(log, spec, alpha=alpha) for alpha in (0.1, 0.5)]
    found = compare(some, sources(some, log))[1].against_first.difference()
    batch = sources(some, log)[0].sample(600)
    losses = [np.logaddexp(0, m) - batch.labels * m for m in (x.margins(batch).astype(float) for x in some)]
    d = losses[1] - losses[0]
    low, high = stats.norm.interval(0.95, d.mean(), stats.sem(d))
    assert (found.low, found.high) == pytest.approx((low, high), rel=1e-6)


def test_the_command_compares_what_it_is_given(
    models: list[Model], log: Path, cli: Cli, tmp_path: Path
) -> None:
    folders = [tmp_path / name for name in ("a", "b")]
    for model, folder in zip(models, folders, strict=True):
        model.save(folder)
    one, both = tmp_path / "one.json", tmp_path / "both.json"
    assert cli("evaluate", "--model", folders[0], log, "--json", one).code == 0
    done = cli("evaluate", "--model", folders[0], "--model", folders[1], log, "--json", both)
    assert done.code == 0
    assert f"{folders[1]} against {folders[0]}: log loss -" in done.out
    assert "better" in done.out
    told = json.loads(both.read_text())
    assert told["model"] == models[0].id
    assert told["logloss"] == json.loads(one.read_text())["logloss"]
    (other,) = told["others"]
    assert other["model"] == models[1].id
    assert other["against_first"]["logloss"] == pytest.approx(other["logloss"] - told["logloss"])
    bad = tmp_path / "bad.csv"
    bad.write_text(log.read_text() + "1,s1\n")
    done = cli("evaluate", "--model", folders[0], "--model", folders[1], bad, "--on-bad-rows", "quarantine")
    assert done.code == 0, done.err
    assert (tmp_path / "bad.csv.bad-rows").read_text() == "1,s1\n"
    twice = cli("evaluate", "--model", folders[0], "--model", folders[0], log)
    assert twice.code == 2
    assert "there twice" in twice.err
    refused = cli("evaluate", "--model", folders[0], "--model", folders[1], "-")
    assert refused.code == 2
    assert "standard input can be read once" in refused.err


class Hangs(BatchSource):
    """The disk does not give the rows after the first ones."""

    def batches(self, rows: int, start: int = 0, stop: int | None = None) -> Iterator[Batch]:
        yield from super().batches(10, 0, 10)
        self.goes_on.wait(60)

    goes_on = Event()


def test_an_interrupt_does_not_wait_for_a_disk_that_hangs(log: Path, models: list[Model]) -> None:
    rows = sources(models, log)[0].sample(600)
    hanging = [Hangs(rows, model.spec) for model in models]
    scored = scored_alike(models, hanging, (), weighted=True)
    assert len(next(scored)[0].labels) == 10
    started = perf_counter()
    with pytest.raises(KeyboardInterrupt):
        scored.throw(KeyboardInterrupt)
    assert perf_counter() - started < 30
    Hangs.goes_on.set()


def test_models_that_leave_out_other_rows(log: Path, models: list[Model], tmp_path: Path) -> None:
    """Only one of the specs minds a price that is no number."""
    path = tmp_path / "log.csv"
    rows = [f"{line},{'cheap' if n == 5 else n}" for n, line in enumerate(log.read_text().splitlines()[1:])]
    path.write_text("click,site,weight,price\n" + "\n".join(rows) + "\n")
    priced = SPEC + "  - {name: price, type: number, transform: log}\n"
    good = tmp_path / "good.csv"
    good.write_text(path.read_text().replace("cheap", "5"))
    some = [models[0], ctr.train(good, priced)]
    both = [open_source([path], model.spec, on_bad_rows=SKIP) for model in some]
    first, second = compare(some, both)
    assert first.metrics.examples == second.metrics.examples == 599
    alone = evaluate(models[0], open_source([good], models[0].spec)).summary()
    assert first.metrics.summary().examples == alone.examples - 1


SKIPPED = (700, 1_900, 1_999)  # data rows; between the first two all labels are the same


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Model], Path, Path]:
    """Two models that say the same of all rows, though each minds another column; good rows, and rows of
    which the first model skips one, and the second another and the last."""
    folder = tmp_path_factory.mktemp("twins")
    rng = np.random.default_rng(7)
    clicks = np.sort(rng.random(2_000) < 0.25)[::-1]
    spec = (
        SPEC.replace("weight: weight\n", "") + "  - {name: price, column: %s, type: number, transform: log}\n"
    )
    for name, bad in (("good.csv", {}), ("bad.csv", dict(zip(SKIPPED, "abb", strict=True)))):
        lines = ["click,site,a,b,bought"]
        for i, site in enumerate(rng.integers(0, 30, 2_000)):
            price = {column: "cheap" if bad.get(i) == column else str(i % 5) for column in "ab"}
            lines.append(f"{clicks[i]:d},s{site},{price['a']},{price['b']},{i % 2}")
        (folder / name).write_text("\n".join(lines) + "\n")
    good = folder / "good.csv"
    return [ctr.train(good, spec % column) for column in "ab"], good, folder / "bad.csv"


def test_rows_are_compared_with_themselves(twins: tuple[list[Model], Path, Path]) -> None:
    models, _, bad = twins
    both = [open_source([bad], model.spec, on_bad_rows=SKIP) for model in models]
    first, second = compare(models, both)
    found = second.against_first.difference()
    assert (found.logloss, found.low, found.high) == (0, 0, 0)
    assert first.metrics.summary() == second.metrics.summary()
    assert first.metrics.examples == 2_000 - len(SKIPPED)
    assert [source.bad_rows.count for source in both] == [1, 2]


def test_slices_are_of_the_same_rows(twins: tuple[list[Model], Path, Path]) -> None:
    models, _, bad = twins
    both = [
        open_source([bad], model.spec, on_bad_rows=SKIP, also=also)
        for model, also in zip(models, (["site"], []), strict=True)
    ]
    compared = compare(models, both, by=["site"])
    rows = bad.read_text().splitlines()[1:]
    kept = [row.split(",") for i, row in enumerate(rows) if i not in SKIPPED]
    for each in compared:
        for site, metrics in each.slices["site"].by_value.items():
            labels = [int(row[0]) for row in kept if row[1] == site]
            summary = metrics.summary()
            assert (summary.examples, summary.positives) == (len(labels), sum(labels))


def test_both_skips_are_reported(twins: tuple[list[Model], Path, Path], cli: Cli, tmp_path: Path) -> None:
    models, _, bad = twins
    folders = [tmp_path / name for name in "ab"]
    for model, folder in zip(models, folders, strict=True):
        model.save(folder)
    words = [word for folder in folders for word in ("--model", folder)]
    done = cli("evaluate", *words, bad, "--on-bad-rows", "skip", "--json", tmp_path / "told.json")
    assert done.code == 0, done.err
    assert "log loss +0.00000 (95%: +0.00000 to +0.00000), no significant difference" in done.out
    assert f"{folders[0]}: skipped 1 bad row\n  {bad}:702: column 'a'" in done.out
    assert f"{folders[1]}: skipped 2 bad rows\n  {bad}:1902: column 'b'" in done.out
    assert "compared on the 1,997 rows valid for every model" in done.out
    told = json.loads((tmp_path / "told.json").read_text())
    assert (told["bad_rows"], told["others"][0]["bad_rows"]) == (1, 2)


def test_other_labels_cannot_be_compared(twins: tuple[list[Model], Path, Path]) -> None:
    models, good, _ = twins
    other = ctr.train(good, SPEC.replace("label: click\nweight: weight", "label: bought"))
    both = [open_source([good], each.spec) for each in (models[0], other)]
    with pytest.raises(DataError, match=r"row 1 of the data has the label 0 for model .*, but 1 for model"):
        compare([models[0], other], both)


def test_a_column_that_does_not_fit_is_told_with_the_model(models: list[Model]) -> None:
    with pytest.raises(DataError, match=r"^model .*: a list$"), naming(models[0], others=True):
        raise UnfitColumnError("a list", "site", lists=True)
