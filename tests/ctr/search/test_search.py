"""The search finds better settings than the defaults, the same each time."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from threading import Event

import numpy as np
import pytest

from ctr.errors import CtrError, DataError
from ctr.features import DatasetSource, RawSource, parse_spec
from ctr.search import (
    Candidate,
    Ended,
    Examples,
    Plan,
    Progress,
    Search,
    Tried,
    Tuned,
    folds_of,
    require_optuna,
    tune,
)
from tests.ctr.search.conftest import ROWS, SPEC


def found(hashed: Path, **options: object) -> list[Tried]:
    return searched(hashed, **options).tried


def searched(
    hashed: Path, on_progress: Callable[[Progress], None] = lambda _: None, **options: object
) -> Search:
    examples = Examples.of([DatasetSource(hashed)])
    folds = folds_of(examples.rows)
    plan = Plan(**({"trials": 14, "most_epochs": 4} | options))
    search = Search([Candidate((examples,) * len(folds))], folds, plan, on_progress=on_progress)
    search.run()
    return search


def test_the_same_for_a_seed_with_any_number_of_workers(hashed: Path) -> None:
    one, three, other = found(hashed), found(hashed, workers=3), found(hashed, seed=1)
    assert one == three
    assert [each.settings for each in one[:4]] == [each.settings for each in other[:4]]
    assert [each.settings for each in one[4:]] != [each.settings for each in other[4:]]
    assert [each.number for each in one] == [*range(1, 15)]


def test_the_same_on_a_machine_of_more_cores_than_trials_run_ahead(hashed: Path) -> None:
    assert found(hashed, workers=1) == found(hashed, workers=12)


def test_a_budget_cuts_it_at_the_same_trial_on_any_machine(hashed: Path) -> None:
    whole = searched(hashed)
    assert whole.ended is Ended.TRIALS
    work = [each.judged.rows * 3 for each in whole.tried]  # of the bias and two fields
    one, three = (searched(hashed, most_work=sum(work[:10]), workers=workers) for workers in (1, 3))
    assert one.ended is three.ended is Ended.BUDGET
    assert one.tried == three.tried == whole.tried[: len(one.tried)]
    assert 8 <= len(one.tried) <= 12
    assert sum(work[: len(one.tried)]) < 1.3 * sum(work[:10])


def test_when_its_time_is_over_trials_under_way_end(hashed: Path) -> None:
    so_far: list[Progress] = []
    over = searched(hashed, limit_s=0, on_progress=so_far.append, trials=10_000)
    assert over.ended is Ended.TIME
    assert len(over.tried) == 1  # which comes to its end, so that there are settings
    assert [each.fraction for each in so_far] == sorted(each.fraction for each in so_far)
    assert 0.9 <= so_far[-1].fraction < 1


def test_the_share_done_grows_with_what_is_learnt(hashed: Path) -> None:
    so_far: dict[int, float] = {}
    searched(hashed, on_progress=lambda progress: so_far.update({len(progress.tried): progress.fraction}))
    assert so_far[7] == pytest.approx(0.5, abs=0.35)
    assert list(so_far.values()) == sorted(so_far.values())


def test_raw_rows_are_hashed_once_and_nothing_is_left(hashed: Path, log: Path, tmp_path: Path) -> None:
    rows: list[tuple[int, float]] = []
    source = RawSource(parse_spec(SPEC, "spec"), [log])
    raw = tune(source, tmp_path, Plan(6, 3), on_rows=lambda *so_far: rows.append(so_far))
    assert rows[-1] == (ROWS, 1)
    assert not [*tmp_path.iterdir()]
    of_dataset = tune(DatasetSource(hashed), tmp_path, Plan(6, 3, scaled=False))
    assert raw.best.judged.loss == pytest.approx(of_dataset.best.judged.loss, abs=1e-4)
    assert raw.best.judged.loss <= raw.default_loss
    assert raw.options == {"epochs": raw.best.judged.best_pass, **raw.best.settings}


def test_rows_behind_the_stop_row_are_not_read(hashed: Path, tmp_path: Path) -> None:
    options = {"trials": 3, "most_epochs": 2, "stop_row": 2_000}
    assert tune(DatasetSource(hashed), tmp_path, Plan(**options)).rows == 2_000
    assert tune(DatasetSource(hashed), tmp_path, Plan(**options, most_rows=900)).rows == 900


def test_a_search_that_was_cut_says_so(hashed: Path, tmp_path: Path) -> None:
    options = {"trials": 30, "most_epochs": 2}
    by_time = tune(DatasetSource(hashed), tmp_path, Plan(limit_s=0, **options))
    assert by_time.facts["ended"] == by_time.measured["ended"] == "time"
    assert by_time.cut is not None
    assert by_time.cut.startswith("1 of 30 trials: time limit reached")
    by_budget = tune(DatasetSource(hashed), tmp_path, Plan(most_work=100_000, **options))
    assert by_budget.facts["ended"] == "budget"
    assert by_budget.cut is not None
    assert by_budget.cut.endswith("used up (same on any machine)")
    assert tune(DatasetSource(hashed), tmp_path, Plan(2)).cut is None


def test_stopped_with_what_it_has(hashed: Path, tmp_path: Path) -> None:
    stop = Event()

    def on_progress(so_far: Progress) -> None:
        if len(so_far.tried) == 5:
            stop.set()

    plan = Plan(most_epochs=2)
    known: Tuned = tune(DatasetSource(hashed), tmp_path, plan, stop=stop, on_progress=on_progress)
    assert known.stopped
    assert 5 <= len(known.tried) <= 13
    with pytest.raises(KeyboardInterrupt):
        tune(DatasetSource(hashed), tmp_path, plan, stop=stop)


def test_diverging_data_is_an_error(tmp_path: Path) -> None:
    spec = parse_spec(
        "{version: 1, source: {format: delimited}, label: click, bits: 10, "
        "fields: [{name: x, type: number, transform: linear}]}",
        "spec",
    )
    rows = "".join(f"{n % 2},{3e37 if n % 3 else -3e37}\n" for n in range(60))
    (tmp_path / "log.csv").write_text("click,x\n" + rows)
    with pytest.raises(DataError, match="diverged"):
        tune(RawSource(spec, [tmp_path / "log.csv"]), tmp_path, Plan(3, 1))


def test_without_optuna(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(CtrError, match="pip install 'optuna"):
        require_optuna()


def noise(tmp_path: Path, rows: int, site_says: float) -> RawSource:
    """Rows of 20 sites, of which half are clicked more often by so much, and ads that say nothing."""
    rng = np.random.default_rng(3)
    sites, ads = rng.integers(0, 20, rows), rng.integers(0, 200, rows)
    clicks = rng.random(rows) < 0.3 + site_says * (sites % 2)
    lines = (f"{int(click)},s{site},a{ad}\n" for click, site, ad in zip(clicks, sites, ads, strict=True))
    (tmp_path / "noise.csv").write_text("click,site,ad\n" + "".join(lines))
    return RawSource(parse_spec(SPEC, "spec"), [tmp_path / "noise.csv"])


def test_the_defaults_stay_where_nothing_beats_them_by_more_than_its_noise(tmp_path: Path) -> None:
    options = {"trials": 4, "most_epochs": 2, "fixed": {"alpha": 0.1, "l1": 0.0, "l2": 0.0, "beta": 1.0}}
    same = tune(noise(tmp_path, 300, 0.0), tmp_path, Plan(**options))
    assert same.kept
    assert same.options == {"epochs": 1, "alpha": 0.1, "beta": 1.0, "l1": 0.0, "l2": 0.0}
    assert "nothing beat them by more than its noise" in same.gain
    assert same.best.judged.loss == same.default_loss
    better = tune(noise(tmp_path, 3_000, 0.6), tmp_path, Plan(12, 4))
    assert not better.kept
    assert better.best.judged.loss < better.default_loss


def test_the_search_goes_on_from_the_defaults_to_the_beta_that_suits_the_clicks(tmp_path: Path) -> None:
    lines = "".join(f"{int(n % 100 == 0)},s{n % 7},a{n % 11}\n" for n in range(2_000))
    (tmp_path / "rare.csv").write_text("click,site,ad\n" + lines)
    source = RawSource(parse_spec(SPEC, "spec"), [tmp_path / "rare.csv"])
    found = tune(source, tmp_path, Plan(2, 1))
    assert [tried.settings["beta"] for tried in found.tried] == pytest.approx([1, 0.25])
