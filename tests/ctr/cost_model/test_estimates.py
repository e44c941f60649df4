"""What a job through Redis will cost: the model beside encoders, drawn numbers and measured runs."""

from __future__ import annotations

from collections import Counter
from math import isfinite
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.crc import key_slot

from ctr.cost_model import LEAST_ROUNDS, Bound, Costs, Workload, default_bits, estimate, variants
from ctr.cost_model.estimates import busiest_share
from ctr.cost_model.requests import MOST_REPEATS, OWN_LOG_BEHIND, RANGES_TOGETHER, own_log_moves
from ctr.cost_model.slots import chunk_slots
from ctr.cost_model.workload import LARGEST_STRING_BITS, LEAST_PARTITIONS, MOST_STRING_BITS
from ctr.learn.rounds import default_chunk
from ctr.ps import layout as redis_layout
from ctr.ps.client import push_queue
from ctr.ps.client.own_log import OwnLog
from ctr.ps.redis import Logged
from ctr.ps.wire.keys import Keys
from ctr.ps.wire.resp_kernels import pull_size, push_size


def workload(**changes: Any) -> Workload:
    usual = {"features": 10**6, "examples": 10**7, "workers": 1, "nodes": 1, "bits": 22}
    return Workload(**{**usual, **changes})


LARGE = {"features": 10**8, "examples": 10**9, "bits": 33, "chunk": 1 << 20}
FOLDED = {**LARGE, "bits": 29}  # logs become so long that they are folded


# --- the parts ---


@given(st.integers(1, 1 << 40))
def test_default_bits_are_the_least_that_keep_features_apart(features: int) -> None:
    bits = default_bits(features)
    assert 1 <= bits <= 40
    assert (1 << bits) >= 4 * features or bits == 40
    assert (1 << (bits - 1)) < 4 * features


def test_the_layout_is_that_of_the_store() -> None:
    assert LARGEST_STRING_BITS == redis_layout.LARGEST_STRING_BITS
    assert MOST_STRING_BITS == redis_layout.MOST_STRING_BITS
    assert LEAST_PARTITIONS == redis_layout.LEAST_PARTITIONS
    assert redis_layout.RANGES_TOGETHER == RANGES_TOGETHER
    assert redis_layout.OPTIMISTIC == MOST_REPEATS
    assert push_queue._LEAST_KEPT == OWN_LOG_BEHIND
    assert Costs().near_density == redis_layout.NEAR_DENSITY
    assert Costs().far_density == redis_layout.FAR_DENSITY
    assert default_chunk(2, lambda: 2 * LEAST_ROUNDS * 1_000 + 167, in_memory=False) == 1_000


@pytest.mark.parametrize(
    ("bits", "partitions", "strings"),
    [
        (1, 2, 2),
        (4, 16, 16),
        (25, 16, 16),
        (26, 16, 32),
        (28, 16, 128),
        (30, 64, 512),
        (40, 1 << 16, 1 << 19),
    ],
)
def test_partitions(bits: int, partitions: int, strings: int) -> None:
    found, layout = workload(bits=bits), redis_layout.Layout.of(bits)
    assert (found.partitions, found.strings) == (partitions, strings)
    assert (layout.partitions.count, layout.strings.count) == (partitions, strings)


@pytest.mark.parametrize(("features", "bits"), [(2_000, 10), (30_000, 17), (1, 1), (2, 40)])
def test_colliding_features_as_counted(features: int, bits: int) -> None:
    slots = np.random.default_rng(0).integers(0, 1 << bits, features)
    _, at, counts = np.unique(slots, return_inverse=True, return_counts=True)
    expected = estimate(workload(features=features, bits=bits)).colliding
    assert expected == pytest.approx((counts[at] > 1).mean(), abs=0.02)


@pytest.mark.parametrize(("partitions", "nodes"), [(64, 2), (64, 3), (64, 8), (512, 16), (4, 3)])
def test_the_busiest_node_of_a_cluster(partitions: int, nodes: int) -> None:
    keys = Keys("default")
    counts = Counter(key_slot(keys.state(p)) * nodes // 16_384 for p in range(partitions))
    assert busiest_share(partitions, nodes) * partitions == max(counts.values())


@given(st.integers(0, 19), st.integers(1, 1_000))
def test_the_busiest_node_has_a_fair_share_or_more(log_partitions: int, nodes: int) -> None:
    share = busiest_share(1 << log_partitions, nodes)
    assert 1 / nodes <= share <= 1
    assert busiest_share(1 << log_partitions, 1) == 1


def test_bytes_on_the_wire_are_those_of_the_encoders() -> None:
    rng = np.random.default_rng(0)
    offsets = np.unique(rng.integers(0, 1 << 21, 20_000)).astype(np.uint32)
    increments = (rng.normal(0, 2.0**13, offsets.size) * 2.0**32).astype(np.int64)
    key = np.frombuffer(Keys("default").state(17), np.uint8)
    costs = Costs()
    assert pull_size(offsets, key) / offsets.size == pytest.approx(costs.pull_request, rel=0.1)
    assert push_size(offsets, increments, key) / offsets.size == pytest.approx(costs.push_request, rel=0.1)


# --- the whole ---


@pytest.mark.parametrize(
    ("changes", "least", "most"),
    [
        ({"bits": 22, "features": 1_296_000, "examples": 10**6, "chunk": 125_000}, 1.2e6, 2.1e6),
        ({"bits": 28, "features": 10_080_000, "examples": 9_500_000, "chunk": 262_144}, 0.9e6, 1.6e6),
    ],
)
def test_measured_jobs(changes: dict[str, Any], least: float, most: float) -> None:
    """One worker and one Redis on two cores, synthetic rows; strings were made in training then."""
    job = workload(**changes, cores=2)
    expected = estimate(job)
    seconds = job.examples / expected.examples_per_second + expected.allocate_s
    assert least < job.examples / seconds < most
    assert expected.ranged == (changes["bits"] == 22)


@pytest.mark.parametrize(
    ("changes", "bound"),
    [
        ({**LARGE, "workers": 8}, Bound.STORE),
        ({**LARGE, "nodes": 500, "network_gbit": 25, "chunk": 1 << 23}, Bound.WORKER),
        ({**LARGE, "bits": 36, "nodes": 500, "network_gbit": 25}, Bound.REQUESTS),
        ({**LARGE, "workers": 8, "nodes": 8, "network_gbit": 0.1}, Bound.NETWORK),
        ({**LARGE, "workers": 8, "nodes": 8, "cores": 2}, Bound.CORES),
    ],
)
def test_what_bounds_a_job(changes: dict[str, Any], bound: Bound) -> None:
    assert estimate(workload(**changes)).bound is bound


def test_twice_of_what_bounds_it_helps() -> None:
    def speed(**changes: Any) -> float:
        return estimate(workload(**LARGE, **changes)).examples_per_second

    served = {"workers": 32, "network_gbit": 100}
    assert speed(**served, nodes=2) > 1.5 * speed(**served, nodes=1)  # the busier has more than half
    fast = {"nodes": 500, "network_gbit": 25}
    assert speed(workers=2, **fast) == pytest.approx(2 * speed(workers=1, **fast), rel=0.05)
    assert speed(workers=16) == pytest.approx(speed(workers=8), rel=0.2)  # as every worker reads all logs


def test_memory() -> None:
    one = estimate(workload(**FOLDED))
    # 8.02 bytes, 1/8 for the bitmap, 6/8 for entries of the log, and 1/2 that Redis gives it ahead
    assert one.state_ram == pytest.approx(2**29 * 9.4, rel=0.01)
    assert one.state_ram < one.node_ram < one.snapshot_ram
    many = estimate(workload(**FOLDED, nodes=8))
    assert one.state_ram / 8 <= many.state_ram < one.state_ram / 5
    assert many.primaries_ram == pytest.approx(8 * many.node_ram)
    smaller = estimate(workload(**{**FOLDED, "chunk": 65_536}))
    assert one.worker_ram > 1.5 * smaller.worker_ram
    # a few features in a vast model make few of its partitions
    assert estimate(workload(features=100, bits=40)).state_ram < 100 * 2**24 * 9


def test_folds_cost_servers_and_workers() -> None:
    roomy = {"own_log_entries": 1 << 30}  # for logs that are not folded
    longer = estimate(workload(**{**FOLDED, "examples": 2 * FOLDED["examples"]}))
    once = estimate(workload(**FOLDED), Costs(**roomy))
    spared = estimate(workload(**FOLDED), Costs(fold_density=1, **roomy))
    assert once.store_s > spared.store_s
    assert once.requests_s > spared.requests_s
    assert once.bytes_in > spared.bytes_in
    assert longer.state_ram == pytest.approx(once.state_ram)


def test_a_worker_whose_own_log_is_full_adds_what_it_would_have_deferred() -> None:
    """So a job of twice the length logs as much on its own account, and its servers have more to do."""
    own = {"features": 10**9, "bits": 34, "chunk": 1 << 20}
    short, long = (estimate(workload(**own, examples=n)) for n in (10**8, 2 * 10**8))
    roomy = estimate(workload(**own, examples=10**8), Costs(own_log_entries=1 << 40))
    assert long.logged_slots == pytest.approx(short.logged_slots / 2, rel=0.05)
    assert long.added_slots + long.logged_slots == pytest.approx(long.unique_slots)
    assert short.store_s > 4 * roomy.store_s
    assert short.added_slots > 5 * roomy.added_slots


@pytest.mark.parametrize("pushes", [8, 20, 48, 104])
def test_entries_of_a_workers_own_log_move_as_often_as_counted(pushes: int) -> None:
    strings = redis_layout.Layout.of(20).strings
    log, runs, moved = OwnLog(strings), [], 0
    for number in range(pushes - OWN_LOG_BEHIND):
        slots = np.arange(number * 10, (number + 1) * 10, dtype=np.uint32)
        log.put(Logged(slots, np.ones(10, np.int64)), np.full(strings.count, -1, np.int64))
        runs.append(10)
        while len(runs) > 1 and runs[-2] <= 2 * runs[-1]:
            runs[-2:] = [runs[-2] + runs[-1]]
            moved += runs[-1]
        assert [slots.size for slots, *_ in log._runs] == runs
    job = workload(features=10**7, examples=pushes * 65_536, bits=28)
    expected = own_log_moves(job, job.chunk, chunk_slots(job, job.chunk, Costs()), Costs())
    assert expected == pytest.approx(moved / (pushes * 10), rel=0.25)


def test_a_thread_waits_for_a_core_where_there_are_fewer_than_threads() -> None:
    """So the busiest worker of two cores takes longer by that, and that of four does not."""
    job = {"features": 10**7, "examples": 10**7, "bits": 28, "chunk": 524_288}
    few, enough = (
        [estimate(workload(**job, cores=cores), Costs(queued=queued)).worker_s for queued in (0, 0.5)]
        for cores in (2, 4)
    )
    assert few[1] == pytest.approx(1.5 * few[0])
    assert enough[0] == enough[1] == few[0]


def test_larger_chunks_save_what_is_fixed_per_partition() -> None:
    small, large = (estimate(workload(**{**LARGE, "chunk": chunk})) for chunk in (1 << 18, 1 << 20))
    assert large.store_partitions_s == pytest.approx(small.store_partitions_s / 4, rel=0.01)
    assert large.worker_partitions_s == pytest.approx(small.worker_partitions_s / 4, rel=0.01)
    assert large.store_partitions_s < large.store_s
    assert large.worker_partitions_s < large.requests_s


def test_a_slower_machine_takes_longer_by_as_much() -> None:
    job = workload(**LARGE, workers=8, cores=2)
    once, thrice = estimate(job), estimate(job, Costs().slower(training=3, requests=3, servers=3))
    assert thrice.total_s == pytest.approx(3 * once.total_s)
    assert (thrice.node_ram, thrice.bytes_out) == (once.node_ram, once.bytes_out)


def test_training_requests_and_servers_are_slower_on_their_own() -> None:
    job = workload(**LARGE, workers=8, nodes=2)
    same = {"training": 1, "requests": 1, "servers": 1}

    def times(**longer: int) -> tuple[float, float, float, float]:
        found = estimate(job, Costs().slower(**{**same, **longer}))
        return found.worker_s, found.requests_s - found.take_over_s, found.store_s, found.allocate_s

    worker_s, requests_s, store_s, allocate_s = times()
    assert times(training=3) == pytest.approx((3 * worker_s, requests_s, store_s, allocate_s))
    assert times(requests=3) == pytest.approx((worker_s, 3 * requests_s, store_s, allocate_s))
    assert times(servers=3) == pytest.approx((worker_s, requests_s, 3 * store_s, 3 * allocate_s))


def test_workers_that_share_ranges_repeat_pushes() -> None:
    """As counted: two workers sent 961 MB with one Redis, and 1,133 MB with two; one sends what it must."""
    job = {"features": 1_296_000, "examples": 10**6, "bits": 22, "chunk": 41_666, "cores": 2}
    alone, two, two_and_two = (
        estimate(workload(**job, workers=workers, nodes=nodes)).bytes_out
        for workers, nodes in ((1, 1), (2, 1), (2, 2))
    )
    assert alone == pytest.approx(10**6 / 41_666 * 2**25 / 10**6)
    assert (two, two_and_two) == pytest.approx((961, 1_133), rel=0.05)
    crowd = estimate(workload(**job, workers=20)).bytes_out
    assert crowd == pytest.approx(alone * (1 + MOST_REPEATS))


def test_strings_are_made_before_training() -> None:
    job = workload(**LARGE)
    expected, instant = estimate(job), estimate(job, Costs(allocate_ns=0))
    assert expected.examples_per_second == instant.examples_per_second
    assert expected.startup_s == pytest.approx(instant.startup_s + expected.allocate_s)
    assert expected.total_s == pytest.approx(instant.total_s + expected.allocate_s)


def test_passes_repeat_the_training_and_not_the_start() -> None:
    once, thrice = (estimate(workload(examples=20_000_000, passes=passes)) for passes in (1, 3))
    assert 2.5 * once.total_s < thrice.total_s < 3 * once.total_s
    assert thrice.examples_per_second == pytest.approx(once.examples_per_second, rel=0.02)


def test_one_chunk_overlaps_with_nothing() -> None:
    expected = estimate(workload(examples=50_000, nodes=4, cores=100))
    training = 50_000 / expected.examples_per_second
    assert training == pytest.approx(expected.worker_s + expected.fill_s)
    assert expected.fill_s > 0


def test_short_data_shards_are_taken_over_more_often() -> None:
    """With few chunks for each worker, data shards are short."""
    few, many = (estimate(workload(workers=2, examples=n, chunk=65_536)) for n in (2**20, 2**25))
    assert few.take_over_s / few.requests_s > 2 * many.take_over_s / many.requests_s
    assert few.requests_s > few.take_over_s > 0


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
    for name in expected.__slots__:
        value = getattr(expected, name)
        assert isinstance(value, str) or (isfinite(value) and value >= 0), name
    assert 0 <= expected.colliding <= 1
    assert 0 < expected.unique_slots <= job.features_per_example * (1 + 1e-9)
    assert expected.unique_slots * min(job.chunk, job.examples) <= job.slots * (1 + 1e-9)
    assert expected.pulled_slots <= expected.unique_slots * (1 + 1e-9)
    assert expected.added_slots + expected.logged_slots == pytest.approx(expected.unique_slots)
    busy = max(expected.requests_s, expected.store_s, expected.worker_s, expected.network_s, expected.cores_s)
    assert expected.total_s >= job.passes * busy
    slower = estimate(Workload(**{**figures, "passes": job.passes + 1}))
    assert slower.total_s >= expected.total_s


def test_variants_stay_within_limits() -> None:
    assert list(variants(workload())) == [
        "as asked",
        "twice the nodes",
        "twice the workers",
        "twice both",
        "4 times the chunk",
    ]
    assert list(variants(workload(nodes=1_000, chunk=10**9))) == ["as asked", "twice the workers"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("features", 0),
        ("features", (1 << 40) + 1),
        ("examples", -1),
        ("workers", 0),
        ("nodes", 1_001),
        ("bits", 0),
        ("bits", 41),
        ("chunk", 0),
        ("features_per_example", 0),
        ("network_gbit", 0.0),
        ("network_gbit", float("nan")),
        ("network_gbit", float("inf")),
        ("passes", 0),
        ("cores", 0),
    ],
)
def test_figures_that_make_no_sense(name: str, value: float) -> None:
    option = name.removesuffix("_gbit").replace("_", "-")
    with pytest.raises(ValueError, match=f"--{option} .*: give a number from .* to "):
        workload(**{name: value})
