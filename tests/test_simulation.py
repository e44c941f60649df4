"""A simulated cluster: the real workers, board and sessions come to what they should, in virtual time."""

from __future__ import annotations

import pytest

from benchmarks.simulate import Size, run


@pytest.mark.parametrize("planned_store", [False, True])
def test_a_simulated_job_counts_every_example_once(planned_store: bool) -> None:
    ran = run(Size(workers=4, nodes=2, bits=26, chunks=5, planned_store=planned_store))
    assert ran["chunks"] == ran["expected_chunks"] == 20
    assert ran["counted"] == ran["expected"] == (0 if planned_store else 20 * 2 * 32)  # strings
    assert 0.3 < ran["steady"] / ran["planned"] < 2
