"""What is in hashed data sets."""

from __future__ import annotations

from pathlib import Path

from ctr.features import DatasetSource

Row = tuple[float, float, list[int], list[float] | None]


def rows_of_dataset(folder: str | Path) -> list[Row]:
    """Label, weight, slots and values of every row, in order."""
    rows: list[Row] = []
    for chunk in DatasetSource(folder).chunks():
        batch = chunk.to_batch()
        assert batch.labels is not None
        for row in range(len(batch)):
            features = slice(batch.indptr[row], batch.indptr[row + 1])
            rows.append(
                (
                    float(batch.labels[row]),
                    1.0 if batch.weights is None else float(batch.weights[row]),
                    batch.slots[features].tolist(),
                    None if batch.values is None else batch.values[features].tolist(),
                )
            )
    return rows
