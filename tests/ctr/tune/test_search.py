"""The search finds better settings than the defaults, the same each time."""

from __future__ import annotations

import sys
from pathlib import Path
from threading import Event

import numpy as np
import pytest

from ctr.errors import CtrError, DataError
from ctr.tune import Candidate, Examples, Tried, Tuned, find_settings, folds_of, require_optuna, tune
from features import DatasetSource, RawSource, parse_spec
from tests.ctr.tune.conftest import ROWS, SPEC


def found(hashed: Path, **options: object) -> list[Tried]:
    examples = Examples.of(DatasetSource(hashed))
    told = {"trials": 14, "most_passes": 4} | options
    folds = folds_of(examples.rows)
    return find_settings([Candidate((examples,) * len(folds))], folds, **told)


def test_the_same_for_a_seed_with_any_number_of_workers(hashed: Path) -> None:
    one, three, other = found(hashed), found(hashed, workers=3), found(hashed, seed=1)
    assert one == three
    assert [each.settings for each in one[:4]] == [each.settings for each in other[:4]]
    assert [each.settings for each in one[4:]] != [each.settings for each in other[4:]]
    assert [each.number for each in one] == [*range(1, 15)]


def test_raw_rows_are_hashed_once_and_nothing_is_left(hashed: Path, log: Path, tmp_path: Path) -> None:
    rows: list[int] = []
    source = RawSource(parse_spec(SPEC, "spec"), [log])
    raw = tune(source, tmp_path, trials=6, most_epochs=3, on_rows=rows.append)
    assert rows[-1] == ROWS
    assert not [*tmp_path.iterdir()]
    of_dataset = tune(DatasetSource(hashed), tmp_path, trials=6, most_epochs=3)
    assert raw.best.judged.loss == pytest.approx(of_dataset.best.judged.loss, abs=1e-4)
    assert raw.best.judged.loss <= raw.default_loss
    assert raw.options == {"epochs": raw.best.judged.best_pass, **raw.best.settings}


def test_rows_behind_the_stop_row_are_not_read(hashed: Path, tmp_path: Path) -> None:
    options = {"trials": 3, "most_epochs": 2, "stop_row": 2_000}
    assert tune(DatasetSource(hashed), tmp_path, **options).rows == 2_000
    assert tune(DatasetSource(hashed), tmp_path, **options, most_rows=900).rows == 900


def test_stopped_with_what_it_has(hashed: Path, tmp_path: Path) -> None:
    stop = Event()

    def on_trial(tried: list[Tried]) -> None:
        if len(tried) == 5:
            stop.set()

    known: Tuned = tune(DatasetSource(hashed), tmp_path, most_epochs=2, stop=stop, on_trial=on_trial)
    assert known.stopped
    assert 5 <= len(known.tried) <= 13
    with pytest.raises(KeyboardInterrupt):
        tune(DatasetSource(hashed), tmp_path, most_epochs=2, stop=stop)


def test_diverging_data_is_an_error(tmp_path: Path) -> None:
    spec = parse_spec(
        "{version: 1, source: {format: delimited}, label: click, bits: 10, "
        "fields: [{name: x, type: number, transform: linear}]}",
        "spec",
    )
    rows = "".join(f"{n % 2},{3e37 if n % 3 else -3e37}\n" for n in range(60))
    (tmp_path / "log.csv").write_text("click,x\n" + rows)
    with pytest.raises(DataError, match="diverged"):
        tune(RawSource(spec, [tmp_path / "log.csv"]), tmp_path, trials=3, most_epochs=1)


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
    same = tune(noise(tmp_path, 300, 0.0), tmp_path, **options)
    assert same.kept
    assert same.options == {"epochs": 1, "alpha": 0.1, "beta": 1.0, "l1": 0.0, "l2": 0.0}
    assert "nothing beat them by more than its noise" in same.gain
    assert same.best.judged.loss == same.default_loss
    better = tune(noise(tmp_path, 3_000, 0.6), tmp_path, trials=12, most_epochs=4)
    assert not better.kept
    assert better.best.judged.loss < better.default_loss


def test_the_search_goes_on_from_the_defaults_to_the_beta_that_suits_the_clicks(tmp_path: Path) -> None:
    lines = "".join(f"{int(n % 100 == 0)},s{n % 7},a{n % 11}\n" for n in range(2_000))
    (tmp_path / "rare.csv").write_text("click,site,ad\n" + lines)
    source = RawSource(parse_spec(SPEC, "spec"), [tmp_path / "rare.csv"])
    found = tune(source, tmp_path, trials=2, most_epochs=1)
    assert [tried.settings["beta"] for tried in found.tried] == pytest.approx([1, 0.25])
