"""Window features that were logged with a row give training the batch that was served."""

from __future__ import annotations

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctr.errors import SpecError
from ctr.features import Batch, FeatureSpec, Transform, batch_of_lines
from ctr.features.spec import SERVED
from ctr.features.text import cells_of_rows
from ctr.features.windows import NotingHistory, ServedFeatures, Windows
from tests.features.windows.test_windows import COLUMNS, ROWS, SPECS, START, spec_of, timed

REQUEST = st.lists(st.tuples(st.integers(0, 900), st.sampled_from("pqr")), min_size=1, max_size=9)
ASKED = [{"t": "", "a": "p", "b": "s"}, *({"t": str(START + 10**8), "a": a, "b": "t"} for a in "pqr")]


def served(
    spec: FeatureSpec, before: list[dict[str, str]], asked: list[dict[str, str]]
) -> tuple[Batch, list[dict[str, object]]]:
    """The batch that a server scores after the rows `before`, and the rows as joined from its log."""
    history = Windows(spec)
    cells = cells_of_rows(before, COLUMNS, numbers=())
    history.buckets(cells, np.zeros(len(cells), np.uint8), COLUMNS, slice(None), take_in=True)
    transform, noting = Transform(spec, with_label=False, history=history), NotingHistory(spec, history)
    asked = [{name: row[name] for name in transform.columns} for row in asked]
    batch = transform.apply(transform.cells_of(asked), None, noting)
    return batch, [{"y": 0, **row} for row in noting.noted(asked)]


def read(spec: FeatureSpec, rows: list[dict[str, object]]) -> tuple[Batch, list[str]]:
    """The good rows, and what is wrong with the others."""
    transform = Transform(spec, with_label=True, history=ServedFeatures(spec), also=(SERVED,))
    batch, problems = batch_of_lines("log", b"\n".join(map(orjson.dumps, rows)), transform)
    return batch, list(problems.values())


@settings(max_examples=60)
@given(st.sampled_from(SPECS), ROWS, REQUEST)
def test_a_logged_row_is_trained_as_it_was_served(spec, rows, asked) -> None:  # type: ignore[no-untyped-def]
    before = timed(rows)
    latest = max((int(row["t"]) for row in before if row["t"]), default=START)
    batch, logged = served(spec, before, [{"t": str(latest + step), "a": a, "b": "s"} for step, a in asked])
    trained, problems = read(spec, logged)
    assert not problems
    np.testing.assert_array_equal(trained.slots, batch.slots)
    np.testing.assert_array_equal(trained.indptr, batch.indptr)


def test_rows_without_the_features_of_these_windows_are_bad() -> None:
    batch, (no_time, good, *others) = served(SPECS[0], [], ASKED)
    _, (of_other, *_) = served(SPECS[1], [], ASKED[1:])
    text = str(good[SERVED])
    words: list[object] = [
        "",
        None,
        of_other[SERVED],
        text + " 1",
        text[:-2],
        text.replace(" ", "  "),
        [text],
        7,
    ]
    lacking = {name: value for name, value in good.items() if name != SERVED}
    wrong = [lacking, *({**good, SERVED: word} for word in words)]
    trained, problems = read(SPECS[0], [no_time, *wrong, good, *others])
    np.testing.assert_array_equal(trained.slots, batch.slots)
    assert len(problems) == len(wrong)
    assert all(f"column '{SERVED}': " in problem for problem in problems)
    assert all("'' holds no window features" in problem for problem in problems[:3])
    assert all("does not hold the features of the spec's windows" in problem for problem in problems[3:7])


@pytest.mark.parametrize("more", ["spans: [2m]", "rate_edges: [0.1]", "strength: 3", "key: [b]", "name: x"])
def test_windows_with_other_features_are_other_windows(more: str) -> None:
    settings_ = {"name": "w", "key": "[a]", "time": "t", "format": "unix", "spans": "[1m]", "delay": "0s"}
    specs = [
        spec_of("{" + ", ".join(f"{key}: {value}" for key, value in each.items()) + ", features: [rate]}")
        for each in (settings_, settings_ | dict([more.split(": ")]))
    ]
    _, logged = served(specs[0], [], ASKED)
    assert not read(specs[0], logged)[1]
    assert len(read(specs[1], logged)[1]) == len(ASKED)


def test_the_column_is_reserved() -> None:
    with pytest.raises(SpecError, match=rf"windows\[0\]\.key\[0\]: column '{SERVED}' is where servers log"):
        spec_of(f"{{name: w, key: ['{SERVED}'], time: t, spans: [1h], features: [count]}}")
