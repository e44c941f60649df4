"""Scales of fields: found where fields differ, and learnt with as training learns with them."""

from __future__ import annotations

from math import inf, log1p
from pathlib import Path

import numpy as np
import pytest

import ctr
from ctr.features import DatasetSource, RawSource, parse_spec, write_dataset
from ctr.optimizers import choose_optimizer
from ctr.search import Examples, Plan, RawRows, folds_of, run_trial, tune
from ctr.search.candidates import Candidate, with_scales
from ctr.search.scale_kernels import pass_with_scales
from ctr.search.scales import find_scales
from tests.ctr.search.conftest import SPEC

ROWS = 6_000
FIELDS = """{version: 1, source: {format: delimited}, label: click, bits: 18, fields: [
    {name: site, type: category}, {name: user, type: category}, {name: tags, type: list, delimiter: " "},
    {name: age, type: number, transform: linear, steps: [log]}], crosses: [site * tags]}"""


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log in which the site tells much, and the user nothing."""
    rng = np.random.default_rng(4)
    path = tmp_path_factory.mktemp("mixed") / "log.csv"
    sites, users = rng.integers(0, 12, ROWS), rng.integers(0, 200, ROWS)
    clicks = rng.random(ROWS) < 1 / (1 + np.exp(1.5 - 2 * rng.normal(size=12)[sites]))
    tags = [" ".join(rng.choice(list("abcde"), rng.integers(4), replace=False)) for _ in range(ROWS)]
    ages = rng.integers(0, 80, ROWS)
    rows = zip(clicks, sites, users, tags, ages, strict=True)
    path.write_text(
        "click,site,user,tags,age\n" + "".join(f"{c:d},s{s},u{u},{t},{a}\n" for c, s, u, t, a in rows)
    )
    return path


@pytest.fixture(scope="module")
def examples(mixed: Path, tmp_path_factory: pytest.TempPathFactory) -> Examples:
    spec, folder = parse_spec(FIELDS, "spec"), tmp_path_factory.mktemp("mixed")
    source = RawSource(spec, [mixed], with_fields=True)
    write_dataset(source.batches(700), spec, folder / "hashed", block_rows=700)
    return Examples.of([DatasetSource(folder / "hashed", with_fields=True)])


@pytest.mark.kernel
def test_a_pass_is_as_plain_python_and_its_derivatives_are_those_of_the_loss() -> None:
    rng = np.random.default_rng(2)
    parts_in_all, alpha, beta = 4, 0.3, 0.7
    rows = [
        [(int(rng.integers(9)), int(rng.integers(parts_in_all))) for _ in range(rng.integers(1, 6))]
        for _ in range(40)
    ]
    values = rng.normal(size=sum(map(len, rows))).astype(np.float32)
    labels = rng.integers(0, 2, 40).astype(np.float32)
    weights = rng.uniform(0.5, 2, 40).astype(np.float32)
    scales = rng.uniform(0.5, 2, parts_in_all)

    def loss(factors: np.ndarray) -> float:
        state, total, at = np.zeros((9, 2)), 0.0, 0
        for row, label, weight in zip(rows, labels, weights, strict=True):
            x = [float(values[at + j]) * scales[part] for j, (_, part) in enumerate(row)]
            at += len(row)
            w = [-alpha * state[slot, 0] / (beta + state[slot, 1] ** 0.5) for slot, _ in row]
            margin = sum(a * b for a, b in zip(w, x, strict=True))
            told = sum(a * b * factors[part] for a, b, (_, part) in zip(w, x, row, strict=True))
            total += weight * (log1p(np.exp(told)) - label * told)
            error = weight * (1 / (1 + np.exp(-margin)) - label)
            for j, (slot, _) in enumerate(row):
                g, n = error * x[j], state[slot, 1]
                state[slot] += g - ((n + g * g) ** 0.5 - n**0.5) / alpha * w[j], g * g
        return total

    indptr = np.cumsum([0, *map(len, rows)])
    slots, parts = np.array([pair for row in rows for pair in row]).T
    gradient, curvature = np.zeros(parts_in_all), np.zeros((parts_in_all, parts_in_all))
    found = pass_with_scales(
        indptr, slots.astype(np.uint32), parts.astype(np.uint8), values, labels, weights, scales, alpha, beta,
        np.zeros((9, 2)), gradient, curvature,
    )  # fmt: skip
    ones, step = np.ones(parts_in_all), 1e-4
    shifts = np.eye(parts_in_all) * step
    assert found == pytest.approx(loss(ones), rel=1e-9)
    assert gradient == pytest.approx(
        [(loss(ones + s) - loss(ones - s)) / (2 * step) for s in shifts], abs=1e-5
    )
    second = [
        [
            (loss(ones + s + t) - loss(ones + s - t) - loss(ones - s + t) + loss(ones - s - t))
            / (4 * step**2)
            for t in shifts
        ]
        for s in shifts
    ]
    assert curvature == pytest.approx(np.array(second), abs=1e-4)


def test_what_tells_is_scaled_up_and_what_does_not_is_scaled_down(examples: Examples) -> None:
    site, user, *_ = find_scales(examples, 5, 1.0, [range(ROWS)])[1:]
    assert site > 1
    assert user < 0.8
    # found in the rows that are learnt alone
    once, again = (find_scales(examples, 5, 1.0, [range(2_000), range(4_000, 5_000)]) for _ in range(2))
    assert once.tolist() == again.tolist()
    assert once[1] != site


def test_trials_learn_with_scales_what_train_learns(examples: Examples, mixed: Path) -> None:
    spec = parse_spec(FIELDS, "spec")
    folds, settings = folds_of(ROWS, 0.2), {"alpha": 0.2, "l2": 0.3}
    found = with_scales(Candidate((examples,), 7), spec, folds, workers=2)
    assert found.crosses == 7
    assert [*found.scales] == [*spec.names] == ["site", "user", "tags", "age", "site * tags"]
    (of_fold,) = found.by_fold
    scales = dict(zip(spec.names, of_fold.scales[1:].tolist(), strict=True))
    assert scales != pytest.approx(found.scales, rel=0.02)  # those of all rows
    model = ctr.train(str(mixed), spec.with_scales(scales), holdout_fraction=0.2, chunk=700, **settings)
    judged = run_trial(found.by_fold, folds, choose_optimizer(settings), most_passes=1, to_beat=inf)
    assert judged.loss == pytest.approx(model.manifest["metrics"]["holdout"]["logloss"], abs=2e-5)


def test_scales_are_taken_where_they_are_better(mixed: Path, tmp_path: Path) -> None:
    spec = parse_spec(FIELDS, "spec")
    found = {}
    for name, each in (("with", spec), ("without", spec), ("own", spec.with_scales({"user": 0.5}))):
        raw = None if name == "without" else RawRows([mixed], each)
        found[name] = tune(RawSource(each, [mixed]), tmp_path, Plan(8, 3), raw=raw)
        assert not [*tmp_path.iterdir()]
    assert found["with"].best.judged.loss < found["without"].best.judged.loss
    assert [*found["with"].best.scales] == [*spec.names]
    assert "user=" in found["with"].options["scale"][1]
    assert not found["with"].tried[0].scales  # the defaults
    for name in ("without", "own"):
        assert not any(each.scales for each in found[name].tried)
        assert "scale" not in found[name].options


def test_a_hashed_data_set_gets_the_scales_of_its_raw_rows(mixed: Path, tmp_path: Path) -> None:
    spec, hashed, bare = parse_spec(FIELDS, "spec"), tmp_path / "hashed", tmp_path / "bare"
    for folder, with_fields in ((hashed, True), (bare, False)):
        source = RawSource(spec, [mixed], with_fields=with_fields)
        write_dataset(source.batches(700), spec, folder, block_rows=700)
    plan = Plan(8, 3)
    raw = tune(RawSource(spec, [mixed]), tmp_path, plan, raw=RawRows([mixed], spec))
    of_hashed, of_bare = (tune(DatasetSource(folder), tmp_path, plan) for folder in (hashed, bare))
    assert of_hashed.best.scales == pytest.approx(raw.best.scales, rel=0.02)
    assert of_hashed.best.judged.loss == pytest.approx(raw.best.judged.loss, abs=1e-4)
    assert not any(each.scales for each in of_bare.tried)


def test_one_field_alone_is_not_scaled(log: Path, tmp_path: Path) -> None:
    spec = parse_spec(SPEC, "spec")
    alone = spec.of_fields(spec.fields[:1])
    found = tune(RawSource(alone, [log]), tmp_path, Plan(3, 1), raw=RawRows([log], alone))
    assert not any(each.scales for each in found.tried)


def test_too_many_fields_are_not_scaled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctr.search.candidates.MOST_FIELDS", 30)
    names = [f"f{i}" for i in range(31)]
    fields = ", ".join(f"{{name: {name}, type: category}}" for name in names)
    spec = parse_spec(f"{{version: 1, source: {{format: delimited}}, label: y, fields: [{fields}]}}", "spec")
    log = tmp_path / "log.csv"
    log.write_text("\n".join([",".join(["y", *names]), *(",".join([str(i % 2), *names]) for i in range(40))]))
    scaled = []
    for each in (spec, spec.of_fields(spec.fields[:30])):
        raw = RawRows([log], each)
        found = tune(RawSource(each, [log]), tmp_path, Plan(2, 1), raw=raw)
        scaled.append(any(each.scales for each in found.tried))
    assert scaled == [False, True]
