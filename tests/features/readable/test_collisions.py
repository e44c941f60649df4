"""Which features share a slot, against a plain count."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import xxhash

from ctr.errors import DataError
from ctr.features import parse_spec
from ctr.features.inspect import collisions
from ctr.features.readable import bits_for, share_colliding

SPEC = """{{version: 1, source: {{format: delimited}}, label: y, bits: {bits}, fields: [
    {{name: a, type: category}}, {{name: b, type: category}}], crosses: [a * b]}}"""


def hashed(name: str, data: bytes) -> int:
    return xxhash.xxh64_intdigest(data, xxhash.xxh64_intdigest(name.encode(), 0))


@pytest.mark.parametrize("bits", [8, 14, 30])
def test_the_features_that_share_a_slot_are_counted(tmp_path: Path, bits: int) -> None:
    rng = np.random.default_rng(1)
    rows = [(f"{a}", f"v{b}") for a, b in rng.integers(0, (900, 40), (2_000, 2))]
    lines = [f"{i % 2},{a},{b}" for i, (a, b) in enumerate(rows)]
    (tmp_path / "log.csv").write_text("\n".join(["y,a,b", *lines, ""]))
    spec = parse_spec(SPEC.format(bits=bits), "test")
    found = collisions(spec, [tmp_path / "log.csv"], rows=1_500)
    hashes: dict[str, set[int]] = {"a": set(), "b": set(), "a * b": set()}
    for a, b in rows[:1_500]:
        one, other = hashed("a", a.encode()), hashed("b", b.encode())
        both = hashed("a * b", one.to_bytes(8, "little") + other.to_bytes(8, "little"))
        for name, value in zip(hashes, (one, other, both), strict=True):
            hashes[name].add(value)
    slots = [value % 2**bits for of in hashes.values() for value in of]
    shared = {slot for slot, count in zip(*np.unique(slots, return_counts=True), strict=True) if count > 1}
    assert (found.rows, found.bits, found.all_fields.features) == (1_500, bits, len(slots))
    for field in found.fields:
        assert field.features == len(hashes[field.name])
        assert field.actual == sum(value % 2**bits in shared for value in hashes[field.name])
    both = found.all_fields
    assert both.actual == sum(slot in shared for slot in slots)
    assert both.expected == pytest.approx(sum(field.expected for field in found.fields))
    assert both.actual == pytest.approx(both.expected, rel=0.1, abs=5)
    assert found.bits_wanted == bits_for(len(slots))
    assert found.to_json()["fields"][2]["name"] == "a * b"


def test_rows_of_other_data_are_no_sample(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("y,a,b\nno,1,2\nno,3\n")
    spec = parse_spec(SPEC.format(bits=9).replace("delimited", "jsonl"), "test")
    with pytest.raises(DataError, match=r"no row can be read: .*log\.csv:1: .*; give raw rows such as"):
        collisions(spec, [tmp_path / "log.csv"])


def test_bits_for_less_than_one_percent() -> None:
    for features in (1, 2, 100, 10_000, 123_456_789):
        bits = bits_for(features)
        assert share_colliding(features, bits) < 0.01
        assert bits == 1 or share_colliding(features, bits - 1) >= 0.01
    assert share_colliding(0, 10) == share_colliding(1, 10) == 0
    assert share_colliding(2, 1) == pytest.approx(0.5)
