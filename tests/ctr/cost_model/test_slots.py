"""Which slots a chunk has, and what becomes of them, beside what was counted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ctr.cost_model import Costs, Workload
from ctr.cost_model.slots import PRESENCE_BITS, chunk_slots, unique_features
from ctr.features import RawSource, load_spec
from ctr.features.batches import localize
from ctr.ps import layout
from ctr.ps.client import marks
from ctr.ps.log_kernels import ENTRY_BYTES


def workload(features: int, examples: int, bits: int = 28, workers: int = 1) -> Workload:
    return Workload(features=features, examples=examples, bits=bits, workers=workers, nodes=1, cores=2)


SYNTHETIC = workload(10_004_000, 9_437_184)
"""Of `ctr synth --rows 10000000 --seed 11`, hashed to 2**28 slots, the first 144 blocks of 65,536."""


def test_constants_are_those_of_the_store() -> None:
    assert marks._MOST_BITS == PRESENCE_BITS
    assert Costs().log_entry == ENTRY_BYTES
    assert Costs().fold_density == layout.FOLD_DENSITY


def test_unique_slots_are_those_of_a_click_log(click_log: Path) -> None:
    source = RawSource(load_spec("criteo"), [click_log])
    rows = 20_000
    features = localize(next(source.batches(rows))).slots.size
    for chunk in (1_000, 5_000, rows):
        found = localize(next(source.batches(chunk))).slots.size
        expected = unique_features(workload(features, rows), chunk, Costs())
        assert expected == pytest.approx(found, rel=0.12)


@pytest.mark.parametrize(
    ("chunk", "unique"),
    [(256, 12.1), (4_096, 5.99), (65_536, 2.75), (131_072, 2.23), (524_288, 1.50), (1_048_576, 1.285)],
)
def test_unique_slots_of_many_rows(chunk: int, unique: float) -> None:
    assert chunk_slots(SYNTHETIC, chunk, Costs()).unique / chunk == pytest.approx(unique, rel=0.05)


@pytest.mark.parametrize(("chunk", "pulled", "cached"), [(131_072, 0.091, 0.465), (524_288, 0.002, 0.146)])
def test_known_slots_of_many_rows(chunk: int, pulled: float, cached: float) -> None:
    found = chunk_slots(SYNTHETIC, chunk, Costs())
    assert (found.pulled + found.cached) / chunk == pytest.approx(pulled + cached, abs=0.05)


@pytest.mark.parametrize(
    ("workers", "chunk", "pulled", "cached", "added"),
    [(1, 125_000, 0.040, 0.413, 0.094), (2, 41_666, 0.246, 0.115, 0.132)],
)
def test_known_slots_of_a_short_job(
    workers: int, chunk: int, pulled: float, cached: float, added: float
) -> None:
    found = chunk_slots(workload(1_295_878, 10**6, workers=workers), chunk, Costs())
    assert found.pulled / chunk == pytest.approx(pulled, abs=0.07)
    assert found.cached / chunk == pytest.approx(cached, abs=0.05)
    assert found.added / chunk == pytest.approx(added, rel=0.1)


def test_what_folded_logs_name_is_pulled() -> None:
    """Before that, most of it is only in logs."""
    short, long = (chunk_slots(workload(10**7, n), 131_072, Costs()) for n in (10**7, 10**9))
    assert long.pulled > 3 * short.pulled
    assert long.pulled <= long.unique - long.cached


@pytest.mark.parametrize("chunk", [1, 10, 65_536, 10**9])
@pytest.mark.parametrize("features", [1, 1_000, 10**9])
def test_unique_features_stay_within_what_there_is(chunk: int, features: int) -> None:
    found = unique_features(workload(features, 10**9), chunk, Costs())
    assert 0 < found <= min(features, 39 * chunk)


def test_what_is_dense_travels_whole() -> None:
    found = chunk_slots(workload(10**6, 10**7, bits=22), 262_144, Costs())
    assert found.ranged
    assert found.pulled == found.added == found.unique
    assert found.logged == found.absent == found.cached == 0


def test_neighbours_that_share_a_bit_look_alike() -> None:
    """Features come one by one at random; those whose bit others have set are pulled in vain."""
    rng = np.random.default_rng(0)
    pushed, bits = 40_000, 10_000
    seen, told = np.zeros(bits, np.bool_), 0
    for bit in rng.integers(0, bits, pushed):
        told += not seen[bit]
        seen[bit] = True
    scale = (1 << PRESENCE_BITS) // bits
    job = workload(pushed * scale, pushed * scale, bits=PRESENCE_BITS + 6)
    found = chunk_slots(job, 1 << 20, Costs())
    assert found.absent / found.unique == pytest.approx(told / pushed, rel=0.05)
