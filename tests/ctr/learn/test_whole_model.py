"""A whole model, read, converted and made weights of block by block."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ctr.learn import converted, read_out, weights_of
from ctr.optimizers import Float32, Optimizer
from ctr.optimizers.adagrad import AdaGrad
from ctr.optimizers.ftrl import Ftrl
from ctr.optimizers.lbfgs import Lbfgs
from ctr.ps import MemoryStore, Token
from ctr.ps.partitions import slot_dtype

BLOCK = 1 << 20


def states(rows: int) -> Float32:
    rng = np.random.default_rng(rows)
    return np.stack([rng.normal(0, 1, rows), rng.exponential(9, rows)], axis=1).astype(np.float32)


@pytest.mark.parametrize("rows", [0, 700, BLOCK, BLOCK + 1])
@pytest.mark.parametrize("optimizer", [Ftrl(), Ftrl(l1=0.1), AdaGrad()])
def test_weights_are_those_of_all_rows_at_once(rows: int, optimizer: Optimizer, tmp_path: Path) -> None:
    slots, state = (3 * np.arange(rows)).astype(np.uint32), states(rows)
    weights = optimizer.weights(state)
    for spool in (None, tmp_path, tmp_path / "missing"):
        kept, of_these = weights_of((slots, state), optimizer, spool)
        assert kept.dtype == slots.dtype
        np.testing.assert_array_equal(kept, slots[weights != 0])
        np.testing.assert_array_equal(of_these.view(np.uint32), weights[weights != 0].view(np.uint32))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("rows", [0, 700, BLOCK + 1])
@pytest.mark.parametrize("forgotten", [0.0, 0.3])
@pytest.mark.parametrize("former", [Ftrl(alpha=0.1), Ftrl(alpha=0.3, l1=0.1, l2=2.0)])
def test_a_state_is_converted_as_all_rows_at_once(
    rows: int, forgotten: float, former: Ftrl, tmp_path: Path
) -> None:
    state, now = states(rows), Ftrl(alpha=0.1, l1=0.01)

    def convert(some: Float32) -> Float32:
        adopted = now.adopt(some, former)
        return now.forget(adopted, forgotten) if forgotten else adopted

    for spool in (None, tmp_path):
        result = converted(state, convert, spool)
        np.testing.assert_array_equal(result.view(np.uint32), convert(state).view(np.uint32))
        assert (result is state) == (convert(state) is state)  # no copy


def test_a_state_is_converted_to_another_width() -> None:
    state = np.random.default_rng(2).normal(size=(5, 2)).astype(np.float32)
    state[:, 1] **= 2
    weights = Ftrl().weights(state)
    result = converted(state, lambda rows: Lbfgs().adopt(rows, Ftrl()))
    np.testing.assert_array_equal(result, weights[:, np.newaxis])


@pytest.mark.parametrize("bits", [12, 34])
@pytest.mark.parametrize("spooled", [False, True])
def test_what_a_store_holds(bits: int, spooled: bool, tmp_path: Path) -> None:
    store, spool = MemoryStore(bits, 2), tmp_path if spooled else None
    slots, state = read_out(store, spool)
    assert (slots.dtype, slots.shape, state.shape) == (slot_dtype(bits), (0,), (0, 2))
    pushed = np.arange(0, 1 << bits, 1 << (bits - 9)).astype(slot_dtype(bits))
    delta = np.arange(1, 2 * pushed.size + 1, dtype=np.float32).reshape(-1, 2)
    store.push(pushed, delta, Token("job", 0, 0))
    slots, state = read_out(store, spool)
    np.testing.assert_array_equal(slots, pushed)
    np.testing.assert_array_equal(state, delta)
    assert slots.flags.writeable  # Numba compiles its kernels once more for read-only arrays
    assert state.flags.writeable
