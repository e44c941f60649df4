"""The synthetic click log: format, repeatability, tails, drift, and that its truth is the truth."""

from __future__ import annotations

import gzip
import hashlib
import math
import resource
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from numpy.typing import ArrayLike, NDArray

from ctr.errors import DataError
from ctr.metrics.metrics import entropy
from ctr.synth import kernels
from ctr.synth.log import SynthSummary, write_click_log

ROWS = 65_536

pytestmark = pytest.mark.xdist_group("synth")  # one process writes the log, and takes it apart


@dataclass(frozen=True)
class Written:
    log: Path
    truth: Path
    summary: SynthSummary
    columns: list[tuple[bytes, ...]]
    probabilities: NDArray[np.float64]
    labels: NDArray[np.float64]


def cells(path: Path) -> list[list[bytes]]:
    return [line.split(b"\t") for line in path.read_bytes().splitlines()]


def bucket(cell: bytes) -> int:
    """The log bucket of an integer."""
    value = int(cell)
    return value if value <= 2 else 2 + math.floor(math.log(value) ** 2)


@pytest.fixture(scope="module")
def features(written: Written) -> NDArray[np.int64]:
    """The number of every cell's feature, int64[ROWS, 39]: of its column and value; -1 where it is empty."""
    numbers = count()
    found = []
    for i, column in enumerate(written.columns[1:]):
        value = bucket if i < 13 else bytes
        known: defaultdict[bytes | int, int] = defaultdict(lambda: next(numbers))
        of = {cell: known[value(cell)] if cell else -1 for cell in set(column)}
        found.append([of[cell] for cell in column])
    return np.array(found).T


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    folder = tmp_path_factory.mktemp("synth")
    log, truth = folder / "clicks.tsv", folder / "truth.parquet"
    summary = write_click_log(log, ROWS, seed=7, truth=truth)
    table = pq.read_table(truth)
    assert [str(field.type) for field in table.schema] == ["float", "uint8"]
    probabilities, labels = (table[name].to_numpy().astype(np.float64) for name in ("probability", "label"))
    return Written(log, truth, summary, list(zip(*cells(log), strict=True)), probabilities, labels)


def test_every_row_has_criteos_format(written: Written) -> None:
    labels, *columns = written.columns
    assert len(labels) == ROWS
    assert set(labels) == {b"0", b"1"}
    assert len(columns) == 13 + 26
    for i, column in enumerate(columns):
        for cell in set(column) - {b""}:
            if i < 13:
                assert -3 <= int(cell) < 2**31
            else:
                assert len(cell) == 8
                assert int(cell, 16) >= 0
                assert cell == cell.lower()
    assert written.log.read_bytes().endswith(b"\n")


def test_missing_cells_negatives_zeros_and_large_integers(written: Written) -> None:
    columns = written.columns
    missing = [column.count(b"") / ROWS for column in columns]
    rates = {1: 0.447, 2: 0, 5: 0.048, 10: 0.447, 12: 0.773, 14: 0, 16: 0.039, 32: 0.417, 35: 0.819}
    assert {i: missing[i] for i in rates} == pytest.approx(rates, abs=0.01)
    # I1 and I10 are empty together, and so are C19 and C20.
    for one, other in ((1, 10), (32, 33)):
        assert [cell == b"" for cell in columns[one]] == [cell == b"" for cell in columns[other]]
    integers = [np.array([int(cell) for cell in column if cell]) for column in columns[1:14]]
    assert [column.min() for column in integers] == [0, -2, *[0] * 11]
    assert np.mean(integers[1] < 0) == pytest.approx(0.098, abs=0.01)
    assert np.mean(integers[0] == 0) == pytest.approx(0.448, abs=0.02)
    assert integers[4].max() > 1_000_000
    assert np.median(integers[4]) < 5_000


def test_tails_are_as_heavy_as_real_ones(features: NDArray[np.int64]) -> None:
    """About 2.6 distinct features per example and 70% of them seen once (real: 2.70 and 70% in 60,000)."""
    seen = np.bincount(features[features >= 0])
    assert 2.5 < seen.size / ROWS < 2.9
    assert 0.67 < np.mean(seen == 1) < 0.73


def test_the_labels_are_drawn_from_the_truth(written: Written) -> None:
    p, labels, summary = written.probabilities, written.labels, written.summary
    assert [*map(int, written.columns[0])] == labels.tolist()
    assert 0.21 < summary.base_rate < 0.25
    assert (summary.rows, summary.positives) == (ROWS, labels.sum())
    assert summary.size_bytes == written.log.stat().st_size
    # Calibration: overall, and in each tenth of the predictions, within 4 standard deviations.
    for part in (np.arange(ROWS), *np.array_split(np.argsort(p), 10)):
        z = (labels[part] - p[part]).sum() / math.sqrt((p[part] * (1 - p[part])).sum())
        assert abs(z) < 4


def log_loss(labels: NDArray[np.float64], p: ArrayLike) -> float:
    return -float(np.log(np.where(labels == 1, p, 1 - np.asarray(p))).mean())


def test_the_truth_beats_the_base_rate_and_bounds_every_model(written: Written) -> None:
    p, labels, summary = written.probabilities, written.labels, written.summary
    assert summary.best_logloss == pytest.approx(log_loss(labels, p), rel=1e-6)
    assert summary.base_logloss == pytest.approx(entropy(summary.base_rate))
    assert summary.entropy == pytest.approx(np.mean([entropy(float(x)) for x in p]), rel=1e-6)
    assert summary.best_logloss == pytest.approx(summary.entropy, abs=0.008)
    assert 0.40 < summary.best_logloss < 0.46
    assert 0.51 < summary.base_logloss < 0.57
    assert asdict(summary).keys() >= {"rows", "base_rate", "best_logloss", "base_logloss"}


def test_most_of_the_signal_can_be_learnt(written: Written, features: NDArray[np.int64]) -> None:
    """One pass of AdaGrad over 49,152 rows closes more than 60% of the gap between base rate and truth."""
    cut = 3 * ROWS // 4
    bias = features.max() + 1
    weights, squares = np.zeros(bias + 1), np.ones(bias + 1)
    predictions = []
    for i, row in enumerate(features):
        found = np.append(row[row >= 0], bias)
        prediction = 1 / (1 + math.exp(-weights[found].sum()))
        predictions.append(prediction)
        gradient = prediction - written.labels[i]
        if i < cut:
            squares[found] += gradient * gradient
            weights[found] -= 0.1 * gradient / np.sqrt(squares[found])
    labels = written.labels[cut:]
    reached, best = log_loss(labels, predictions[cut:]), log_loss(labels, written.probabilities[cut:])
    base = entropy(float(labels.mean()))
    assert best < reached < base - 0.6 * (base - best)


def test_a_longer_log_begins_with_the_shorter_one(written: Written, tmp_path: Path) -> None:
    shorter, truth, other = tmp_path / "a.tsv", tmp_path / "a.parquet", tmp_path / "b.tsv"
    reported: list[int] = []
    write_click_log(shorter, 20_001, seed=7, truth=truth, progress=reported.append)
    assert written.log.read_bytes().startswith(shorter.read_bytes())
    assert pq.read_table(truth)["probability"].to_pylist() == written.probabilities[:20_001].tolist()
    assert reported == [16_384, 20_001]
    write_click_log(other, 20_001, seed=8)
    values = [{cell for row in cells(path) for cell in row[14:]} - {b""} for path in (shorter, other)]
    assert len(values[0] & values[1]) < 50


def test_the_bytes_are_the_same_everywhere(tmp_path: Path) -> None:
    """A changed digest means that logs made by earlier versions can no longer be made again."""
    write_click_log(tmp_path / "a.tsv", 1_000)
    digest = hashlib.sha256((tmp_path / "a.tsv").read_bytes()).hexdigest()
    assert digest == "f470dbdae02e5eec29947bbe9107aed94ce0f84d14f8238c5ea8229ff57bb733"


def test_values_and_weights_change_with_time() -> None:
    """New values take over in most columns, gradually; columns with few values keep them."""
    from ctr.synth.log import _click_model

    columns, scale, intercept = _click_model(1)
    n = 8_192

    def window(start: int) -> tuple[list[set[bytes]], float]:
        text, labels = np.empty(n * kernels.ROW_BYTES, np.uint8), np.empty(n, np.uint8)
        margins, probabilities = np.empty(n), np.empty(n)
        size = kernels.write_rows(
            np.uint64(1), start, columns, scale, intercept, text, margins, probabilities, labels
        )
        rows = [line.split(b"\t") for line in text[:size].tobytes().splitlines()]
        common = [
            {cell for cell, count in Counter(row[i] for row in rows).items() if count >= 10 and cell}
            for i in range(14, 40)
        ]
        return common, float(probabilities.mean())

    def kept(early: list[set[bytes]], late: list[set[bytes]], column: int) -> float:
        return len(early[column] & late[column]) / len(early[column])

    (first, _), (soon, _), (later, rate), (much_later, much_later_rate) = map(
        window, (0, 65_536, 700_000, 3_000_000)
    )
    busy = [1, 2, 6, 9, 10, 11, 12, 14, 17, 23]  # C2, C3, C7, C10, C11, C12, C13, C15, C18, C24
    assert np.mean([kept(first, soon, c) for c in busy]) > 0.6
    assert 0.1 < np.mean([kept(first, later, c) for c in busy]) < 0.6
    assert np.mean([kept(first, much_later, c) for c in busy]) < 0.1
    assert all(kept(first, much_later, c) == 1.0 for c in (8, 16, 19))  # C9, C17, C20
    assert 0.19 < rate < 0.28
    assert 0.19 < much_later_rate < 0.28


def test_a_compressed_log_has_the_same_rows(tmp_path: Path) -> None:
    plain, packed, again = tmp_path / "a.tsv", tmp_path / "a.tsv.gz", tmp_path / "b.tsv.gz"
    for path in (plain, packed, again):
        write_click_log(path, 3_000, seed=3)
    assert gzip.decompress(packed.read_bytes()) == plain.read_bytes()
    assert packed.read_bytes() == again.read_bytes()


@contextmanager
def largest_file(size_bytes: int) -> Iterator[None]:
    """Writing beyond `size_bytes` of any file fails, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("name", ["clicks.tsv", "clicks.tsv.gz"])
@pytest.mark.parametrize("size_bytes", [0, 100_000])
def test_a_full_disk_keeps_the_old_log_and_leaves_nothing_else(
    tmp_path: Path, name: str, size_bytes: int
) -> None:
    out = tmp_path / name
    out.write_bytes(b"old")
    with (
        largest_file(size_bytes),
        pytest.raises(DataError, match=rf"{name}: cannot write .*nothing was kept"),
    ):
        write_click_log(out, 40_000, truth=tmp_path / "truth.parquet")
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert out.read_bytes() == b"old"


def test_an_interrupt_leaves_nothing(tmp_path: Path) -> None:
    def interrupt(rows: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_click_log(tmp_path / "a.tsv", 100, truth=tmp_path / "truth.parquet", progress=interrupt)
    assert list(tmp_path.iterdir()) == []


def test_wrong_use_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="0 rows"):
        write_click_log(tmp_path / "a.tsv", 0)
    for seed in (-1, 2**64):
        with pytest.raises(DataError, match=f"seed {seed}"):
            write_click_log(tmp_path / "a.tsv", 10, seed=seed)
    with pytest.raises(DataError, match="is a folder"):
        write_click_log(tmp_path, 10)
    with pytest.raises(DataError, match="does not exist"):
        write_click_log(tmp_path / "nowhere" / "a.tsv", 10)
    with pytest.raises(DataError, match="two names"):
        write_click_log(tmp_path / "a.tsv", 10, truth=tmp_path / "a.tsv")
    assert list(tmp_path.iterdir()) == []


def test_the_largest_seed_and_one_row(tmp_path: Path) -> None:
    summary = write_click_log(tmp_path / "a.tsv", 1, seed=2**64 - 1, truth=tmp_path / "t.parquet")
    assert len(cells(tmp_path / "a.tsv")[0]) == 40
    assert summary.base_logloss == 0.0
    assert pq.read_metadata(tmp_path / "t.parquet").num_rows == 1


def test_splitmix64_known_answers() -> None:
    """The first outputs of the published generator for the seeds 0 and 1234567."""
    assert kernels.mix(np.uint64(0)) == 0xE220A8397B1DCDAF
    assert kernels.mix(np.uint64(1234567)) == 6457827717110365317


def test_hashed_normals() -> None:
    out = np.empty(200_000)
    kernels.normals(np.uint64(5), out)
    assert abs(out.mean()) < 0.01
    assert out.std() == pytest.approx(1.0, abs=0.01)
    assert np.abs(out).max() < 3.47
