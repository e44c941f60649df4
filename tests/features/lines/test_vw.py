"""Text of Vowpal Wabbit: labels, weights, tags, namespaces, and what is wrong with it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import xxhash

from ctr.errors import DataError
from ctr.features.raw import RawSource
from ctr.features.spec import parse_spec
from tests.features.raw_files import write
from tests.reference.vw import parse

pytestmark = pytest.mark.kernel

SPEC = parse_spec("{version: 1, source: {format: vw}, bits: 40, seed: 7}", "vw")
SEED = xxhash.xxh64_intdigest(b"named", 7)
LINES = [
    "1 |a x:0.5 y |b x",
    "1 2.0 'tag|ns a:0.5 b |other c",
    "0 0.5 0.1 tag| c d:2 e:0",
    "1 | f",
    "0 'only|a:2 x:3 y |é:-1 é",
    "0 |a",
    "1 |a x |a x:2",
]


@pytest.mark.parametrize("minus", [False, True])
def test_rows_are_those_of_the_reference(tmp_path: Path, minus: bool) -> None:
    lines = [("-1" + line[1:] if minus and line[0] == "0" else line) for line in LINES]
    path = write(tmp_path / "rows.vw", "\r\n\n".join(lines * 700))
    source = RawSource(SPEC, [path])
    (batch,) = source.batches(10_000)
    assert source.count_rows() == len(batch) == 700 * len(lines)
    assert batch.labels is not None
    assert batch.values is not None
    assert batch.weights is not None
    for i, line in enumerate(lines):
        label, weight, features = parse(line, SEED)
        row = slice(batch.indptr[i], batch.indptr[i + 1])
        assert batch.labels[i] == max(float(label), 0)
        assert batch.weights[i] == np.float32(weight)
        slots = [0, *(hash_ % 2**40 or 1 for hash_, _ in features)]
        assert batch.slots[row].tolist() == slots
        assert batch.values[row].tolist() == [1, *(np.float32(value) for _, value in features)]


def test_rows_without_labels_are_predicted(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.vw", "|a x\n'tag |a y\n1 |a x\n")
    (batch,) = RawSource(SPEC, [path], labels="ignored").batches(10)
    assert (len(batch), batch.labels) == (3, None)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("|a x", "column 'label': '' is no label"),
        ("3 |a x", "column 'label': '3' is no label"),
        ("1 -2 |a x", "column 'weight': '-2' is no weight"),
        ("1 |a x:y", r"column 'features': '\|a x:y' has a value that is not a finite number"),
        ("1 |a:1e30 x:1e30", "has a value that is not a finite number"),
    ],
)
def test_bad_rows(tmp_path: Path, line: str, message: str) -> None:
    path = write(tmp_path / "rows.vw", f"0 |a x\n\n{line}\n")
    with pytest.raises(DataError, match=rf"rows\.vw:3: .*{message}"):
        list(RawSource(SPEC, [path]).batches(10))


def test_only_blank_lines(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there are no rows, only blank lines"):
        list(RawSource(SPEC, [write(tmp_path / "rows.vw", " \n \n")]).batches(10))
