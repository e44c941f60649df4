"""Tokens, URLs of stores, and the kernels that check requests."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctr.errors import StoreError
from ctr.ps import Partitions, Token, open_store
from ctr.ps.kernels import ascending, finite
from tests.reference import store as reference


@pytest.mark.parametrize(
    ("job", "shard", "number"),
    [("", 0, 0), ("job", -1, 0), ("job", 0, -1), ("job", 2**63, 0), ("job", 0, 2**63)],
)
def test_a_token_names_a_job_and_counts_from_zero(job: str, shard: int, number: int) -> None:
    with pytest.raises(ValueError, match="name the job"):
        Token(job, shard, number)


@pytest.mark.parametrize("url", ["", "memory", "memory:/", "mem://", "mysql://user:secret@host:6379/0"])
def test_an_unknown_store_is_refused_without_showing_a_password(url: str) -> None:
    with pytest.raises(StoreError, match="use memory://") as refused:
        open_store(url, bits=20, width=2)
    assert "secret" not in str(refused.value)


def test_the_store_in_memory_has_no_address() -> None:
    with pytest.raises(StoreError, match="no address"):
        open_store("memory://localhost", bits=20, width=2)


@given(st.lists(st.integers(0, 2**32 - 1), max_size=40), st.booleans())
def test_ascending(slots: list[int], in_order: bool) -> None:
    slots = sorted(slots) if in_order else slots
    assert ascending(np.array(slots, np.uint32)) == reference.ascending(slots)
    large = [slot << 8 for slot in slots]
    assert ascending(np.array(large, np.uint64)) == reference.ascending(large)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 3.4e38, -0.0, 1e-45])
def test_finite(bad: float) -> None:
    for place in range(23):
        delta = np.ones((23, 1), np.float32)
        delta[place] = bad
        assert finite(delta.reshape(-1)) == reference.finite(delta.tolist()), place


@given(
    st.integers(1, 40).flatmap(
        lambda bits: st.tuples(
            st.just(bits),
            st.integers(0, min(bits, 6)),
            st.sets(st.integers(0, 2**bits - 1) | st.sampled_from([0, 2**bits - 1, 2 ** (bits - 1)])),
        )
    )
)
def test_cuts_lie_where_partitions_begin(case: tuple[int, int, set[int]]) -> None:
    bits, log_count, slots = case
    partitions = Partitions(bits, 2**log_count)
    cuts = partitions.cuts(np.array(sorted(slots), np.uint32 if bits <= 32 else np.uint64))
    assert cuts.tolist() == reference.cuts(sorted(slots), partitions.shift, partitions.count)
    assert partitions.size * partitions.count == 2**bits


@pytest.mark.parametrize("count", [0, 3, 512, -2])
def test_partitions_divide_the_space_evenly(count: int) -> None:
    with pytest.raises(ValueError, match="power of two"):
        Partitions(8, count)
