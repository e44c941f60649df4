"""Windows whose records are kept elsewhere, as bytes, beside windows that know all of their keys."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctr.errors import DataError
from ctr.features.spec import FeatureSpec
from ctr.features.text import Cells, cells_of_rows
from ctr.features.windows import WindowRecords, Windows, difference, identity_of
from tests.features.windows.test_windows import COLUMNS, SPECS, START, spec_of

STEPS = st.one_of(st.integers(-8, 12), st.sampled_from([0, 1, 40, 200, 700, 1_000, -600, -2_000]))
ROW = st.tuples(STEPS, st.sampled_from(["p", "q", "r", ""]), st.sampled_from("st"))
REQUESTS = st.lists(
    st.tuples(st.sampled_from(["rows", "rows", "clicks", "look"]), st.lists(ROW, min_size=1, max_size=8)),
    max_size=25,
)


class Kept:
    """What a server would keep: the totals, and records by name."""

    def __init__(self, spec: FeatureSpec, windows: Windows) -> None:
        self.form = WindowRecords(spec)
        self.totals, self.records = self.form.totals(windows), dict(self.form.records(windows))

    def excerpt(self, cells: Cells) -> Windows:
        names = self.form.names_in(cells, np.zeros(len(cells), np.uint8), COLUMNS, slice(None))
        return self.form.windows(self.totals, {n: self.records[n] for n in names if n in self.records})

    def take_back(self, windows: Windows) -> None:
        self.totals = self.form.totals(windows)
        self.records |= dict(self.form.records(windows))
        for name in self.form.forgotten(self.totals, self.records.items()):
            del self.records[name]


def asked(windows: Windows, what: str, cells: Cells) -> object:
    """The answer to one request: a number, features, or why it is refused."""
    try:
        if what == "rows":
            return windows.take_in(cells, COLUMNS)
        if what == "clicks":
            return windows.add_clicks(cells, COLUMNS)
    except DataError as error:
        return str(error)
    found = windows.buckets(cells, np.zeros(len(cells), np.uint8), COLUMNS, slice(None), take_in=False)
    return [(w.buckets[w.present].tolist(), w.present.tolist()) for w in found]


@settings(max_examples=80)
@given(st.sampled_from(SPECS), REQUESTS)
def test_records_by_key_say_what_whole_windows_say(spec, requests) -> None:  # type: ignore[no-untyped-def]
    whole = Windows(spec)
    kept = Kept(spec, whole)
    latest = START
    for what, rows in requests:
        texts = []
        for step, a, b in rows:
            texts.append({"y": "", "t": str(latest + step), "a": a, "b": b})
            latest = max(latest, latest + step) if what == "rows" else latest
        cells = cells_of_rows(texts, COLUMNS, numbers=())
        part = kept.excerpt(cells)
        assert asked(part, what, cells) == asked(whole, what, cells)
        kept.take_back(part)
    everything = kept.form.windows(kept.totals, kept.records)
    for k in range(len(spec.windows)):
        found, expected = everything.arrays(k), whole.arrays(k)
        assert found.keys() == expected.keys()
        for name, array in expected.items():
            np.testing.assert_array_equal(found[name], array)


def test_counters_above_255_and_back() -> None:
    spec = spec_of("{name: w, key: [a], time: t, format: unix, spans: [16s], expire: 1h, features: [count]}")
    whole = Windows(spec)
    kept = Kept(spec, whole)
    lengths = []
    for time, count in ((0, 300), (1, 1), (20, 1)):
        rows = [{"t": str(START + time), "a": "p", "b": "", "y": ""}] * count
        cells = cells_of_rows(rows, COLUMNS, numbers=())
        part = kept.excerpt(cells)
        for windows in (part, whole):
            assert windows.take_in(cells, COLUMNS) == count
        kept.take_back(part)
        assert kept.records == dict(kept.form.records(whole))
        lengths += map(len, kept.records.values())
    assert lengths == [72, 72, 24]


def test_what_was_not_written_for_these_windows_is_refused() -> None:
    form, other = WindowRecords(SPECS[0]), WindowRecords(SPECS[1])
    totals = form.totals(Windows(SPECS[0]))
    with pytest.raises(ValueError, match="totals"):
        other.windows(totals, {})
    with pytest.raises(ValueError, match="record"):
        form.windows(totals, {bytes(10): b"12345678"})


def test_records_are_forgotten_when_no_later_row_finds_anything_in_them() -> None:
    """As those in memory are, by the time of events: after the longest span and the slack."""
    spec = spec_of(
        "{name: w, key: [a], time: t, format: unix, spans: [1m], features: [count]}",
        "{name: v, key: [a], time: t, format: unix, spans: [1m], slack: 30s, features: [count]}",
    )
    form, windows = WindowRecords(spec), Windows(spec)

    def take_in(key: str, time: int) -> None:
        cells = cells_of_rows([{"a": key, "t": str(time)}], ["a", "t"], numbers=())
        windows.take_in(cells, ["a", "t"])

    def forgotten() -> list[int]:
        found = form.forgotten(form.totals(windows), records)
        return sorted(int.from_bytes(name[:2], "big") for name in found)

    take_in("old", 1_500_000_000)
    records = list(form.records(windows))
    assert len(records) == 2
    for time, gone in (
        (1_500_000_000, []),
        (1_500_000_060, []),
        (1_500_000_061, [0]),
        (1_500_000_090, [0]),
        (1_500_000_091, [0, 1]),
    ):
        take_in("new", time)
        assert forgotten() == gone


def test_what_differs_between_windows() -> None:
    one, other = (
        spec_of(f"{{name: w, key: [a], time: t, spans: [{span}], features: [count]}}")
        for span in ("1h", "1d")
    )
    assert difference(identity_of(one), identity_of(other)) == (
        "window 'w': spans is ['1h'] there and ['1d'] here"
    )
    assert difference(identity_of(SPECS[0]), identity_of(one)) == "there are 2 windows and here 1"
