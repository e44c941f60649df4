"""`RowStatus`: one number for each thing that can be wrong with a row, and one explanation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ctr.errors import DataError
from ctr.features import RawSource, parse_spec
from ctr.features.lines.delimited import DelimitedRows
from ctr.features.lines.json_lines import JsonRows
from ctr.features.text import Lines, RowStatus
from ctr.features.transform import problems

SPEC = """\
version: 1
source: {format: jsonl}
label: click
fields: [{name: age, column: at, type: time, transform: age_days, since_column: born}]
"""


def test_no_two_problems_share_a_number() -> None:
    numbers = [int(status) for status in RowStatus.__members__.values()]
    assert len(set(numbers)) == len(numbers)
    assert all(0 <= number < 256 for number in numbers)  # they are kept as uint8


@pytest.mark.parametrize("status", [s for s in RowStatus if s not in (RowStatus.OK, RowStatus.ELSEWHERE)])
def test_each_problem_is_explained_by_those_who_meet_it(status: RowStatus) -> None:
    lines, places = Lines.__new__(Lines), np.zeros(1, np.int32)
    readers = [DelimitedRows(lines, places, places, 3), JsonRows(lines, places, places, ["a"])]
    by_readers = [reader.misread(status, 0) is not None for reader in readers]
    assert sum(by_readers) == (not status.is_split)
    times = {RowStatus.TIME, RowStatus.SINCE}
    assert (
        (status in problems._EXPECTED)
        == (status in problems._REASONS)
        == (status.is_split - (status in times))
    )


def test_a_bad_time_in_json_lines_is_called_a_bad_time(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text('{"click": 1, "at": "2017-11-06", "born": "yesterday"}\n')
    source = RawSource(parse_spec(SPEC, "spec"), [path])
    with pytest.raises(DataError, match="column 'born': 'yesterday' is no time"):
        list(source.batches(1))
