"""Categories with options, lists and text against their plain reference."""

from __future__ import annotations

import hashlib
import pickle

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ctr.features.columns import Column, HashedTokens
from ctr.features.spec import KNOWN, CategoryField, ListField, TextField, WordField
from ctr.features.steps.registry import STEPS
from ctr.features.text.hashing import hash_bytes
from ctr.features.words.count_kernels import is_known
from ctr.features.words.counts import HashCounts, KnownValues, known_table
from ctr.features.words.letter_kernels import CODES, decode, is_in_words, lower_of
from ctr.features.words.letters import letters
from tests.reference import words as reference

pytestmark = pytest.mark.kernel

_ODD = [
    "",
    "nan",
    "NaN",
    "5.0",
    "-0.0",
    "True",
    "FALSE",
    "É",
    "İ",
    "ẞß",
    "\u023a",
    "\uab70\u13a0",
    "𐐀",
    "中文",
    "a\u0301B",
    "\x1f",
]
PIECES = st.one_of(
    st.sampled_from(
        [*_ODD, "a", "b", "A", "|", ":", ":2", ":-1.5", ":x", ":1e39", ":3.4e38", " ", "\t", "🙂"]
    ),
    st.text(max_size=4),
).map(lambda text: text.encode("utf-8", "surrogatepass"))
TEXTS = st.lists(st.one_of(PIECES, st.binary(max_size=3)), max_size=12).map(b"".join)
SEEDS = st.integers(0, 2**64 - 1)
FIELDS: list[WordField] = [
    CategoryField(name="c", type="category", lower=True),
    CategoryField(name="c", type="category", prefix=2),
    CategoryField(name="c", type="category", lower=True, prefix=3, min_count=2, others="missing"),
    CategoryField(name="c", type="category", min_count=2),
    ListField(name="l", type="list"),
    ListField(name="l", type="list", delimiter="|", counts=True),
    ListField(name="l", type="list", delimiter=" ", lower=True, prefix=1, min_count=2, most=2),
    ListField(name="l", type="list", delimiter=",", counts=True, min_count=2, others="missing", most=1),
    TextField(name="t", type="text", words=(1, 2)),
    TextField(name="t", type="text", chars=(3, 5)),
    TextField(name="t", type="text", words=(2, 3), chars=(1, 2), most=4),
    TextField(name="t", type="text", words=(1,), chars=(4,), min_count=2, others="missing"),
]


def column_of(texts: list[bytes], bad: frozenset[int] = frozenset()) -> Column:
    """A column of these texts; rows in `bad` have a status, and places far away."""
    lengths = np.array([len(text) for text in texts], np.int32)
    ends = np.cumsum(lengths, dtype=np.int32)
    starts, status = ends - lengths, np.zeros(len(texts), np.uint8)
    for row in bad:
        starts[row], ends[row], status[row] = -7, 2**31 - 1, 1
    return Column(np.frombuffer(b"".join(texts), np.uint8), starts, ends, status)


def made(field: WordField, column: Column, seed: int, known: reference.Known) -> list[dict[int, float]]:
    learnt = {} if known is None else {KNOWN: known_table(np.array(sorted(known), np.uint64))}
    found = STEPS[field.step].make(field, column, seed, learnt)
    assert not found.problem.any()
    if isinstance(found, HashedTokens):
        return [
            {int(word): 1.0} if is_there else {}
            for word, is_there in zip(found.hashes, found.present, strict=True)
        ]
    cells = []
    for first, last in zip(found.bounds[:-1], found.bounds[1:], strict=True):
        hashes, values = found.hashes[first:last].tolist(), found.values[first:last].tolist()
        assert len(set(hashes)) == len(hashes)
        cells.append(dict(zip(hashes, values, strict=True)))
    return cells


@pytest.mark.parametrize("field", FIELDS, ids=str)
@settings(max_examples=40)
@given(texts=st.lists(TEXTS, max_size=20), seed=SEEDS)
@example(
    texts=[b"a:3e38|a:3e38|a:-9", b"a:3.5e38|:2|b:", b"x" * 300, b"\xf0\x9f\x99", b"\xed\xa0\x80A"], seed=1
)
@example(
    texts=[b"A|a|A", b"A", "Äpfel ÄPFEL Birnen".encode(), b"a\x1fb\x1f\x1fa", b"true|True|1|1.0"], seed=2
)
def test_features_are_those_of_the_reference(field: WordField, texts: list[bytes], seed: int) -> None:
    bad = frozenset({1} if len(texts) > 3 else ())
    column, good = column_of(texts, bad), [text for i, text in enumerate(texts) if i not in bad]
    known = None
    if field.min_count is not None:
        counting = KnownValues(field, {})
        counting.add(counting.prepared(column))
        known = reference.frequent(field.model_copy(update={"most": None}), good, field.min_count)
        assert np.unique(counting.learnt()[KNOWN]).tolist() == sorted(known)
    expected = [
        {} if i in bad else reference.features(field, text, seed, known) for i, text in enumerate(texts)
    ]
    found = made(field, column, seed, known)
    assert found == expected
    assert [list(cell) for cell in found] == [list(cell) for cell in expected]  # in their order, too


def test_a_list_of_one_element_and_a_plain_category_have_the_same_hash() -> None:
    plain = hash_bytes(b"site", 7)
    for field in (FIELDS[0], FIELDS[4], FIELDS[8]):
        assert made(field, column_of([b"site"]), 7, None) == [{plain: 1.0}]


def test_the_table_of_characters_never_changes() -> None:
    """Models depend on it: not even another version of Python may change it."""
    table = letters()
    assert (table.shape, table.dtype) == ((CODES,), np.uint32)
    assert hashlib.sha256(table.tobytes()).hexdigest()[:16] == "07f0071de2f0e89b"
    for char in "aZ9éÉДд中ß\u13a0":
        assert is_in_words(ord(char), table)
    for char in "_- .🙂€、。\u200d":
        assert not is_in_words(ord(char), table)
    assert [chr(lower_of(ord(c), table)) for c in "AÉДİÑ𐐀中"] == list("aéдiñ𐐨中")
    assert is_in_words(0x20001, table)
    assert not is_in_words(0xE0001, table)
    assert not is_in_words(-1, table)


@given(st.binary(min_size=1, max_size=8))
def test_characters_are_those_that_python_decodes(text: bytes) -> None:
    buffer, found, at = np.frombuffer(text, np.uint8), [], 0
    while at < len(text):
        code, after = decode(buffer, np.uint64(at), np.uint64(len(text)))
        found.append(0xDC00 + text[at] if code == -1 else int(code))
        at = int(after)
    assert found == [ord(char) for char in reference.characters(text)]


@given(st.lists(st.one_of(st.integers(0, 2**64 - 1), st.integers(2**63, 2**63 + 9)), max_size=60), SEEDS)
@example(list(range(1, 400)), 2**64 - 1)
@example([2**64 - 1 - k for k in range(400)], 5)
def test_what_is_known_is_found(hashes: list[int], other: int) -> None:
    known = known_table(np.unique(np.array(hashes, np.uint64)))
    for hashed in {*hashes, other, 0, 2**64 - 1, 2**63 + 4}:
        assert is_known(np.uint64(hashed), known) == (hashed in set(hashes))


@given(st.lists(st.integers(0, 30), max_size=300), st.integers(1, 5))
def test_counts_are_exact_as_long_as_there_is_room(values: list[int], least: int) -> None:
    counts = HashCounts()
    hashes = np.array(values, np.uint64) * np.uint64(0x9E3779B185EBCA87)
    for part in np.array_split(hashes, 3):
        counts.add(part, np.ones(part.size, np.bool_))
    expected = {int(h) or 1 for h in np.unique(hashes) if np.count_nonzero(hashes == h) >= least}
    assert set(counts.reached(least).tolist()) == expected


@given(st.lists(st.lists(st.integers(0, 30), max_size=90), min_size=1, max_size=4), st.integers(1, 5))
def test_merged_counts_are_those_of_all_values(parts: list[list[int]], least: int) -> None:
    whole, merged = HashCounts(), HashCounts()
    for values in parts:
        hashes = np.array(values, np.uint64) * np.uint64(0x9E3779B185EBCA87)
        part = HashCounts()
        for counts in (whole, part):
            counts.add(hashes, np.ones(hashes.size, np.bool_))
        merged.merge(pickle.loads(pickle.dumps(part)))
    assert merged.reached(least).tolist() == whole.reached(least).tolist()


def test_merged_counts_grow_and_then_forget_the_rarest() -> None:
    parts = [HashCounts(most_places=1 << 13) for _ in range(4)]
    often = np.arange(1, 301, dtype=np.uint64) * np.uint64(0x9E3779B185EBCA87)
    rng = np.random.default_rng(1)
    for part in parts:
        once = rng.integers(1, 2**64, 4_000, np.uint64)
        hashes = np.concatenate([once, np.repeat(often, 10)])
        part.add(hashes, np.ones(hashes.size, np.bool_))
    first, *others = parts
    for other in others:
        first.merge(other)
    assert set(often.tolist()) <= set(first.reached(40).tolist())
    first.add(often, np.ones(often.size, np.bool_))
    assert set(often.tolist()) <= set(first.reached(41).tolist())


def test_without_room_the_rarest_are_forgotten_whatever_the_blocks() -> None:
    """A stream of values met once cannot push out those that are frequent."""
    rng = np.random.default_rng(1)
    once = rng.integers(1, 2**64, 100_000, np.uint64)
    often = np.arange(1, 301, dtype=np.uint64) * np.uint64(0x9E3779B185EBCA87)
    stream = np.concatenate([once, np.repeat(often, 60)])
    rng.shuffle(stream)
    found = []
    for parts in (1, 7, 1_000):
        counts = HashCounts(most_places=1 << 12)
        for part in np.array_split(stream, parts):
            counts.add(part, np.ones(part.size, np.bool_))
        found.append(counts.reached(20))
        assert counts._keys.size == 1 << 12
    assert set(often.tolist()) <= set(found[0].tolist())
    assert found[0].size < 600
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])
