"""What a job through Redis will cost: the model beside data, encoders and a measured run; `ctr ps plan`."""

from __future__ import annotations

import json
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from ctr.cli.ps.plan import plan
from ctr.cost_model import LEAST_ROUNDS, Bound, Costs, Workload, assumptions, default_bits, estimate, variants
from ctr.cost_model.estimates import busiest_share, unique_features
from ctr.cost_model.workload import LARGEST_PARTITION_BITS, LEAST_PARTITIONS
from ctr.learn.rounds import default_chunk
from features import RawSource, load_spec
from features.batches import localize
from ps.redis import layout as redis_layout
from ps.wire.resp_kernels import pull_size, push_size


def workload(**changes: Any) -> Workload:
    usual = {"features": 10**6, "examples": 10**7, "workers": 1, "nodes": 1, "bits": 22}
    return Workload(**{**usual, **changes})


LARGE = {"features": 10**8, "examples": 10**9, "bits": 29}


# --- the parts ---


@given(st.integers(1, 1 << 40))
def test_default_bits_are_the_least_that_keep_features_apart(features: int) -> None:
    bits = default_bits(features)
    assert 1 <= bits <= 40
    assert (1 << bits) >= 4 * features or bits == 40
    assert (1 << (bits - 1)) < 4 * features


def test_the_layout_is_that_of_the_store() -> None:
    assert LARGEST_PARTITION_BITS == redis_layout.LARGEST_PARTITION_BITS
    assert LEAST_PARTITIONS == redis_layout.LEAST_PARTITIONS
    assert Costs().near_density == redis_layout.NEAR_DENSITY
    assert Costs().far_density == redis_layout.FAR_DENSITY
    assert default_chunk(2, lambda: 2 * LEAST_ROUNDS * 1_000) == 1_000


@pytest.mark.parametrize(
    ("bits", "partitions"), [(1, 2), (5, 32), (6, 64), (27, 64), (28, 128), (40, 1 << 19)]
)
def test_partitions(bits: int, partitions: int) -> None:
    assert workload(bits=bits).partitions == partitions


def test_unique_slots_are_those_of_a_click_log(click_log: Path) -> None:
    source = RawSource(load_spec("criteo"), [click_log])
    for chunk in (1_000, 5_000, 20_000):
        found = localize(next(source.batches(chunk))).slots.size
        asked = estimate(workload(chunk=chunk))
        assert asked.unique_slots * chunk == pytest.approx(found, rel=0.12)


@pytest.mark.parametrize("chunk", [1, 10, 65_536, 10**9])
@pytest.mark.parametrize("features", [1, 1_000, 10**9])
def test_unique_features_stay_within_what_there_is(chunk: int, features: int) -> None:
    found = unique_features(workload(features=features), chunk, Costs())
    assert 0 < found <= min(features, 39 * chunk)


@pytest.mark.parametrize(("features", "bits"), [(2_000, 10), (30_000, 17), (1, 1), (2, 40)])
def test_colliding_features_as_counted(features: int, bits: int) -> None:
    slots = np.random.default_rng(0).integers(0, 1 << bits, features)
    _, at, counts = np.unique(slots, return_inverse=True, return_counts=True)
    expected = estimate(workload(features=features, bits=bits)).colliding
    assert expected == pytest.approx((counts[at] > 1).mean(), abs=0.02)


@pytest.mark.parametrize(("partitions", "nodes"), [(64, 2), (64, 3), (64, 8), (512, 16), (4, 9)])
def test_the_busiest_node_as_drawn(partitions: int, nodes: int) -> None:
    rng = np.random.default_rng(0)
    drawn = rng.multinomial(partitions, np.full(nodes, 1 / nodes), size=2_000).max(axis=1).mean()
    assert busiest_share(partitions, nodes) * partitions == pytest.approx(drawn, abs=1.2)


@given(st.integers(0, 19), st.integers(1, 1_000))
def test_the_busiest_node_has_a_fair_share_or_more(log_partitions: int, nodes: int) -> None:
    share = busiest_share(1 << log_partitions, nodes)
    assert 1 / nodes <= share <= 1
    assert busiest_share(1 << log_partitions, 1) == 1


def test_bytes_on_the_wire_are_those_of_the_encoders() -> None:
    rng = np.random.default_rng(0)
    offsets = np.unique(rng.integers(0, 1 << 21, 20_000)).astype(np.uint32)
    increments = (rng.normal(0, 2.0**13, offsets.size) * 2.0**32).astype(np.int64)
    key = np.frombuffer(b"ctr:{default:17}:w", np.uint8)
    costs = Costs()
    assert pull_size(offsets, key) / offsets.size == pytest.approx(costs.pull_request, rel=0.1)
    assert push_size(offsets, increments, key) / offsets.size == pytest.approx(costs.push_request, rel=0.1)


# --- the whole ---


def test_a_measured_job() -> None:
    """One worker and one Redis on two cores, 2**22 slots, 1,000,000 rows: 0.5 to 1.2 million a second."""
    expected = estimate(workload(examples=10**6, cores=2))
    assert 0.5e6 < expected.examples_per_second < 1.2e6
    assert expected.bound is Bound.STORE
    assert expected.ranged
    # and with small chunks one by one, where 110,000 to 170,000 a second were measured
    small = estimate(workload(examples=10**6, cores=2, chunk=8_192))
    assert 0.1e6 < small.examples_per_second < 0.25e6
    assert not small.ranged


@pytest.mark.parametrize(
    ("changes", "bound"),
    [
        ({**LARGE, "workers": 8}, Bound.STORE),
        ({**LARGE, "nodes": 500, "network_gbit": 25}, Bound.WORKER),
        ({**LARGE, "workers": 8, "nodes": 8, "network_gbit": 0.1}, Bound.NETWORK),
        ({**LARGE, "workers": 8, "nodes": 8, "cores": 2}, Bound.CORES),
    ],
)
def test_what_bounds_a_job(changes: dict[str, Any], bound: Bound) -> None:
    assert estimate(workload(**changes)).bound is bound


def test_twice_of_what_bounds_it_helps() -> None:
    def speed(**changes: Any) -> float:
        return estimate(workload(**LARGE, **changes)).examples_per_second

    assert speed(workers=8, nodes=2) > 1.7 * speed(workers=8, nodes=1)
    fast = {"nodes": 500, "network_gbit": 25}
    assert speed(workers=2, **fast) == pytest.approx(2 * speed(workers=1, **fast), rel=0.01)
    assert speed(workers=16) == pytest.approx(speed(workers=8), rel=0.01)


def test_memory() -> None:
    one = estimate(workload(**LARGE))
    assert one.state_ram == pytest.approx(2**29 * 8.25, rel=0.15)
    assert one.state_ram < one.node_ram < one.snapshot_ram
    many = estimate(workload(**LARGE, nodes=8))
    assert one.state_ram / 8 <= many.state_ram < one.state_ram / 5
    assert many.primaries_ram < 8 * many.node_ram
    assert estimate(workload(**LARGE, chunk=262_144)).worker_ram > 1.5 * one.worker_ram
    # a few features in a vast model make few of its strings
    assert estimate(workload(features=100, bits=40)).state_ram < 100 * 2**21 * 9


def test_passes_repeat_the_training_and_not_the_start() -> None:
    once, thrice = estimate(workload()), estimate(workload(passes=3))
    assert 2.5 * once.total_s < thrice.total_s < 3 * once.total_s
    assert thrice.examples_per_second == pytest.approx(once.examples_per_second, rel=0.02)


def test_one_chunk_overlaps_with_nothing() -> None:
    expected = estimate(workload(examples=50_000, nodes=4))
    training = 50_000 / expected.examples_per_second
    assert training == pytest.approx(expected.worker_s + expected.store_s)


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
    busy = max(expected.store_s, expected.worker_s, expected.network_s, expected.cores_s)
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


# --- the command ---

app = typer.Typer()
app.command()(plan)
ASKED = ["--features", "1e6", "--examples", "10_000_000", "--workers", "2", "--nodes", "2"]


def run(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, list(words), env={"COLUMNS": "200", "TERM": "dumb"})
    assert done.exception is None or isinstance(done.exception, SystemExit)
    return done.exit_code, done.output


def test_plan_prints_figures_advice_and_assumptions() -> None:
    code, out = run(*ASKED)
    assert code == 0
    assert "2**22 slots in 64 partitions; 21.2% of the features share a slot" in out
    assert "bound by store" in out
    assert "helps most: twice the nodes" in out
    assert "with one replica each" in out
    for name in variants(workload()):
        assert f"\n{name} " in out
    for assumed in assumptions(Costs()).values():
        assert f"{assumed.unit}: {assumed.meaning}" in out


def test_plan_for_programs() -> None:
    done = CliRunner().invoke(app, [*ASKED, "--cores", "2", "--json", "-"])
    assert done.exit_code == 0
    facts = json.loads(done.stdout)  # the lines for people went to standard error
    assert "bound by" in done.stderr
    assert facts["workload"]["bits"] == 22
    assert facts["workload"]["partitions"] == 64
    job = Workload(features=10**6, examples=10**7, workers=2, nodes=2, bits=22, cores=2)
    assert facts["estimate"]["total_s"] == estimate(job).total_s
    assert facts["variants"].keys() == variants(job).keys() - {"as asked"}
    assert facts["assumptions"]["slot_ram"]["value"] == Costs().slot_ram
    assert facts["assumptions"]["slot_ram"]["unit"] == "bytes per slot"


@pytest.mark.parametrize("written", ["1000000", "1e6", "1_000_000", "1,000,000", "1.0E6"])
def test_numbers_as_people_write_them(written: str, tmp_path: Path) -> None:
    summary = tmp_path / "plan.json"
    assert run("--features", written, "--examples", written, "--json", str(summary))[0] == 0
    facts = json.loads(summary.read_bytes())["workload"]
    assert (facts["features"], facts["examples"], facts["workers"], facts["nodes"]) == (10**6, 10**6, 1, 1)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--features", "0"], "--features 0: give a number from 1"),
        (["--features=-5"], "--features -5: give a number from 1"),
        (["--features", "1e13"], "--features 10,000,000,000,000: give a number from 1"),
        (["--features", "1e999999999"], "is no whole number"),
        (["--features", "many"], "is no whole number"),
        (["--features", "1.5"], "is no whole number"),
        (["--features", "nan"], "is no whole number"),
        (["--features", ""], "is no whole number"),
        (["--examples", "0"], "--examples 0: give a number from 1"),
        (["--workers", "0"], "--workers 0"),
        (["--workers", "1e6"], "from 1 to 10,000"),
        (["--nodes", "5000"], "from 1 to 1,000"),
        (["--bits", "0"], "--bits 0: give a number from 1 to 40"),
        (["--bits", "41"], "--bits 41: give a number from 1 to 40"),
        (["--chunk", "0"], "--chunk 0"),
        (["--network", "nan"], "--network nan"),
        (["--network", "0"], "--network 0"),
        (["--passes", "0"], "--passes 0"),
        (["--cores", "0"], "--cores 0"),
        (["--features-per-example", "0"], "--features-per-example 0"),
    ],
)
def test_bad_input_is_refused_with_its_limits(words: list[str], message: str) -> None:
    code, out = run(*ASKED, *words)
    assert code == 2
    assert message in out
    assert "Traceback" not in out


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        (["--workers", "1"], "helps most: 4 times the chunk"),
        (["--workers", "8"], "helps most: twice the nodes"),  # a larger chunk would cost accuracy
        (
            ["--features", "1e8", "--examples", "1e9", "--workers", "1", "--shards", "500"],
            "twice the workers",
        ),
        (["--examples", "1000"], "most of the time goes to start and end"),
    ],
)
def test_plan_advises(words: list[str], advice: str) -> None:
    code, out = run(*ASKED, *words)
    assert code == 0
    assert advice in out.split("\n\n")[1]


@pytest.mark.parametrize(
    ("words", "warning"),
    [
        (["--examples", "1e5", "--workers", "8"], "6 workers will be idle"),
        (["--examples", "1e6", "--workers", "4"], "see each other's updates only 4 times per pass"),
        (["--bits", "18"], "most features share their slot"),
        (["--examples", "1000"], "cannot hold more than 39,000 features"),
        (["--nodes", "100"], "64 partitions cannot be spread over more nodes"),
    ],
)
def test_plan_warns(words: list[str], warning: str) -> None:
    code, out = run(*ASKED, *words)
    assert code == 0
    assert warning in out
    assert "warning" not in run("--features", "1e8", "--examples", "1e9")[1]
