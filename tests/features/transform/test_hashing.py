"""XXH64 against the `xxhash` package."""

from __future__ import annotations

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from ctr.features.text.hashing import hash_bytes, load_u64, xxh64, xxh64_two, xxh64_u64, xxh64_words

pytestmark = pytest.mark.kernel

SEEDS = st.integers(0, 2**64 - 1)


@pytest.mark.parametrize("length", [*range(70), 127, 128, 4097])
def test_every_length_hashes_as_xxhash_does(length: int) -> None:
    data = np.random.default_rng(length).integers(0, 256, length, np.uint8).tobytes()
    for seed in (0, 1, 2**63, 2**64 - 1):
        assert hash_bytes(data, seed) == xxhash.xxh64_intdigest(data, seed)


@given(st.one_of(st.binary(max_size=200), st.text(max_size=60).map(str.encode)), SEEDS)
def test_any_bytes_hash_as_xxhash_does(data: bytes, seed: int) -> None:
    assert hash_bytes(data, seed) == xxhash.xxh64_intdigest(data, seed)


@given(st.integers(0, 2**64 - 1), SEEDS)
def test_a_word_hashes_as_its_eight_little_endian_bytes(value: int, seed: int) -> None:
    digest = xxhash.xxh64_intdigest(value.to_bytes(8, "little"), seed)
    assert int(xxh64_u64(np.uint64(value), np.uint64(seed))) == digest


@given(st.lists(st.integers(0, 2**64 - 1), max_size=11), SEEDS)
def test_words_hash_as_their_little_endian_bytes(values: list[int], seed: int) -> None:
    digest = xxhash.xxh64_intdigest(b"".join(value.to_bytes(8, "little") for value in values), seed)
    words = np.array([*values, 5], np.uint64)
    assert int(xxh64_words(words, np.uint64(len(values)), np.uint64(seed))) == digest
    if len(values) == 2:
        assert int(xxh64_two(words[0], words[1], np.uint64(seed))) == digest


@given(st.binary(max_size=80), st.integers(0, 80), st.integers(0, 80))
def test_a_stretch_inside_a_buffer_hashes_as_its_copy(data: bytes, a: int, b: int) -> None:
    start, end = sorted((min(a, len(data)), min(b, len(data))))
    buffer = np.frombuffer(data, np.uint8)
    got = xxh64(buffer, np.uint64(start), np.uint64(end), np.uint64(7))
    assert int(got) == xxhash.xxh64_intdigest(data[start:end], 7)


def test_words_load_little_endian_from_any_place() -> None:
    buffer = np.frombuffer(bytes(range(250, 256)) + bytes(range(20)), np.uint8)
    for at in range(buffer.size - 8):
        expected = int.from_bytes(buffer[at : at + 8].tobytes(), "little")
        assert int(load_u64(buffer, np.uint64(at))) == expected
