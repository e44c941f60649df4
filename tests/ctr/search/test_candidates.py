"""What trials learn and are scored on: nothing of a fold's validation rows is known while it learns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from ctr.crosses import suggest_crosses
from ctr.features import SKIP, RawSource, fit, parse_spec
from ctr.features.readers import RowChoice
from ctr.search import Candidate, Fold, Plan, RawRows, tune
from ctr.search.candidates import Hashing

ROWS = 1_000
SPEC = parse_spec(
    """{version: 1, source: {format: delimited}, label: click, bits: 16, fields: [
    {name: price, type: number, transform: quantiles, buckets: 8, duplicates: drop},
    {name: day, type: category},
    {name: site, type: category, min_count: 3}]}""",
    "spec",
)


def log_of(path: Path, late: Sequence[str], bad: Sequence[int] = ()) -> Path:
    """A log of ten days whose last rows have these sites; rows `bad` cannot be read."""
    rng = np.random.default_rng(5)
    prices = rng.uniform(0, 100, ROWS).round(2).tolist()
    sites = [f"s{site}" for site in rng.integers(300, size=ROWS)]
    sites[ROWS - len(late) :] = late
    clicks = rng.random(ROWS) < np.where(np.array(prices) < 50, 0.2, 0.6)
    lines = [
        f"{int(c)},{p},{i // 100},{s}" for i, (c, p, s) in enumerate(zip(clicks, prices, sites, strict=True))
    ]
    lines = ["?" if row in bad else line for row, line in enumerate(lines)]
    path.write_text("\n".join(["click,price,day,site", *lines]) + "\n")
    return path


@pytest.fixture
def logs(tmp_path: Path) -> list[Path]:
    """Two logs whose last fifths differ: one has new sites, the other those that were rare before."""
    early = Counter(line.split(",")[3] for line in log_of(tmp_path / "0.csv", []).read_text().split()[1:801])
    rare = [site for site, count in early.items() if count < 3][:40]
    late = ([f"new{i}" for i in range(200)], rare * 5)
    return [log_of(tmp_path / f"{i}.csv", each) for i, each in enumerate(late)]


def made(raw: RawRows, folder: Path) -> tuple[list[Candidate], tuple[Fold, ...]]:
    source = raw.open(fit(raw.spec, raw.inputs, raw.choice), raw.choice)
    folder.mkdir()
    return Hashing(folder, source, raw, Plan(workers=2), lambda rows, share: None).candidates({})


def slots(candidate: Candidate, fold: int) -> list[int]:
    """The features of the first 800 rows, as a fold has them."""
    parts = [part for _, part in candidate.by_fold[fold].parts([range(800)])]
    return np.concatenate([part.slots[part.indices[slice(*part.indptr[[0, -1]])]] for part in parts]).tolist()


def test_steps_learn_from_the_rows_that_a_fold_learns(logs: list[Path], tmp_path: Path) -> None:
    found, other = (made(RawRows([log], SPEC), tmp_path / log.stem)[0] for log in logs)
    assert [bool(each.scales) for each in found] == [False, True]
    for candidate, its in zip(found, other, strict=True):
        assert len(candidate.by_fold) == 5
        same = [slots(candidate, fold) == slots(its, fold) for fold in range(5)]
        assert same == [False, False, False, False, True]


def test_no_trial_depends_on_what_validation_rows_would_teach(logs: list[Path], tmp_path: Path) -> None:
    plan = Plan(3, 2, fraction=0.2)
    found, other = (
        tune(RawSource(fit(SPEC, [log]), [log]), tmp_path, plan, raw=RawRows([log], SPEC)) for log in logs
    )
    assert [each.judged for each in found.tried] == [each.judged for each in other.tried]
    assert found.rows == ROWS
    assert not found.warnings


@pytest.mark.parametrize("chosen", [None, "day < 5 or day >= 8"])
def test_folds_have_equal_numbers_of_rows_that_are_chosen(tmp_path: Path, chosen: str | None) -> None:
    bad = [3, 250, 251, 999]
    log = log_of(tmp_path / "log.csv", [], bad)
    choice = None if chosen is None else RowChoice.parse(chosen)
    raw = RawRows([log], SPEC, on_bad_rows=SKIP, choice=choice)
    (plain, _), folds = made(raw, tmp_path / "made")
    rows = [row for row in range(ROWS) if row not in bad and not (chosen and 500 <= row < 800)]
    assert plain.by_fold[0].rows == len(rows)
    assert [row for fold in folds for row in fold.judged] == [*range(len(rows))]
    sizes = [len(fold.judged) for fold in folds]
    assert max(sizes) - min(sizes) <= 4
    labels, _ = plain.by_fold[2].labels([fold.judged for fold in folds])
    whole = next(raw.open(fit(SPEC, [log], choice), choice).batches(ROWS)).labels
    assert whole is not None
    assert labels.tolist() == whole.tolist()


def test_validation_rows_by_a_condition(tmp_path: Path, logs: list[Path]) -> None:
    learnt, validation = (RowChoice.parse("day >= 8", meets=held_out) for held_out in (False, True))
    of_both = []
    for log in logs:
        raw = RawRows([log], SPEC, choice=learnt, validation=validation)
        (plain, _), folds = made(raw, tmp_path / log.stem)
        assert folds == (Fold((range(800),), range(800, ROWS)),)
        of_both.append(slots(plain, 0))
    assert of_both[0] == of_both[1]


def test_crosses_are_suggested_without_the_rows_behind_their_end(logs: list[Path]) -> None:
    found, other = (suggest_crosses(SPEC, [log], most=3, stop=800) for log in logs)
    assert found.to_json() == other.to_json()
