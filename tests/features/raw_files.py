"""Raw files, and what should become of them."""

from __future__ import annotations

import gzip
from collections.abc import Iterable
from pathlib import Path

from ctr.features.batches.batch import Batch
from ctr.features.dataset import DatasetDraft, dataset_folders
from ctr.features.spec import parse_spec
from ctr.features.transform.transform import Transform
from ctr.features.windows import Windows

SPEC = parse_spec(
    """
version: 1
source: {format: delimited, header: true}
label: y
fields: [{name: n, type: number, transform: log}, {name: c, type: category}]
""",
    "test.yaml",
)

ROWS = [(i % 2, i * i, f"v{i % 7}") for i in range(100)]


def csv_of(rows: list[tuple[object, ...]], header: str = "y,n,c") -> str:
    return "".join(line + "\n" for line in [header, *(",".join(map(str, row)) for row in rows)])


def write_windowed(batches: Iterable[Batch], windows: Windows, out: Path) -> None:
    """A data set with what its windows know after its rows."""
    with dataset_folders([out]) as (folder,):
        draft = DatasetDraft(windows.spec, folder)
        draft.write(batches)
        draft.finish(windows=windows)


def write(path: Path, text: str) -> Path:
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def joined(batches: list[Batch]) -> list[tuple[float | None, list[int]]]:
    """Label and slots of every row."""
    rows = []
    for batch in batches:
        for i in range(len(batch)):
            slots = batch.slots[batch.indptr[i] : batch.indptr[i + 1]].tolist()
            rows.append((None if batch.labels is None else float(batch.labels[i]), slots))
    return rows


def expected(rows: list[tuple[object, ...]]) -> list[tuple[float | None, list[int]]]:
    """What serving makes of the same rows, with their labels."""
    batch = Transform(SPEC, with_label=False).apply_rows([{"n": n, "c": c} for _, n, c in rows])
    return [(float(str(row[0])), slots) for row, (_, slots) in zip(rows, joined([batch]), strict=True)]
