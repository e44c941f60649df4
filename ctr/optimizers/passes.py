"""`Passes`: how often a state has learnt its rows, on average."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Passes:
    """The rows that a state was learnt from, and the passes over them: what `Optimizer.in_pass` goes by.

    A warm start learns new rows, so its passes count for these rows alone. Jobs of k passes each, one after
    the other, end with the penalties of one job of k passes over all their rows.
    """

    mean: float = 0.0
    """Passes over a row, on average; 0 if nothing was learnt."""
    rows: int = 0

    def after(self, own: int, rows: int) -> float:
        """The mean once a job has made its pass `own` (from 1) over `rows` others."""
        learnt = self.rows + rows
        return (self.mean * self.rows + own * rows) / learnt if learnt else float(own)

    def during(self, own: int, rows: int) -> float:
        """The mean that counts in a job's pass `own`, where a pass has `rows`.

        The first goes on with what the state was learnt with, as its rows are not counted before they are
        read. So a warm start begins with the weights of its model.
        """
        return max(self.mean, 1.0) if own == 1 else self.after(own, rows)


NOTHING = Passes()
"""Of a new model."""
