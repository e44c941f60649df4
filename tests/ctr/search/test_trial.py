"""A trial learns what `ctr train` would learn, and is judged as its hold-out is."""

from __future__ import annotations

from math import inf
from pathlib import Path

import pytest

import ctr
from ctr.errors import DataError
from ctr.features import DatasetSource
from ctr.optimizers import choose_optimizer
from ctr.search import Examples, Judged, folds_of, run_trial
from tests.ctr.search.conftest import ROWS

SETTINGS = {"alpha": 0.2, "beta": 0.5, "l1": 0.1, "l2": 0.3}


def judged(examples: Examples, fraction: float | None = 0.2, **options: object) -> Judged:
    told = {"most_passes": 3, "to_beat": inf} | options
    optimizer = choose_optimizer(SETTINGS)
    folds = folds_of(examples.rows, fraction)
    return run_trial([examples] * len(folds), folds, optimizer, **told)


@pytest.fixture(scope="module")
def examples(hashed: Path) -> Examples:
    return Examples.of([DatasetSource(hashed)])


@pytest.mark.parametrize("epochs", [1, 2, 3])
def test_it_is_what_train_comes_to(examples: Examples, hashed: Path, epochs: int) -> None:
    model = ctr.train(hashed, holdout_fraction=0.2, epochs=epochs, chunk=700, **SETTINGS)
    found = judged(examples, most_passes=epochs)
    holdout = model.manifest["metrics"]["holdout"]
    assert len(found.by_pass) == epochs
    assert found.by_pass[-1] == pytest.approx(holdout["logloss"], abs=2e-5)  # sums are rounded otherwise
    if found.best_pass == epochs:
        assert found.calibration == pytest.approx(holdout["calibration"], abs=1e-3)


def test_folds_cover_the_rows_once(examples: Examples) -> None:
    folds = folds_of(examples.rows)
    assert [row for fold in folds for row in fold.judged] == [*range(ROWS)]
    for fold in folds:
        learnt = [row for rows in fold.learnt for row in rows]
        assert sorted([*learnt, *fold.judged]) == [*range(ROWS)]
        assert learnt == sorted(learnt)
        assert fold.rows == len(learnt)
    labels, weights = examples.labels(fold.judged for fold in folds)
    assert (labels.size, weights.sum()) == (ROWS, ROWS)
    assert len(folds_of(250_000)) == 1
    assert folds_of(100, 0.25)[0].judged == range(75, 100)


@pytest.mark.parametrize(("rows", "fraction"), [(9, None), (3, 0.1), (1, 0.9)])
def test_too_few_rows_are_refused(rows: int, fraction: float | None) -> None:
    with pytest.raises(DataError, match="rows"):
        folds_of(rows, fraction)


def test_the_rows_before_a_row(hashed: Path) -> None:
    source = DatasetSource(hashed)
    some = Examples.of([source], stop=1_500)
    assert some.rows == 1_500
    assert some.labels([range(1_500)])[0].tolist() == next(source.batches(1_500)).labels.tolist()
    assert Examples.of([source], stop=ROWS + 1).rows == ROWS


def test_hopeless_settings_are_given_up(examples: Examples) -> None:
    whole = judged(examples)
    early = judged(examples, to_beat=whole.loss / 2)
    assert early.hopeless
    assert len(early.losses) < len(whole.losses)
    assert early.losses == whole.losses[: len(early.losses)]


def test_it_ends_when_a_pass_gains_nothing(examples: Examples) -> None:
    found = judged(examples, None, most_passes=50)
    assert not found.hopeless
    assert len(found.by_pass) < 50
    assert found.best_pass in (len(found.by_pass) - 1, len(found.by_pass))


def test_a_pass_has_to_be_worth_its_time() -> None:
    found = Judged([0.5, 0.48, 0.45, 0.44998, 0.44996])
    assert found.by_pass == [0.45, 0.44998, 0.44996]
    assert (found.best_pass, found.loss) == (1, 0.45)
    assert Judged([0.5, 0.48, 0.45, 0.44]).best_pass == 2


def test_it_ends_when_told_to(examples: Examples) -> None:
    found = judged(examples, ended=lambda: True)
    assert found.cut
    assert (found.losses, found.best_pass, found.loss) == ([], 0, inf)


def test_its_parts_add_up_to_the_log_loss(examples: Examples) -> None:
    for fraction, count in ((0.2, 100), (None, 100)):
        found = judged(examples, fraction)
        assert [len(parts) for parts in found.parts] == [count] * len(found.losses)
        assert [sum(parts) for parts in found.parts] == pytest.approx(found.losses)
        assert found.first_pass.by_pass == found.by_pass[:1]
        assert sum(found.first_pass.best_parts) == pytest.approx(found.by_pass[0])
