"""The texts of features and their counts."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from ctr.features import SKIP, RawSource, Transform, fit, load_spec
from ctr.features.readable import Dictionary
from ctr.features.readable import dictionary as module
from ctr.features.spec import parse_spec
from ctr.features.steps import STEPS
from ctr.features.text import hash_bytes

SPEC = """{version: 1, source: {format: delimited}, label: y, bits: 22, seed: 5,
fields: [
    {name: site, type: category, missing: feature},
    {name: n, type: number, transform: log},
    {name: e, column: n, type: number, transform: edges, edges: [0, 2.5], missing: {value: "1"}},
    {name: t, type: list, delimiter: ' '}],
crosses: [site * e, t * t, site * t, site * n * e]}"""


def log_of(path: Path, rows: int, seed: int = 1) -> list[dict[str, str]]:
    rng = random.Random(seed)
    found = [
        {
            "y": str(rng.randint(0, 1)) if i % 11 != 5 else "bad",
            "site": rng.choice(["", "a.com", "b.com", *(f"s{k}" for k in range(rng.choice([3, 300])))]),
            "n": rng.choice(["", "-1", "0", "1.0", "3", "7", "1000"]),
            "t": " ".join(rng.choices("xyz", k=rng.randint(0, 3))),
        }
        for i in range(rows)
    ]
    path.write_text("\n".join(["y,site,n,t", *(",".join(row.values()) for row in found), ""]))
    return [row for row in found if row["y"] != "bad"]


def texts_of(row: dict[str, str]) -> Iterator[str]:
    """All features of a row."""
    yield "bias"
    site = row["site"] or "(missing)"
    n = {"-1": "[-1, 0)", "0": "[0, 1)", "1.0": "[1, 2)", "3": "[2.71828, 4.11325)"}
    n |= {"7": "[5.65223, 7.38906)", "1000": "[949.233, 1020.66)", "": ""}
    value = float(row["n"] or "1")
    e = "[-inf, 0)" if value < 0 else "[0, 2.5)" if value < 2.5 else "[2.5, inf)"
    words = [*dict.fromkeys(row["t"].split())]
    yield f"site={site}"
    yield f"e={e}"
    yield f"site * e={site} * {e}"
    if row["n"]:
        yield f"n={n[row['n']]}"
        yield f"site * n * e={site} * {n[row['n']]} * {e}"
    yield from (f"t={word}" for word in words)
    yield from (f"site * t={site} * {word}" for word in words)
    seed = hash_bytes(b"t", 5)
    by_hash = sorted(words, key=lambda word: hash_bytes(word.encode(), seed))
    yield from (f"t * t={a} * {b}" for a, b in combinations(by_hash, 2))


def dictionary_of(log: Path, size: int, rows: int = 1_000) -> tuple[list[dict[str, Any]], RawSource]:
    source = RawSource(parse_spec(SPEC, "test"), [log], on_bad_rows=SKIP, threads=2)
    dictionary = Dictionary(source.spec, source.columns, size)
    source.watch = dictionary.add
    for _ in source.batches(rows):
        pass
    return dictionary.table().to_pylist(), source


def test_every_feature_of_every_row_has_its_text_slot_and_count(tmp_path: Path) -> None:
    rows = log_of(tmp_path / "log.csv", 700)
    found, source = dictionary_of(tmp_path / "log.csv", 100_000, rows=60)
    expected = Counter(text for row in rows for text in texts_of(row))
    assert {row["feature"]: row["count"] for row in found} == expected
    assert {row["missed"] for row in found} == {0}
    counts = [row["count"] for row in found[1:]]
    assert counts == sorted(counts, reverse=True)
    (batch,) = source.batches(1_000)
    slots = Counter(batch.slots.tolist())
    by_slot: Counter[int] = Counter()
    for row in found:
        by_slot[row["slot"]] += row["count"]
    assert by_slot == slots


def test_with_little_memory_the_most_frequent_stay_and_tell_what_they_miss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_AT_LEAST", 60)
    rows = log_of(tmp_path / "log.csv", 3_000)
    found, _ = dictionary_of(tmp_path / "log.csv", 15, rows=50)
    expected = Counter(text for row in rows for text in texts_of(row))
    assert len(found) == 16
    in_all = sum(expected.values())
    for row in found:
        assert row["count"] <= expected[row["feature"]] <= row["count"] + row["missed"]
        assert row["missed"] <= in_all / 60
    assert {text for text, count in expected.items() if count > in_all / 15} <= {r["feature"] for r in found}
    assert dictionary_of(tmp_path / "log.csv", 15, rows=50)[0] == found


def test_a_slot_with_several_features_has_several_texts(tmp_path: Path) -> None:
    log_of(tmp_path / "log.csv", 300)
    spec = parse_spec(SPEC.replace("bits: 22", "bits: 5"), "test")
    source = RawSource(spec, [tmp_path / "log.csv"], on_bad_rows=SKIP)
    dictionary = Dictionary(spec, source.columns, 1_000)
    source.watch = dictionary.add
    list(source.batches(100))
    found = dictionary.table().to_pylist()
    assert len(found) > 32 > len({row["slot"] for row in found}) - 1
    assert all(0 <= row["slot"] < 32 for row in found)


def test_a_step_that_tells_no_texts_has_hashes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(STEPS, "list", replace(STEPS["list"], texts=None))
    (tmp_path / "log.csv").write_text("y,site,n,t\n1,a,1,x\n0,a,1,x y\n")
    found, _ = dictionary_of(tmp_path / "log.csv", 100)
    texts = [row["feature"] for row in found if row["feature"].startswith("t=")]
    seed = hash_bytes(b"t", 5)
    assert sorted(texts) == sorted(["t=x", f"t=#{hash_bytes(b'y', seed):016x}"])


def test_a_bucket_without_a_text_is_its_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(STEPS, "width", replace(STEPS["width"], texts=None))
    (tmp_path / "log.csv").write_text("y,v\n1,5\n0,-3\n1,\n")
    text = "{version: 1, source: {format: delimited}, label: y, bias: false, fields: [FIELD]}"
    field = "{name: v, type: number, transform: width, width: 2, missing: {value: '7.5'}}"
    spec = parse_spec(text.replace("FIELD", field), "test")
    source = RawSource(spec, [tmp_path / "log.csv"])
    dictionary = Dictionary(spec, source.columns, 9)
    source.watch = dictionary.add
    list(source.batches(10))
    assert sorted(dictionary.table()["feature"].to_pylist()) == ["v=-2", "v=2", "v=3"]


def test_the_last_bucket_of_log_has_no_end(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("y,v\n1,1.7976931348623157e308\n")
    field = "{name: v, type: number, transform: log}"
    text = f"{{version: 1, source: {{format: delimited}}, label: y, bias: false, fields: [{field}]}}"
    source = RawSource(parse_spec(text, "test"), [tmp_path / "log.csv"])
    dictionary = Dictionary(source.spec, source.columns, 9)
    source.watch = dictionary.add
    list(source.batches(10))
    assert dictionary.table()["feature"].to_pylist() == ["v=[1.79706e+308, inf)"]


def test_what_is_read_of_every_kind_of_number(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("y,v\n1,5\n0,-3\n1,0\n0,100\n1,\n0,oops\n")
    kinds = {
        "log": "transform: log",
        "wide": "transform: width, width: 2.5",
        "half": "transform: quantiles, buckets: 2",
        "root": "transform: edges, edges: [2, 3], steps: [sqrt]",
        "same": "transform: linear",
        "filled": "transform: edges, edges: [1], missing: {value: '7'}",
    }
    listed = ", ".join(f"{{name: {name}, column: v, type: number, {keys}}}" for name, keys in kinds.items())
    text = f"{{version: 1, source: {{format: delimited}}, label: y, bias: false, fields: [{listed}]}}"
    log = tmp_path / "log.csv"
    (tmp_path / "good.csv").write_text(log.read_text().replace("0,oops\n", ""))
    spec = fit(parse_spec(text, "test"), [tmp_path / "good.csv"])
    source = RawSource(spec, [log], on_bad_rows=SKIP)
    dictionary = Dictionary(spec, source.columns, 99)
    source.watch = dictionary.add
    list(source.batches(10))
    counts = {row["feature"]: row["count"] for row in dictionary.table().to_pylist()}
    assert counts == {
        "log=[4.11325, 5.65223)": 1, "log=[-3, -2)": 1, "log=[0, 1)": 1, "log=[97.7659, 108.898)": 1,
        "wide=[5, 7.5)": 1, "wide=[-5, -2.5)": 1, "wide=[0, 2.5)": 1, "wide=[100, 102.5)": 1,
        "half=[-inf, 5)": 2, "half=[5, inf)": 2,
        "root=[2, 3)": 1, "root=[-inf, 2)": 2, "root=[3, inf)": 1,
        "same=(number)": 3,
        "filled=[1, inf)": 3, "filled=[-inf, 1)": 2,
    }  # fmt: skip


def test_what_is_read_of_every_kind_of_text(tmp_path: Path) -> None:
    fields = [
        "{name: short, column: c, type: category, lower: true, prefix: 3}",
        "{name: often, column: c, type: category, min_count: 2, missing: feature}",
        "{name: tags, column: t, type: list, delimiter: '|', counts: true, most: 2}",
        "{name: words, column: t, type: text, words: [1, 2], missing: {value: none}}",
        "{name: chars, column: c, type: text, chars: [4]}",
    ]
    text = (
        f"{{version: 1, source: {{format: delimited}}, label: y, bias: false, fields: [{', '.join(fields)}]}}"
    )
    log = tmp_path / "log.csv"
    log.write_text("y,c,t\n1,Straße,red:2| new |red|old\n0,Straße,\n1,,NEW: x|0:0\n0,5.0,\n")
    spec = fit(parse_spec(text, "test"), [log])
    source = RawSource(spec, [log])
    dictionary = Dictionary(spec, source.columns, 99)
    source.watch = dictionary.add
    list(source.batches(10))
    counts = {row["feature"]: row["count"] for row in dictionary.table().to_pylist()}
    assert counts == {
        "short=str": 2, "short=5.0": 1,
        "often=Straße": 2, "often=(missing)": 1, "often=(other)": 1,
        "tags=red": 1, "tags=new": 1, "tags=NEW: x": 1,
        "words=red": 1, "words=2": 1, "words=new": 2, "words=old": 1, "words=x": 1, "words=0": 1,
        "words=red 2": 1, "words=2 new": 1, "words=new red": 1, "words=red old": 1,
        "words=new x": 1, "words=x 0": 1, "words=0 0": 1, "words=none": 2,
        "chars=' str'": 2, "chars='stra'": 2, "chars='traß'": 2, "chars='raße'": 2, "chars='aße '": 2,
        "chars=' 5 '": 1, "chars=' 0 '": 1,
    }  # fmt: skip


def test_an_age_that_another_column_begins(tmp_path: Path) -> None:
    field = "{name: age, column: at, type: time, transform: age_days, since_column: born}"
    text = (
        "{version: 1, source: {format: delimited}, label: y, bias: false,"
        f" fields: [{{name: s, type: category}}, {field}], crosses: [s * age]}}"
    )
    (tmp_path / "log.csv").write_text("y,s,at,born\n1,a,2017-11-06,2017-11-01\n0,a,2017-11-06,\n")
    source = RawSource(parse_spec(text, "test"), [tmp_path / "log.csv"])
    dictionary = Dictionary(source.spec, source.columns, 9)
    source.watch = dictionary.add
    list(source.batches(10))
    found = {row["feature"]: row["count"] for row in dictionary.table().to_pylist()}
    assert found == {"s=a": 2, "age=5 days": 1, "s * age=a * 5 days": 1}


def test_libsvm_features_are_named_by_their_index(tmp_path: Path) -> None:
    (tmp_path / "log.libsvm").write_text("1 7:1 9:0.5\n-1 7:2 3:0\n")
    source = RawSource(load_spec("libsvm"), [tmp_path / "log.libsvm"])
    dictionary = Dictionary(source.spec, source.columns, 9)
    source.watch = dictionary.add
    list(source.batches(10))
    found = {row["feature"]: row["count"] for row in dictionary.table().to_pylist()}
    assert found == {"bias": 2, "index=7": 2, "index=9": 1}


def test_rows_without_features_have_no_texts() -> None:
    spec = parse_spec(SPEC.replace("bits: 22", "bits: 22, bias: false"), "test")
    columns = Transform(spec, with_label=False).columns
    assert Dictionary(spec, columns, 5).table().num_rows == 0
