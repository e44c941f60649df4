"""What a job through Redis will cost: the model beside counts, encoders and measured runs."""

from __future__ import annotations

from collections import Counter
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.crc import key_slot

from benchmarks.store.yardsticks import slower
from ctr.features import RawSource, load_spec
from ctr.features.batches import localize
from ctr.jobs.cost_model import (
    LEAST_ROUNDS,
    Costs,
    Workload,
    chunk_slots,
    default_bits,
    estimate,
    reading_pays,
    unique_features,
)
from ctr.jobs.training.distributed import describe_job
from ctr.jobs.training.setup import set_up
from ctr.learn.rounds import default_chunk
from ctr.ps.wire import Keys, bitfield_add, bitfield_read
from ctr.settings import TrainJob


def workload(**changes: Any) -> Workload:
    usual = {"features": 10**6, "examples": 10**7, "workers": 1, "nodes": 1, "bits": 22, "chunk": 65_536}
    return Workload(**{**usual, **changes})


LARGE = {"features": 10**8, "examples": 10**9, "bits": 33, "chunk": 1 << 20}
FOLDED = {**LARGE, "bits": 29}  # logs become so long that they are folded
SYNTHETIC = workload(features=10_004_000, examples=9_437_184, bits=28, cores=2)
"""Of `ctr synth --rows 10000000 --seed 11`, hashed to 2**28 slots, the first 144 blocks of 65,536."""


def test_reading_of_logs_ends_where_it_stops_paying() -> None:
    """What is read grows with the square of the workers: it took two thirds of the pace of 1,000."""
    many = workload(features=4 * 10**9, examples=10**11, bits=34, nodes=50, workers=1_000, chunk=1 << 20)
    reads = [
        chunk_slots(many.with_values(workers=workers), many.chunk, Costs()).reads_logs
        for workers in (2, 10, 100, 1_000)
    ]
    assert reads == sorted(reads, reverse=True)
    assert reads[0]
    assert not reads[-1]
    speeds = [
        estimate(many.with_values(workers=workers)).examples_per_second for workers in (100, 300, 1_000)
    ]
    assert min(speeds) > 0.99 * speeds[0]
    assert reading_pays(10, 1_000, 500, Costs())
    assert not reading_pays(100, 1_000, 500, Costs())


def test_a_thousand_workers_and_two_hundred_nodes() -> None:
    large = workload(features=4 * 10**9, examples=10**11, bits=34, nodes=200, workers=1_000, chunk=1 << 20)
    assert large.layout.partitions.count >= 4 * 200
    assert estimate(large).examples_per_second > 60e6


@given(st.integers(1, 1 << 40))
def test_default_bits_are_the_least_that_keep_features_apart(features: int) -> None:
    bits = default_bits(features)
    assert 1 <= bits <= 40
    assert (1 << bits) >= 4 * features or bits == 40
    assert (1 << (bits - 1)) < 4 * features


def test_fewer_rounds_than_the_default_are_too_few() -> None:
    assert default_chunk(2, lambda: 2 * LEAST_ROUNDS * 1_000 + 167, in_memory=False) == 1_000


@pytest.mark.parametrize(("features", "bits"), [(2_000, 10), (30_000, 17), (1, 1), (2, 40)])
def test_colliding_features_as_counted(features: int, bits: int) -> None:
    slots = np.random.default_rng(0).integers(0, 1 << bits, features)
    _, at, counts = np.unique(slots, return_inverse=True, return_counts=True)
    assert workload(features=features, bits=bits).colliding == pytest.approx(
        (counts[at] > 1).mean(), abs=0.02
    )


@pytest.mark.parametrize(("bits", "nodes"), [(30, 2), (30, 3), (30, 8), (33, 16), (2, 3)])
def test_the_busiest_node_of_a_cluster(bits: int, nodes: int) -> None:
    job, keys = workload(bits=bits, nodes=nodes), Keys("default")
    partitions = job.layout.partitions.count
    counts = Counter(key_slot(keys.state(p)) * nodes // 16_384 for p in range(partitions))
    assert job.busiest_share * partitions == max(counts.values())
    assert workload(bits=bits).busiest_share == 1


def test_bytes_on_the_wire_are_about_those_of_the_encoders() -> None:
    rng = np.random.default_rng(0)
    offsets = np.unique(rng.integers(0, 1 << 21, 20_000)).astype(np.uint32)
    increments = (rng.normal(0, 2.0**13, offsets.size) * 2.0**32).astype(np.int64)
    key = Keys("default").state(17)
    moved = len(bitfield_read(key, offsets)) + len(bitfield_add(key, offsets, increments))
    assert moved / (2 * offsets.size) == pytest.approx(Costs().moved_bytes, rel=0.1)


# The slots of a chunk


def test_unique_slots_are_those_of_a_click_log(click_log: Path) -> None:
    source = RawSource(load_spec("criteo"), [click_log])
    rows = 20_000
    job = workload(features=localize(next(source.batches(rows))).slots.size, examples=rows)
    for chunk in (1_000, 5_000, rows):
        counted = localize(next(source.batches(chunk))).slots.size
        assert unique_features(job, chunk, Costs()) == pytest.approx(counted, rel=0.12)


@pytest.mark.parametrize(
    ("chunk", "unique"),
    [(256, 12.1), (4_096, 5.99), (65_536, 2.75), (131_072, 2.23), (524_288, 1.50), (1_048_576, 1.285)],
)
def test_unique_slots_of_many_rows(chunk: int, unique: float) -> None:
    assert chunk_slots(SYNTHETIC, chunk, Costs()).unique / chunk == pytest.approx(unique, rel=0.05)


@pytest.mark.parametrize(
    ("workers", "chunk", "pulled", "added"), [(1, 125_000, 0.040, 0.094), (2, 41_666, 0.246, 0.132)]
)
def test_slots_of_a_short_job(workers: int, chunk: int, pulled: float, added: float) -> None:
    job = workload(features=1_295_878, examples=10**6, bits=28, workers=workers, cores=2)
    slots = chunk_slots(job, chunk, Costs())
    assert slots.pulled / chunk == pytest.approx(pulled, abs=0.07)
    assert slots.added / chunk == pytest.approx(added, rel=0.1)
    assert slots.added + slots.logged == pytest.approx(slots.unique)


def test_what_folded_logs_name_is_pulled() -> None:
    """Before that, most of it is only in logs."""
    short, long = (
        chunk_slots(workload(features=10**7, examples=n, bits=28), 131_072, Costs()) for n in (10**7, 10**9)
    )
    assert long.pulled > 3 * short.pulled
    assert long.pulled <= long.unique


@pytest.mark.parametrize("chunk", [1, 10, 65_536, 10**9])
@pytest.mark.parametrize("features", [1, 1_000, 10**9])
def test_unique_features_stay_within_what_there_is(chunk: int, features: int) -> None:
    unique = unique_features(workload(features=features, examples=10**9), chunk, Costs())
    assert 0 < unique <= min(features, 39 * chunk)


def test_what_is_dense_travels_whole() -> None:
    slots = chunk_slots(workload(cores=2), 262_144, Costs())
    assert slots.ranged
    assert slots.pulled == slots.added == slots.unique
    assert slots.logged == 0


# The whole job


@pytest.mark.parametrize(
    ("changes", "least", "most"),
    [
        ({"bits": 22, "features": 1_296_000, "examples": 10**6, "chunk": 125_000}, 1.2e6, 2.1e6),
        ({"bits": 28, "features": 10_080_000, "examples": 9_500_000, "chunk": 262_144}, 0.9e6, 1.6e6),
    ],
)
def test_measured_jobs(changes: dict[str, Any], least: float, most: float) -> None:
    """One worker and one Redis on two cores, synthetic rows."""
    expected = estimate(workload(**changes, cores=2))
    assert least < expected.examples_per_second < most
    assert expected.slots.ranged == (changes["bits"] == 22)


@pytest.mark.parametrize(
    ("changes", "bound"),
    [
        ({**LARGE, "workers": 8}, "servers"),
        ({**LARGE, "nodes": 500, "network_gbit": 25, "chunk": 1 << 23}, "workers' training"),
        ({**LARGE, "bits": 36, "nodes": 500, "network_gbit": 25}, "workers' requests"),
        ({**LARGE, "workers": 8, "nodes": 8, "network_gbit": 0.1}, "network"),
        ({**LARGE, "workers": 8, "nodes": 8, "cores": 2}, "all cores"),
    ],
)
def test_what_bounds_a_job(changes: dict[str, Any], bound: str) -> None:
    assert estimate(workload(**changes)).bound == bound


def test_twice_of_what_bounds_it_helps() -> None:
    def speed(**changes: Any) -> float:
        return estimate(workload(**LARGE, **changes)).examples_per_second

    served = {"workers": 32, "network_gbit": 100}
    assert speed(**served, nodes=2) > 1.5 * speed(**served, nodes=1)  # the busier has more than half
    fast = {"nodes": 500, "network_gbit": 25}
    assert speed(workers=2, **fast) == pytest.approx(2 * speed(workers=1, **fast), rel=0.05)
    assert speed(workers=16) == pytest.approx(speed(workers=8), rel=0.2)  # as every worker reads all logs


def test_memory() -> None:
    one, many = estimate(workload(**FOLDED)), estimate(workload(**FOLDED, nodes=8))
    # 8.02 bytes, 1/8 for the bitmap, 6/8 for entries of the log, and 1/2 that Redis gives it ahead
    assert one.node_ram == pytest.approx(2**29 * 9.4, rel=0.01)
    assert one.node_ram / 8 <= many.node_ram < one.node_ram / 5
    smaller = estimate(workload(**{**FOLDED, "chunk": 65_536}))
    assert one.worker_ram > 1.5 * smaller.worker_ram


def test_folds_cost_servers_and_workers() -> None:
    job = workload(**FOLDED)
    once, spared = estimate(job), estimate(job, Costs(server_fold_us=0, request_fold_us=0))
    assert once.busy_s["servers"] > spared.busy_s["servers"]
    assert once.busy_s["workers' requests"] > spared.busy_s["workers' requests"]


def test_a_thread_waits_for_a_core_where_there_are_fewer_than_threads() -> None:
    """So the busiest worker of two cores takes longer by that, and that of four does not."""
    job = {"features": 10**7, "examples": 10**7, "bits": 28, "chunk": 524_288}
    few, enough = (
        [
            estimate(workload(**job, cores=cores), Costs(queued=queued)).busy_s["workers' training"]
            for queued in (0, 0.5)
        ]
        for cores in (2, 4)
    )
    assert few[1] == pytest.approx(1.5 * few[0])
    assert enough[0] == enough[1] == few[0]


def test_training_requests_and_servers_are_slower_on_their_own() -> None:
    job = workload(**LARGE, workers=8, nodes=2)

    def times(training: float = 1, requests: float = 1, servers: float = 1) -> list[float]:
        busy_s = estimate(job, slower(training, requests, servers)).busy_s
        return [busy_s[name] for name in ("workers' training", "workers' requests", "servers")]

    once = np.array(times())
    assert times(training=3) == pytest.approx(once * [3, 1, 1])
    assert times(requests=3) == pytest.approx(once * [1, 3, 1])
    assert times(servers=3) == pytest.approx(once * [1, 1, 3])


def test_passes_repeat_the_training_and_not_the_start() -> None:
    once, thrice = (estimate(workload(examples=20_000_000, passes=passes)) for passes in (1, 3))
    assert 2.5 * once.total_s < thrice.total_s < 3 * once.total_s
    assert thrice.examples_per_second == pytest.approx(once.examples_per_second, rel=0.02)


@given(
    features=st.integers(1, 1 << 40),
    examples=st.integers(1, 10**15),
    workers=st.integers(1, 10_000),
    nodes=st.integers(1, 1_000),
    bits=st.integers(1, 40),
    chunk=st.integers(1, 10**9),
    features_per_example=st.integers(1, 100_000),
    network_gbit=st.floats(0.001, 100_000),
    passes=st.integers(1, 9_999),
    cores=st.none() | st.integers(1, 100_000),
)
def test_any_job_has_a_finite_price(**figures: Any) -> None:
    job = Workload(**figures)
    expected = estimate(job)
    for value in (expected.node_ram, expected.worker_ram, expected.rounds, *expected.busy_s.values()):
        assert isfinite(value)
        assert value >= 0
    slots, chunk = expected.slots, min(job.chunk, job.examples)
    assert 0 <= job.colliding <= 1
    assert 0 < slots.unique <= min(job.slots, chunk * job.features_per_example) * (1 + 1e-9)
    assert slots.pulled <= slots.unique * (1 + 1e-9)
    assert slots.ranged or slots.added + slots.logged == pytest.approx(slots.unique)
    assert expected.total_s >= job.passes * max(expected.busy_s.values())
    assert estimate(Workload(**{**figures, "passes": job.passes + 1})).total_s >= expected.total_s


@pytest.mark.parametrize(("settings", "presence"), [({"workers": 2}, True), ({"workers": 900}, False)])
@pytest.mark.parametrize("chosen", [None, True])
def test_a_job_of_many_workers_reads_no_logs_unless_it_is_told_to(
    click_log: Path, tmp_path: Path, settings: dict[str, int], presence: bool, chosen: bool | None
) -> None:
    job = TrainJob(
        inputs=[click_log],
        spec="criteo",
        model=tmp_path / "m",
        store="redis://h",
        chunk=100,
        presence=chosen,
        **settings,
    )
    assert describe_job(set_up(job)).filters.presence is (presence or chosen is True)
