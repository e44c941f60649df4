"""Log loss and AUC on real data, beside what peers reach there.

The data is not part of the project; without it these tests are skipped.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.training.accuracy import CASES, Case, ours, split

DATA = Path(__file__).parents[4] / "shared" / "data"

LIMITS = {
    # criteo: what was asked of the default settings; VW --ftrl reaches 0.44790 / 0.77550
    "criteo": (0.4485, 0.7745),
    "criteo, drafted spec": (0.4480, 0.7755),
    "criteo, 4 x 2,000": (0.4500, 0.7745),
    # the others: within 1% of scikit-learn's best log loss
    "avazu": (0.40357 * 1.01, 0.72),
    "a9a": (0.32399 * 1.01, 0.90),
    "w6a": (0.03112 * 1.01, 0.98),
}


@pytest.mark.usefixtures("benchmarks_here")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_as_good_as_peers(case: Case, tmp_path: Path) -> None:
    if not (DATA / case.file).exists():
        pytest.skip(f"the real data {case.file} is not beside the project, in ../shared/data")
    loss, auc = ours(case, *split(DATA, tmp_path, case), tmp_path)
    most, least = LIMITS[case.name]
    assert loss <= most
    assert auc >= least


# w6a: scikit-learn's at its best setting on the test rows; criteo: what was asked, 0.1% below scikit-learn
@pytest.mark.slow
@pytest.mark.usefixtures("benchmarks_here")
@pytest.mark.parametrize(
    ("name", "most", "least"), [("w6a", 0.03112, 0.985), ("criteo, drafted spec", 0.4473, 0.776)]
)
def test_settings_found_on_the_training_rows_alone_are_as_good_as_peers(
    name: str, most: float, least: float, tmp_path: Path
) -> None:
    case = next(case for case in CASES if case.name == name)
    if not (DATA / case.file).exists():
        pytest.skip(f"the real data {case.file} is not beside the project, in ../shared/data")
    loss, auc = ours(case, *split(DATA, tmp_path, case), tmp_path, ["--auto"])
    assert loss <= most
    assert auc >= least
