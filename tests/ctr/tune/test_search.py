"""The search finds better settings than the defaults, the same each time."""

from __future__ import annotations

import sys
from pathlib import Path
from threading import Event

import pytest

from ctr.errors import CtrError, DataError
from ctr.tune import Examples, Tried, Tuned, find_settings, folds_of, require_optuna, tune
from features import DatasetSource, RawSource, parse_spec
from tests.ctr.tune.conftest import ROWS, SPEC


def found(hashed: Path, **options: object) -> list[Tried]:
    examples = Examples.of(DatasetSource(hashed))
    told = {"trials": 14, "most_passes": 4} | options
    return find_settings({0: examples}, folds_of(examples.rows), **told)


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
