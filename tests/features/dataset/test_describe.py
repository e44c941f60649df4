"""The figures of `describe` against the data."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from ctr.errors import DataError
from ctr.features.batches.batch import Batch, slot_dtype
from ctr.features.dataset.describe import describe, expected_features
from ctr.features.dataset.source import DatasetSource
from ctr.features.dataset.writer import write_dataset
from ctr.features.spec import parse_spec


def build(path: Path, features: int, *, bits: int, rows: int = 1000, labels: bool = True) -> np.ndarray:
    """A data set of the features 0, 1, 2, … of 10 per row, hashed at random; returns its slots."""
    rng = np.random.default_rng(bits)
    hashed = rng.integers(0, 1 << bits, features, dtype=np.uint64).astype(slot_dtype(bits))
    slots = hashed[np.arange(rows * 10) % features]
    clicks = (np.arange(rows) % 4 == 0).astype(np.float32) if labels else None
    spec = parse_spec(f"{{version: 1, source: {{format: libsvm}}, bits: {bits}}}", "test.yaml")
    write_dataset([Batch(np.arange(rows + 1) * 10, slots, labels=clicks)], spec, path)
    return slots


def test_the_figures_are_those_of_the_data(tmp_path: Path) -> None:
    slots = build(tmp_path / "set", 3000, bits=14)
    found = describe(tmp_path / "set")
    assert (found.rows, found.positives, found.base_rate) == (1000, 250, 0.25)
    assert (found.features, found.features_per_example) == (10_000, 10.0)
    assert (found.bits, found.slots_total) == (14, 1 << 14)
    assert found.slots_used == np.unique(slots).size
    assert found.parts == found.to_json()["shards"] == 1
    assert found.bytes == (tmp_path / "set" / "shard-00000.arrow").stat().st_size
    assert len(found.spec_fingerprint) == 64


@pytest.mark.parametrize("bits", [12, 14, 20])
def test_features_and_collisions_are_estimated_from_the_slots_used(tmp_path: Path, bits: int) -> None:
    slots = build(tmp_path / "set", 3000, bits=bits)
    found = describe(tmp_path / "set")
    assert found.distinct_features == pytest.approx(3000, rel=0.05)
    assert found.bits_wanted == 19  # 2999 / 2**18 is 1.1%
    assert found.collisions == pytest.approx(3000 - np.unique(slots).size, abs=100)


@pytest.mark.parametrize("bits", [1, 5, 6, 7])
def test_all_slots_used_says_nothing_about_the_features(tmp_path: Path, bits: int) -> None:
    build(tmp_path / "set", 5000, bits=bits)
    found = describe(tmp_path / "set")
    assert found.slots_used == found.slots_total == 1 << bits
    assert found.distinct_features is None
    assert found.collisions is None
    assert found.bits_wanted is None


@pytest.mark.parametrize("bits", [31, 40])
def test_above_30_bits_slots_are_estimated(tmp_path: Path, bits: int) -> None:
    slots = build(tmp_path / "set", 10_000, bits=bits)
    assert describe(tmp_path / "set").slots_used == pytest.approx(np.unique(slots).size, rel=0.001)


def test_without_labels_there_is_no_base_rate(tmp_path: Path) -> None:
    build(tmp_path / "set", 10, bits=10, labels=False)
    found = describe(tmp_path / "set")
    assert found.base_rate is None
    assert "positives            no labels" in found.lines()


def test_the_figures_as_text_and_as_json(tmp_path: Path) -> None:
    build(tmp_path / "set", 3000, bits=14)
    found = describe(tmp_path / "set")
    assert json.loads(json.dumps(found.to_json()))["slots_used"] == found.slots_used
    text = "\n".join(found.lines())
    assert "rows                 1,000\n" in text
    assert "positives            250 (25.00%)\n" in text
    assert "of 2**14 = 16,384 (" in text
    assert f"about {found.collisions:,} (" in text


def test_the_text_says_so_when_all_slots_are_used(tmp_path: Path) -> None:
    build(tmp_path / "set", 5000, bits=5)
    assert sum("`bits: 5` is too few" in line for line in describe(tmp_path / "set").lines()) == 2


def test_a_changed_byte_is_noticed_wherever_it_is(tmp_path: Path) -> None:
    rows = 5 * 100
    spec = parse_spec("{version: 1, source: {format: libsvm}, bits: 10}", "test.yaml")
    batch = Batch(np.arange(101), np.arange(100, dtype=np.uint32), labels=np.zeros(100, np.float32))
    write_dataset([batch] * 5, spec, tmp_path / "set", block_rows=100)
    assert describe(tmp_path / "set").rows == rows
    part = tmp_path / "set" / "shard-00001.arrow"
    data = bytearray(part.read_bytes())
    data[data.index(batch.slots.tobytes()) + 4 * 99] ^= 0x80  # slot 99 becomes 227: still the largest
    part.write_bytes(data)
    assert DatasetSource(tmp_path / "set").sample(1000).slots.max() == 227
    for read in (
        lambda: describe(tmp_path / "set"),
        lambda: list(DatasetSource(tmp_path / "set", verify=True).batches(100)),
    ):
        with pytest.raises(DataError, match=r"shard-00001\.arrow: .*SHA-256 is not the manifest's"):
            read()


def test_a_folder_that_is_no_data_set(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"without manifest\.json"):
        describe(tmp_path)


def test_expected_features_inverts_the_expected_slots() -> None:
    total = 1 << 20
    for features in (0, 1, 2, 1000, 500_000, 3_000_000):
        used = round(total * -np.expm1(features * np.log1p(-1 / total)))
        assert expected_features(used, total) == pytest.approx(features, rel=1e-4, abs=1)
    assert expected_features(1000, 1 << 40) == 1000
