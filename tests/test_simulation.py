"""A simulated cluster: the real workers, board and sessions come to what they should, on virtual time."""

from __future__ import annotations

from benchmarks.simulation.simulate import Size, run

STRINGS = 32


def test_a_simulated_job_counts_every_example_once() -> None:
    ran = run(Size(workers=4, nodes=2, bits=26, chunks=5))
    assert ran["chunks"] == ran["expected_chunks"] == 20
    assert ran["counted"] == ran["expected"] == 20 * 2 * STRINGS
    assert 0.5 < ran["steady"] / ran["planned"] < 1.5
