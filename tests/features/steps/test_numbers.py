"""Fields of numbers: their steps and buckets against plain references, what they learn, what they refuse."""

from __future__ import annotations

import math
import pickle
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ctr.errors import DataError, SpecError
from ctr.features import RawSource, Transform, fit, open_source, parse_spec, write_dataset
from ctr.features.spec import FeatureSpec, NumberField, learnt_of
from ctr.features.steps.moments import Moments
from ctr.features.steps.numbers import after_steps, buckets_of
from ctr.features.steps.quantile_sketch import SIZE, QuantileSketch
from ctr.features.steps.sketch_kernels import merge, sort_words
from ctr.features.text import hash_bytes
from tests.reference import numbers as reference

STEPS = ("sqrt", "square", "log", {"clip": [-3, 50.5]}, {"scale": -0.25}, "zscore")
LEARNT = {"scaling": np.array([2.5, 0.75]), "edges": np.array([-1.5, 0.0, 2.25])}
TRANSFORMS: tuple[dict[str, Any], ...] = (
    {"transform": "log"},
    {"transform": "edges", "edges": [-1, 0, 0.5, 30]},
    {"transform": "width", "width": 0.7},
    {"transform": "quantiles", "buckets": 4},
)
NASTY = [0.0, -0.0, 5e-324, -1e-300, 1.7e308, -1.7e308, 2.0, 2.0000001, 2**63, -(2.0**63), 1e200]
SOME = st.one_of(st.sampled_from(NASTY), st.floats(allow_nan=False, allow_infinity=False))


def field_of(**keys: Any) -> NumberField:
    return NumberField.model_validate({"name": "x", "type": "number", **keys})


def spec_of(*fields: str, more: str = "") -> FeatureSpec:
    head = "version: 1, source: {format: delimited}, label: y, bits: 32"
    return parse_spec(f"{{{head}, fields: [{', '.join(fields)}]{more}}}", "my.yaml")


def file_of(path: Path, texts: Sequence[object]) -> Path:
    path.write_text("\n".join(["y,x", *(f"{i % 2},{text}" for i, text in enumerate(texts)), ""]))
    return path


@pytest.mark.kernel
@settings(max_examples=60, deadline=None)
@given(
    values=st.lists(SOME, max_size=6),
    steps=st.lists(st.sampled_from(STEPS), max_size=4).filter(lambda s: s.count("zscore") <= 1),
    transform=st.sampled_from(TRANSFORMS),
)
@example([1.7e308], ["zscore"], TRANSFORMS[1])
@example([-1.7e308], [], TRANSFORMS[2])
def test_steps_and_buckets_are_those_of_the_reference(
    values: list[float], steps: list[Any], transform: dict[str, Any]
) -> None:
    field = field_of(**transform, steps=steps)
    numbers, present = np.array([*values, 7.0]), np.array([True] * len(values) + [False])
    after = after_steps(field, numbers, present, LEARNT)
    assert after[:-1].tolist() == [reference.after_steps(field, value, LEARNT) for value in values]
    found = buckets_of(field, numbers, present, LEARNT)
    assert found.tolist() == [*(reference.bucket(field, value, LEARNT) for value in values), 0]


def moments_of(parts: list[np.ndarray]) -> Moments:
    moments = Moments()
    for part in parts:
        moments.add(np.array(part, np.float64))
    return moments


@pytest.mark.kernel
@given(
    st.lists(st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=9), min_size=1, max_size=5)
)
@example([[5e-324, -5e-324, 1.7976931348623157e308, -0.0], [1.0, -1e-300, 3.0]])
def test_moments_are_exact_in_any_order_and_in_any_parts(parts: list[list[float]]) -> None:
    values = [value for part in parts for value in part]
    once, merged = moments_of([np.array(values[::-1])]), moments_of([])
    for part in parts:
        merged.merge(pickle.loads(pickle.dumps(moments_of([np.array(part)]))))
    assert merged.count == once.count == len(values)
    if values:
        exactly = [Fraction(value) for value in values]
        mean = sum(exactly) / len(values)
        variance = sum((value - mean) ** 2 for value in exactly) / len(values)
        deviation = math.sqrt(variance) if variance < Fraction(2) ** 1023 else math.inf
        assert merged.mean_and_deviation() == once.mean_and_deviation() == (float(mean), deviation)
        assert (merged.smallest, merged.largest) == (min(values), max(values))


@pytest.mark.kernel
@given(*2 * [st.lists(st.floats(allow_nan=False), min_size=1, max_size=40)])
def test_two_sorted_arrays_are_merged(one: list[float], other: list[float]) -> None:
    merged = np.empty(len(one) + len(other))
    merge(np.sort(np.array(one) + 0.0), np.sort(np.array(other) + 0.0), merged)
    assert merged.tolist() == sorted([*one, *other])


finite = st.floats(allow_nan=False).map(lambda value: value + 0.0)


@given(st.lists(finite | st.integers(-5, 5000).map(float), max_size=60))
@example([-math.inf, math.inf, 0.0, 5e-324, -5e-324, 1.0, -1.0])
def test_words_are_sorted_as_their_values(values: list[float]) -> None:
    found = np.array(values, np.float64)
    sort_words(found.view(np.uint64), np.empty(found.size, np.uint64), np.empty(1 << 11, np.uint32))
    assert found.tolist() == sorted(values)


def sketch_of(values: np.ndarray, block: int = 2_048) -> QuantileSketch:
    sketch = QuantileSketch()
    for at in range(0, values.size, block):
        sketch.add(values[at : at + block])
    return sketch


@given(
    cuts=st.lists(st.integers(0, 7 * SIZE + 5), max_size=6),
    order=st.randoms(use_true_random=False),
    kind=st.sampled_from(["random", "few"]),
)
@settings(max_examples=25)
@example(cuts=[SIZE, 2 * SIZE, 3 * SIZE, 4 * SIZE], order=Random(1), kind="random")
@example(cuts=[1, 2, SIZE + 1, SIZE + 2, 2 * SIZE - 1], order=Random(2), kind="random")
def test_parts_merged_in_a_tree_of_any_shape_are_the_sketch_of_all(
    cuts: list[int], order: Random, kind: str
) -> None:
    generator = np.random.default_rng(len(cuts))
    n = 7 * SIZE + 5
    values = generator.normal(size=n) if kind == "random" else generator.integers(0, 9, n).astype(float)
    bounds = [0, *sorted(cuts), n]
    parts = []
    for start, stop in pairwise(bounds):
        part = QuantileSketch(start)
        for at in range(start, stop, 3_000):
            part.add(values[at : min(at + 3_000, stop)])
        parts.append(pickle.loads(pickle.dumps(part)))
    while len(parts) > 1:
        at = order.randrange(len(parts) - 1)
        parts[at].merge(parts.pop(at + 1))
    whole, ranks = sketch_of(values), np.arange(n)
    assert parts[0].count == whole.count
    assert (parts[0].smallest, parts[0].largest) == (whole.smallest, whole.largest)
    np.testing.assert_array_equal(parts[0].values_at(ranks), whole.values_at(ranks))


def test_quantiles_are_exact_below_the_size_of_the_sketch() -> None:
    values = np.random.default_rng(1).normal(size=SIZE - 1)
    ranks = np.arange(SIZE - 1)
    np.testing.assert_array_equal(sketch_of(values).values_at(ranks), np.sort(values))


@pytest.mark.parametrize("order", ["random", "rising", "falling", "few values", "waves"])
def test_ranks_are_within_the_bound_that_is_documented(order: str) -> None:
    n = 300_000
    rng = np.random.default_rng(2)
    values = {
        "random": rng.normal(size=n),
        "rising": np.arange(n, dtype=float),
        "falling": -np.arange(n, dtype=float),
        "few values": rng.integers(0, 7, n).astype(float),
        "waves": np.arange(n) % 1_000 * 1.0,
    }[order]
    bound = (math.floor(math.log2(n / SIZE)) + 1) / SIZE * n
    ranks = np.arange(0, n, 97)
    found = sketch_of(values).values_at(ranks)
    ordered = np.sort(values)
    assert (np.searchsorted(ordered, found, side="left") <= ranks + bound).all()
    assert (np.searchsorted(ordered, found, side="right") > ranks - bound).all()
    np.testing.assert_array_equal(sketch_of(values, 12_345).values_at(ranks), found)


def test_a_data_set_is_of_the_spec_that_it_was_learnt_from(tmp_path: Path) -> None:
    path = file_of(tmp_path / "x.csv", [str(i) for i in range(50)])
    spec = spec_of("{name: x, type: number, transform: quantiles, buckets: 4}")
    fitted, out = fit(spec, [path]), tmp_path / "h"
    write_dataset(RawSource(fitted, [path]).batches(65_536), fitted, out)
    assert open_source([out], spec).spec.fingerprint == fitted.fingerprint
    with pytest.raises(DataError, match="build it with that spec"):
        open_source([out], spec_of("{name: x, type: number, transform: quantiles, buckets: 5}"))


def test_what_is_learnt_and_what_becomes_of_it(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    numbers = np.round(rng.lognormal(1, 1, 3_000), 3)
    path = file_of(tmp_path / "x.csv", ["", "nan", *numbers])
    spec = spec_of(
        "{name: q, column: x, type: number, transform: quantiles, buckets: 5, steps: [log]}",
        "{name: z, column: x, type: number, transform: linear, steps: [{clip: [0, 9]}, zscore]}",
        "{name: m, column: x, type: number, transform: width, width: 0.25, steps: [sqrt, minmax]}",
        "{name: e, column: x, type: number, transform: edges, edges: [0.5, 2], missing: feature}",
        more=", crosses: [{name: qm, of: [q, m]}]",
    )
    fitted = fit(spec, [path])
    learnt = learnt_of(fitted)
    assert sorted(learnt) == ["m/scaling", "q/edges", "z/scaling"]
    assert learnt["q/edges"].tolist() == reference.quantile_edges([math.log1p(v) for v in numbers], 5)
    clipped = np.clip(numbers, 0, 9)
    assert learnt["z/scaling"] == pytest.approx([clipped.mean(), clipped.std()], rel=1e-12)
    roots = [math.sqrt(v) for v in numbers]
    assert learnt["m/scaling"].tolist() == [min(roots), max(roots) - min(roots)]

    (batch,) = RawSource(fitted, [path]).batches(5_000)
    seeds = {name: hash_bytes(name.encode(), 0) for name in ("q", "z", "m", "e", "qm")}
    mask = 2**32 - 1
    assert batch.slots[:4].tolist() == [0, hash_bytes(b"", seeds["e"]) & mask] * 2  # what is missing
    for row in (2, 3, 1_700):
        value = float(numbers[row - 2])
        features = dict(
            zip(
                batch.slots[batch.indptr[row] : batch.indptr[row + 1]].tolist(),
                batch.values[batch.indptr[row] : batch.indptr[row + 1]].tolist(),
                strict=True,
            )
        )
        hashes = {}
        for field, name in zip(spec.fields, "qzme", strict=True):
            own = {array: learnt[f"{name}/{array}"] for array in field.learns}
            if name != "z":
                bucket = reference.bucket(field, value, own)
                hashes[name] = hash_bytes(bucket.to_bytes(8, "little", signed=True), seeds[name])
            else:
                z = reference.after_steps(field, value, own)
        cross = hashes["q"].to_bytes(8, "little") + hashes["m"].to_bytes(8, "little")
        expected = dict.fromkeys((h & mask for h in hashes.values()), 1.0)
        expected |= {0: 1.0, hash_bytes(cross, seeds["qm"]) & mask: 1.0}
        assert features == expected | {hash_bytes(bytes(8), seeds["z"]) & mask: pytest.approx(z, rel=1e-6)}


def test_linear_keeps_values_and_leaves_out_zeros(tmp_path: Path) -> None:
    texts = ["2.5", "0", "", "-1e300", "1e300", "nan"]
    cases = {"skip": [], "feature": [1.0], '{value: "3"}': [3.0], '{value: "0"}': []}
    for missing, of_missing in cases.items():
        spec = spec_of(
            f"{{name: x, type: number, transform: linear, missing: {missing}}}", more=", bias: false"
        )
        (batch,) = RawSource(spec, [file_of(tmp_path / "x.csv", texts)]).batches(9)
        found = [batch.values[a:b].tolist() for a, b in zip(batch.indptr, batch.indptr[1:], strict=False)]
        largest = float(np.finfo(np.float32).max)
        assert found == [[2.5], [], of_missing, [-largest], [largest], of_missing]
        rows: list[dict[str, object]] = [{"x": 2.5}, {"x": 0}, {}, {"x": -1e300}, {"x": "1e300"}, {"x": None}]
        served = Transform(spec, with_label=False).apply_rows(rows)
        np.testing.assert_array_equal(served.values, batch.values)
        np.testing.assert_array_equal(served.slots, batch.slots)
        np.testing.assert_array_equal(served.indptr, batch.indptr)


def test_what_a_scale_makes_too_large_is_the_largest_value(tmp_path: Path) -> None:
    spec = spec_of("{name: x, type: number, transform: linear}", more=", bias: false, scales: {x: 2}")
    (batch,) = RawSource(spec, [file_of(tmp_path / "x.csv", ["2.5", "-1e38", "1e300", "-1e300"])]).batches(9)
    largest = np.finfo(np.float32).max
    assert batch.values.tolist() == np.array([5, -2e38, largest, -largest], np.float32).tolist()


@pytest.mark.parametrize("text", ["inf", "-inf", "x", "1,5"])
@pytest.mark.parametrize("keys", ["linear", "width, width: 2", "log, steps: [sqrt]"])
def test_what_is_no_number_is_a_bad_row(tmp_path: Path, text: str, keys: str) -> None:
    path = file_of(tmp_path / "x.csv", ["1", text.replace(",", ";")])
    with pytest.raises(DataError, match=r"x\.csv:3: column 'x': '.*' is not a number"):
        list(RawSource(spec_of(f"{{name: x, type: number, transform: {keys}}}"), [path]).batches(9))


@pytest.mark.parametrize(
    ("keys", "texts", "message"),
    [
        ("quantiles, buckets: 4", ["", "nan"], r"field 'f' \(column 'x'\): there is no number to learn from"),
        (
            "quantiles, buckets: 4",
            ["3"] * 5,
            "`transform: quantiles` needs at least two distinct .*all 5 are 3",
        ),
        (
            "quantiles, buckets: 4",
            ["0"] * 60 + ["1", "2"] * 20,
            "4 quantiles of 100 numbers coincide, most often at 0, so that only 2 buckets would differ; ask"
            " for fewer `buckets`, or .* `duplicates: drop`",
        ),
        ("linear, steps: [zscore]", ["7"], "`zscore` needs at least two distinct numbers, and all 1 are 7"),
        ("log, steps: [{clip: [0, 1]}, minmax]", ["5", "9"], "`minmax` needs at least two distinct numbers"),
        ("linear, steps: [zscore]", [], "there is no number to learn from"),
        ("linear, steps: [minmax]", ["-1.7e308", "1.7e308"], "too far apart or too close for `minmax`"),
    ],
)
def test_data_that_nothing_can_be_learnt_from(
    tmp_path: Path, keys: str, texts: list[str], message: str
) -> None:
    spec = spec_of(f"{{name: f, column: x, type: number, transform: {keys}}}")
    path = file_of(tmp_path / "x.csv", texts or ["oops"])
    with pytest.raises(DataError, match=message):
        fit(spec, [path])


def test_quantiles_that_coincide_can_be_one(tmp_path: Path) -> None:
    spec = spec_of("{name: x, type: number, transform: quantiles, buckets: 4, duplicates: drop}")
    path = file_of(tmp_path / "x.csv", ["0"] * 60 + ["1", "2"] * 20)
    assert learnt_of(fit(spec, [path]))["x/edges"].tolist() == [1]
    path = file_of(tmp_path / "y.csv", ["0"] * 99 + ["1"])
    fitted = fit(spec, [path])
    assert learnt_of(fitted)["x/edges"].tolist() == [5e-324]
    (batch,) = RawSource(fitted, [path]).batches(100)
    assert len(set(batch.slots.tolist())) == 3  # with the bias


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ("width", r"fields\[0\]: `width` is missing: say how wide every bucket is"),
        ("width, width: 0", r"fields\[0\]\.width: .*"),
        ("quantiles", r"`buckets` is missing: say how many"),
        ("quantiles, buckets: 1", r"fields\[0\]\.buckets: must be at least 2, got 1"),
        ("log, width: 2", r"fields\[0\]\.width: only `transform: width` has width; set it or remove it"),
        ("edges, edges: [1], buckets: 3", r"only `transform: quantiles` has buckets"),
        ("linear, edges: [1]", r"only `transform: edges` has edges"),
        ("log, steps: sqrt", r"fields\[0\]\.steps: expected a list, got 'sqrt'"),
        ("log, steps: [sqr]", r"fields\[0\]\.steps\[0\]: expected 'sqrt', .* or {scale: NUMBER}, got 'sqr'"),
        ("log, steps: [clip]", r"expected 'sqrt', .*{clip: \[LOW, HIGH\]}"),
        (
            "log, steps: [{clip: [3, 3]}]",
            r"steps\[0\]\.clip: the first number must be the smaller one, got 3",
        ),
        ("log, steps: [{clip: [3]}]", r"steps\[0\]\.clip"),
        ("log, steps: [sqrt, {scale: 0}]", r"steps\[1\]\.scale: every number would be 0"),
        ("log, steps: [{scale: .inf}]", r"steps\[0\]\.scale: expected a finite number"),
        (
            "linear, steps: [zscore, minmax]",
            r"steps\[1\]: a field can learn one scaling, and `zscore` is there",
        ),
        ("linear, steps: [zscore, zscore]", r"steps\[1\]: `zscore` is there twice"),
        ("quantiles, buckets: 3, steps: [minmax]", r"quantiles are the same buckets without `minmax`"),
    ],
)
def test_wrong_specs_of_numbers(keys: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        spec_of(f"{{name: x, type: number, transform: {keys}}}")


def test_values_are_not_crossed() -> None:
    with pytest.raises(SpecError, match=r"crosses\[0\]\.of\[1\]: 'x' keeps its value \(transform: linear\)"):
        spec_of(
            "{name: c, type: category}",
            "{name: x, type: number, transform: linear}",
            more=", crosses: [{name: b, of: [c, x]}]",
        )


def test_a_spec_that_learns_is_to_be_built_first(tmp_path: Path) -> None:
    spec = spec_of("{name: x, type: number, transform: linear, steps: [zscore]}")
    with pytest.raises(
        SpecError, match=r"field 'x': its transform learns from data first; .* features build"
    ):
        RawSource(spec, [file_of(tmp_path / "x.csv", ["1"])])


def test_new_keys_enter_the_fingerprint_where_they_are_used() -> None:
    def print_of(keys: str) -> str:
        return spec_of(f"{{name: x, type: number, transform: {keys}}}").fingerprint

    assert print_of("log") == print_of("log, steps: []")
    used = ["log", "log, steps: [sqrt]", "log, steps: [log]", "log, steps: [{clip: [0, 1]}]", "linear"]
    used += ["log, steps: [{clip: [0, 2]}]", "width, width: 1", "width, width: 2"]
    used += ["quantiles, buckets: 3", "quantiles, buckets: 4", "quantiles, buckets: 4, duplicates: drop"]
    assert len({print_of(keys) for keys in used}) == len(used)
    spec = spec_of("{name: x, type: number, transform: width, width: 1, steps: [{clip: [0, 2]}, sqrt]}")
    assert parse_spec(spec.to_yaml(), "") == spec
    spec = parse_spec(spec.to_yaml().replace("bits: 32", "bits: 40"), "")
    assert spec.fingerprint == "47fc81c99f0685bdcd16f28f8ad77606dc2704f65967783380fc4029e556431a"
