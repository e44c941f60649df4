"""Counting lists and objects, beside what a parser makes of the same text."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ctr.api.requests.json_kernels import count_containers
from tests.reference import json_containers as reference

pytestmark = pytest.mark.kernel

TEXT = st.text(st.sampled_from('ab"\\[]{},:é\n'), max_size=8)
VALUES = st.recursive(
    st.none() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(TEXT, inner, max_size=5),
    max_leaves=30,
)


def count(text: bytes, depth: int) -> tuple[int, int]:
    return count_containers(np.frombuffer(text, np.uint8), depth)


@given(VALUES, st.integers(0, 3), st.booleans())
def test_the_count_is_that_of_the_parsed_value(value: object, depth: int, ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only).encode()
    assert count(text, depth) == reference.count_containers(value, depth)


@given(st.binary(max_size=40), st.integers(0, 3))
@example(b"]]]]{{{{", 2)
@example(b'"\\', 0)
def test_anything_else_has_at_most_its_brackets(text: bytes, depth: int) -> None:
    at_depth, total = count(text, depth)
    assert 0 <= at_depth <= total <= text.count(b"[") + text.count(b"{")


@pytest.mark.parametrize("text", [b"", b"12", b'"[{"', b'"\\"[{"'])
def test_text_without_any(text: bytes) -> None:
    assert count(text, 0) == (0, 0)
