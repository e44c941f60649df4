"""Rows in the order of their labels, and rows that are not."""

from __future__ import annotations

import numpy as np
import pytest

from ctr.features.batches import sorted_by_label


@pytest.mark.parametrize("rate", [0.001, 0.2, 0.9])
def test_only_rows_in_the_order_of_their_labels_look_sorted(rate: float) -> None:
    rng = np.random.default_rng(0)
    labels = (rng.random(1_000_000) < rate).astype(np.float32)
    drifting = (rng.random(16_384) < rate * np.linspace(0.1, 0.3, 16_384)).astype(np.float32)
    bursts = np.repeat(rng.random(4_096) < rate, 4).astype(np.float32)
    clicks_first = np.sort(labels)[::-1]
    for size in (30, 16_384):
        assert not sorted_by_label(labels[:size], rate)
        assert not sorted_by_label(drifting[:size], rate)
        assert not sorted_by_label(bursts[:size], rate)
    assert sorted_by_label(clicks_first[:16_384], rate)
    assert sorted_by_label(clicks_first[1::100], rate) == (rate > 0.001)  # 10 clicks may be chance
