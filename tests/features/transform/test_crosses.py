"""Crosses, also of fields with several values, against their plain reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from ctr.errors import DataError
from ctr.features import SKIP
from ctr.features.raw import RawSource
from ctr.features.spec import parse_spec
from ctr.features.spec.model import FeatureSpec
from ctr.features.transform import Transform
from ctr.features.transform.cross_plan import cross_plans, most_of_lists
from tests.reference.crosses import Feature, cross

pytestmark = pytest.mark.kernel

LIST = "type: list, delimiter: ' '"
CROSSES = "s * t|t * t|t * t * t|s * t * t * u|t * u|t * s * u * u"


def spec_of(crosses: str, more: str = "") -> FeatureSpec:
    return parse_spec(
        f"""{{version: 1, source: {{format: delimited}}, label: y, bits: 32, seed: 5, {more} fields: [
        {{name: s, type: category}}, {{name: t, {LIST}}}, {{name: u, {LIST}}}],
        crosses: [{", ".join(crosses.split("|"))}]}}""",
        "test",
    )


def expected(spec: FeatureSpec, row: dict[str, str]) -> list[Feature]:
    """The features of a row, by the reference."""
    seeds = {field.name: xxhash.xxh64_intdigest(field.name.encode(), spec.seed) for field in spec.fields}
    features = {
        name: [
            (xxhash.xxh64_intdigest(word.encode(), seeds[name]), float(text.split().count(word)))
            for word in ([text] if name == "s" and text else dict.fromkeys(text.split()))
        ]
        for name, text in row.items()
    }
    named = {name: features[name] for name in ("s", "t", "u")}
    named |= {each.name: cross(each.name, each.of, features, spec.seed) for each in spec.crosses}
    scales = {name: np.float32(spec.scales.get(name, 1)) for name in named}
    found = [
        (hashed, float(np.float32(value) * scales[name])) for name in named for hashed, value in named[name]
    ]
    return [(0, 1.0), *((hashed % 2**32, value) for hashed, value in found)]


def found_in(transform: Transform, rows: Sequence[Mapping[str, object]]) -> list[list[Feature]]:
    batch = transform.apply_rows(rows)
    assert batch.values is not None
    return [
        list(zip(batch.slots[a:b].tolist(), batch.values[a:b].tolist(), strict=True))
        for a, b in zip(batch.indptr, batch.indptr[1:], strict=False)
    ]


TEXTS = st.lists(st.sampled_from(["a", "b", "c", "d", "e", "f"]), max_size=7).map(" ".join)


@settings(max_examples=60)
@given(
    st.lists(
        st.fixed_dictionaries({"s": st.sampled_from(["", "x", "y"]), "t": TEXTS, "u": TEXTS}), max_size=4
    )
)
def test_every_combination_of_values_is_a_feature_as_the_reference_says(rows: list[dict[str, str]]) -> None:
    spec = spec_of(CROSSES)
    assert found_in(Transform(spec, with_label=False), rows) == [expected(spec, row) for row in rows]


@pytest.mark.parametrize(
    "scales", ["{s: 0.3}", "{t: 2, t * t: 0.1, s * t * t * u: 7.5}", "{t * u: 1.5, u: 0.25}"]
)
def test_features_are_multiplied_by_the_scale_of_their_field_or_cross(scales: str) -> None:
    spec = spec_of(CROSSES, f"scales: {scales},")
    rows = [
        {"s": "x", "t": "a b a", "u": "c d e"},
        {"s": "", "t": "a b", "u": "b"},
        {"s": "y", "t": "", "u": ""},
    ]
    assert found_in(Transform(spec, with_label=False), rows) == [expected(spec, row) for row in rows]


@pytest.mark.parametrize("scale", [1.0, 10.0])
def test_a_product_that_is_too_large_is_the_largest_value(scale: float) -> None:
    fields = ", ".join(f"{{name: {name}, {LIST}, counts: true}}" for name in "tu")
    spec = parse_spec(
        f"{{version: 1, source: {{format: jsonl}}, label: y, bias: false, fields: [{fields}],"
        f" crosses: [t * u, t * t * u], scales: {{t * u: {scale}}}}}",
        "test",
    )
    rows = [{"t": "a:1e30 b:-1e30 c:0.5", "u": "d:1e30 e:1e-9 f:0"}]
    values = Transform(spec, with_label=False).apply_rows(rows).values
    assert values is not None
    largest = float(np.finfo(np.float32).max)
    t, u = np.array([1e30, -1e30, 0.5]), np.array([1e30, 1e-9])
    crossed = np.clip(scale * np.multiply.outer(t, u), -largest, largest).ravel()
    np.testing.assert_allclose([v for v in values[5:] if v != 0][: crossed.size], crossed, rtol=1e-6)
    assert np.isfinite(values).all()


def test_over_several_tiles_and_beside_bad_rows(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    spec = spec_of(CROSSES)
    texts = [" ".join(rng.choice(list("abcdefgh"), rng.integers(5))) for _ in range(600)]
    rows = [
        {"s": "x" * (i % 3 > 0), "t": t, "u": u}
        for i, (t, u) in enumerate(zip(texts[:300], texts[300:], strict=True))
    ]
    path = tmp_path / "log.csv"
    lines = [f"{i % 2 if i % 7 else 'bad'},{r['s']},{r['t']},{r['u']}" for i, r in enumerate(rows)]
    path.write_text("\n".join(["y,s,t,u", *lines, ""]))
    wanted = [expected(spec, row) for i, row in enumerate(rows) if i % 7]
    for size in (1_000, 70):
        batches = list(RawSource(spec, [path], on_bad_rows=SKIP).batches(size))
        found = [
            list(zip(b.slots[i:j].tolist(), b.values[i:j].tolist(), strict=True))
            for b in batches
            for i, j in zip(b.indptr, b.indptr[1:], strict=False)
        ]
        assert found == wanted
    # What is served is what was trained on, whether lists are text or lists of JSON.
    good = [row for i, row in enumerate(rows) if i % 7]
    listed = [{"s": row["s"], "t": row["t"].split(), "u": row["u"].split()} for row in good]
    assert found_in(Transform(spec, with_label=False), good) == wanted
    assert found_in(Transform(spec, with_label=False), listed) == wanted


def test_the_order_of_the_values_of_a_list_with_itself_does_not_matter() -> None:
    transform = Transform(spec_of("t * t|t * t * t"), with_label=False)
    one, other, twice = found_in(
        transform, [{"s": "", "t": t, "u": ""} for t in ("a b c", "c a b", "a b c a")]
    )
    assert sorted(one) == sorted(other)
    assert {slot for slot, _ in one} == {slot for slot, _ in twice}
    assert sorted(value for _, value in twice) == [1] * 4 + [2] * 4  # two of `a`: itself, two pairs, a triple
    assert len(one) == 1 + 3 + 3 + 1


def test_a_short_cross_is_the_one_written_out() -> None:
    rows = [{"s": "x", "t": "a b", "u": "c"}]
    short = found_in(Transform(spec_of("s * t"), with_label=False), rows)
    written = found_in(Transform(spec_of("{name: s * t, of: [s, t]}"), with_label=False), rows)
    assert short == written


def test_the_most_features_of_a_row(tmp_path: Path) -> None:
    spec = spec_of("t * t|s * t * u * u * u", "most_features: 30,")
    transform = Transform(spec, with_label=False)
    few = {"s": "x", "t": "a b c d e f", "u": ""}  # 1 + 1 + 6 + 15
    many = {"s": "x", "t": "a b", "u": "c d e f g"}  # 1 + 1 + 2 + 5 + 1 + 2 * 10
    more = many | {"t": "a b c"}
    assert [len(found) for found in found_in(transform, [few, many])] == [23, 30]
    with pytest.raises(DataError, match=r"rows\[1\]: column 'u': 'c d e f g' has so many values .*most_feat"):
        transform.apply_rows([many, more])
    path = tmp_path / "log.csv"
    huge = " ".join(map(str, range(2_000)))  # whose triples would fill any memory
    path.write_text(f"y,s,t,u\n1,x,a,\n0,x,{huge},{huge}\n1,,b,\n")
    source = RawSource(spec, [path], on_bad_rows=SKIP)
    (batch,) = source.batches(10)
    assert np.diff(batch.indptr).tolist() == [3, 2]
    with pytest.raises(DataError, match=r"log\.csv:3: column 't': '0 1 2.* raise most_features; fix the row"):
        list(RawSource(spec, [path]).batches(10))


def test_room_is_as_much_as_the_combinations_need() -> None:
    spec = spec_of(CROSSES)
    _, plan = cross_plans(spec, [field.name for field in spec.fields if not field.several])
    bounds = np.array([[0, 3, 3, 4], [0, 2, 4, 6]])
    # t, u; s * t, t * t, t * t * t, s * t * t * u, t * u, t * s * u * u
    assert most_of_lists(plan, bounds).tolist() == [
        3 + 2 + 3 + 3 + 1 + 3 * 2 + 3 * 2 + 3 * 1,
        0 + 2,
        1 + 2 + 1 + 0 + 0 + 0 + 2 + 1,
    ]
