"""The Redis protocol as kernels write and read it, against a plain reference."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctr.ps.wire import bitfield_add, bitfield_read, resp_kernels
from tests.reference import resp

pytestmark = pytest.mark.kernel

KEY = b"ctr:{model:17}:w"
EDGES = sorted(
    {10**k + d for k in range(19) for d in (-1, 0, 1)} | {2**k + d for k in range(63) for d in (-1, 0)}
)
OFFSETS = [number for number in EDGES if number < 2**32] + [2**32 - 1]
INT64 = [*EDGES, *(-number for number in EDGES), 2**63 - 1, -(2**63)]
FEW = settings(max_examples=60)

int64 = st.integers(-(2**63), 2**63 - 1) | st.sampled_from(INT64) | st.integers(-9, 9)


def as_bytes(text: bytes) -> np.ndarray:
    return np.frombuffer(text, np.uint8)


def pull(key: bytes, offsets: Sequence[int]) -> bytes:
    return bytes(bitfield_read(key, np.array(offsets, np.uint32)))


def push(key: bytes, offsets: Sequence[int], increments: Sequence[int]) -> bytes:
    return bytes(bitfield_add(key, np.array(offsets, np.uint32), np.array(increments, np.int64)))


def parsed(text: bytes, most: int) -> tuple[int, list[int]]:
    """Reads from the middle of a buffer that goes on after the text."""
    buffer, out = as_bytes(b":7\r\n" + text + b":8\r\n:9\r\n"), np.full(most + 1, -5, np.int64)
    at, count = resp_kernels.parse_integers(buffer, 4, 4 + len(text), out, 1)
    assert out[0] == -5
    assert set(out[count:].tolist()) <= {-5}
    return at - 4 if at >= 0 else ~(~at - 4), out[1:count].tolist()


# Commands


@pytest.mark.parametrize("key", [b"", b"k", KEY, "ctr:{модель:1}:w".encode(), b"\r\n$3\r\n", b"k" * 1000])
@pytest.mark.parametrize("offsets", [[], [0], [2**32 - 1], [0, 1, 2**21 - 1], [5, 5, 3]])
def test_a_pull(key: bytes, offsets: list[int]) -> None:
    assert pull(key, offsets) == resp.pull(key, offsets)


@pytest.mark.parametrize("count", [2, 3, 32, 33, 332, 333, 3333])
def test_a_pull_of_many(count: int) -> None:
    assert pull(KEY, range(count)) == resp.pull(KEY, range(count))


def test_offsets_of_every_length() -> None:
    assert pull(KEY, OFFSETS) == resp.pull(KEY, OFFSETS)
    for offset in OFFSETS:
        assert pull(KEY, [offset]) == resp.pull(KEY, [offset])


def test_increments_of_every_length_and_sign() -> None:
    for increment in INT64:
        assert push(b"", [0], [increment]) == resp.push(b"", [0], [increment])
    offsets = np.resize(OFFSETS, len(INT64)).tolist()
    assert push(KEY, offsets, INT64) == resp.push(KEY, offsets, INT64)


def test_an_empty_push() -> None:
    assert push(KEY, [], []) == resp.push(KEY, [], [])


@FEW
@given(st.binary(max_size=40), st.lists(st.tuples(st.integers(0, 2**32 - 1), int64), max_size=50))
def test_any_request(key: bytes, rows: list[tuple[int, int]]) -> None:
    offsets, increments = [row[0] for row in rows], [row[1] for row in rows]
    assert pull(key, offsets) == resp.pull(key, offsets)
    assert push(key, offsets, increments) == resp.push(key, offsets, increments)


def test_nothing_else_of_the_buffer_is_written() -> None:
    offsets, increments = np.array(OFFSETS, np.uint32), np.resize(np.array(INT64), len(OFFSETS))
    for encode, more in ((resp_kernels.encode_pull, ()), (resp_kernels.encode_push, (increments,))):
        buffer = np.full(100 * offsets.size, 0xEE, np.uint8)
        end = encode(buffer, 32, offsets, *more)
        assert set(buffer[:32].tolist()) | set(buffer[end:].tolist()) == {0xEE}


def test_the_longest_operations_fit() -> None:
    offsets, increments = np.full(9, 2**32 - 1, np.uint32), np.full(9, -(2**63), np.int64)
    buffer = np.empty(1000, np.uint8)
    assert resp_kernels.encode_pull(buffer, 0, offsets) == 9 * resp_kernels.LONGEST_GET
    assert resp_kernels.encode_push(buffer, 0, offsets, increments) == 9 * resp_kernels.LONGEST_INCRBY


# Integer replies


@pytest.mark.parametrize("numbers", [[], [0], [-1], INT64])
def test_integers_are_read(numbers: list[int]) -> None:
    text = resp.integer_replies(numbers)
    assert parsed(text, len(numbers)) == (len(text), numbers)


def test_no_more_is_read_than_fits() -> None:
    assert parsed(b":1\r\n:2\r\n:3\r\n", 2) == (8, [1, 2])
    assert parsed(b":1\r\n", 0) == (0, [])


def test_the_reply_may_be_cut_anywhere() -> None:
    text = resp.integer_replies([-(2**63), 0, 12, 2**63 - 1])
    for cut in range(len(text) + 1):
        assert parsed(text[:cut], 4) == resp.parse(text[:cut], 4)


@FEW
@given(st.lists(int64, max_size=80), st.lists(st.integers(1, 200), min_size=1))
def test_a_reply_that_comes_in_pieces(numbers: list[int], pieces: list[int]) -> None:
    text = resp.integer_replies(numbers)
    buffer, out = as_bytes(text), np.empty(len(numbers), np.int64)
    end = at = count = 0
    while end < len(text):
        end = min(end + pieces[end % len(pieces)], len(text))
        at, count = resp_kernels.parse_integers(buffer, at, end, out, count)
        where, read = resp.parse(text[:end], len(numbers))
        assert (at, count) == (where, len(read))
    assert out.tolist() == numbers


@pytest.mark.parametrize("rest", [b"-ERR no\r\n", b"*-1\r\n", b"$-1\r\n", b"+OK\r\n", b"\r\n", b"12\r\n"])
def test_another_reply_stops_the_reading(rest: bytes) -> None:
    assert parsed(b":1\r\n:2\r\n" + rest, 9) == (8, [1, 2])


@pytest.mark.parametrize(
    "text",
    [
        b":\r\n",
        b":-\r\n",
        b":--1\r\n",
        b":+1\r\n",
        b": 1\r\n",
        b":1 \r\n",
        b":12a\r\n",
        b":1\n",
        b":1\r\r\n",
        b":1:2\r\n",
        b":9223372036854775808\r\n",
        b":-9223372036854775809\r\n",
        b":18446744073709551616\r\n",
        b":99999999999999999999",
        b":100000000000000000000000000",
        b":x",
    ],
)
def test_what_is_no_integer_is_told(text: bytes) -> None:
    assert parsed(b":5\r\n" + text, 9) == (~4, [5])


# Ranges


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 800])
@pytest.mark.parametrize("first", [0, 5, 2**32 - 100])
def test_a_range_is_read_and_is_zero_beyond_its_end(size: int, first: int) -> None:
    raw = np.random.default_rng(size).integers(0, 256, size, np.uint8).tobytes()
    offsets = [first, first + 1, first + 1, first + 98, first + 99]
    out = np.full(5, -5, np.int64)
    resp_kernels.decode_range(as_bytes(raw), np.array(offsets, np.uint32), first, out)
    assert out.tolist() == resp.range_values(raw, offsets, first)


def test_a_range_out_of_a_buffer_at_any_address() -> None:
    raw = b"".join(number.to_bytes(8, "big", signed=True) for number in INT64)
    for shift in range(8):
        buffer = as_bytes(b"?" * shift + raw)[shift:]
        out = np.empty(len(INT64), np.int64)
        resp_kernels.decode_range(buffer, np.arange(len(INT64), dtype=np.uint32), 0, out)
        assert out.tolist() == INT64
