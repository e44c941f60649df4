"""Windows beside the plain reference, and that nothing is known too early."""

from __future__ import annotations

from bisect import bisect_right
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctr.errors import SpecError
from ctr.features import SKIP, Pipeline, RawSource
from ctr.features.spec import FeatureSpec, parse_spec
from ctr.features.text import RowStatus, cells_of_rows
from ctr.features.windows import Windows
from tests.reference.windows import PlainWindow, Row

pytestmark = pytest.mark.kernel

COLUMNS = ("y", "t", "a", "b")
START = 1_510_000_000


def spec_of(*windows: str) -> FeatureSpec:
    text = (
        "{version: 1, source: {format: delimited}, label: y, fields: [{name: a, type: category}], windows: ["
    )
    return parse_spec(text + ", ".join(windows) + "]}", "windows")


SPECS = [
    spec_of(
        """{name: w, key: [a], time: t, format: unix, spans: [32s, 10m], expire: 15m, delay: 7s, slack: 5s,
            features: [count, clicks, rate, since_last], strength: 2}""",
        "{name: v, key: [b, a], time: t, format: unix, spans: [1m], features: [count], slack: 5s}",
    ),
    spec_of(
        "{name: w, key: [b], time: t, format: unix, spans: [16s], features: [clicks], delay: 0s}",
        "{name: v, key: [b], time: t, format: unix, expire: 30s, features: [since_last]}",
        "{name: u, key: [a], time: t, format: unix, spans: [1m], features: [rate], delay: 60s, expire: 2m}",
    ),
    spec_of(
        """{name: w, key: [a], time: t, format: unix, spans: [1m], half_life: 48s, expire: 15m, delay: 7s,
            slack: 5s, features: [count, clicks, rate], strength: 2}""",
        "{name: v, key: [b], time: t, format: unix, half_life: 16s, features: [count, since_last]}",
    ),
]
STEPS = st.one_of(st.integers(-8, 12), st.sampled_from([0, 1, 40, 200, 700, 1_000, 86_400]))
ROWS = st.lists(
    st.tuples(
        st.sampled_from(["0", "0", "1", "1", "1", "x", ""]),
        STEPS,
        st.sampled_from(["p", "q", "r", ""]),
        st.sampled_from("st"),
    ),
    max_size=60,
)


def timed(rows: list[tuple[str, int, str, str]]) -> list[dict[str, str]]:
    """As JSON rows; a row's step is from the latest time before it on, and a step of 40 loses the time."""
    latest, found = START, []
    for y, step, a, b in rows:
        time = latest + step
        latest = max(latest, time)
        found.append({"y": y, "t": "" if step == 40 else str(time), "a": a, "b": b})
    return found


def of_plain(
    spec: FeatureSpec, plain: list[PlainWindow], row: dict[str, str], take_in: bool
) -> dict[str, int]:
    """What the reference says; `late` if the row is."""
    found: dict[str, int] = {}
    for window, each in zip(spec.windows, plain, strict=True):
        parts = [row[column] for column in window.key]
        seen = Row(
            key=tuple(parts) if all(parts) else None,
            time=int(row["t"]) * 1_000_000 if row["t"] else None,
            click=row["y"] == "1",
        )
        if take_in and row["y"] == "x":
            continue
        if take_in and each.is_late(seen):
            found["late"] = 1
            continue
        found |= each.features(seen)
        if take_in:
            each.take_in(seen)
    return found


def of_kernel(windows: Windows, rows: list[dict[str, str]], take_in: bool) -> list[dict[str, int]]:
    cells = cells_of_rows(rows, COLUMNS, numbers=())
    found = windows.buckets(cells, np.zeros(len(rows), np.uint8), COLUMNS, slice(None), take_in=take_in)
    fields = [field for window in windows.spec.windows for field in window.fields]
    seen = []
    for i in range(len(rows)):
        named = {f.name: int(w.buckets[i]) for f, w in zip(fields, found, strict=True) if w.present[i]}
        problems = {int(words.problem[i]) for words in found} - {0}
        assert problems <= {RowStatus.LATE}
        seen.append(named | ({"late": 1} if problems else {}))
    return seen


@settings(max_examples=150)
@given(st.sampled_from(SPECS), ROWS, st.integers(1, 20), ROWS)
def test_features_are_as_the_reference_says(spec, rows, block, others) -> None:  # type: ignore[no-untyped-def]
    plain, windows = [PlainWindow(window) for window in spec.windows], Windows(spec)
    given_, asked = timed(rows), timed(others)
    for first in range(0, len(given_), block):
        part = given_[first : first + block]
        expected = [of_plain(spec, plain, row, take_in=True) for row in part]
        assert of_kernel(windows, part, take_in=True) == expected
        for row in asked[:block]:  # what is only looked at leaves no trace
            if row["t"] and all(p.latest is None or int(row["t"]) * 10**6 >= p.latest for p in plain):
                assert of_kernel(windows, [row], False) == [of_plain(spec, plain, row, take_in=False)]
        kept = [table.arrays() for table in windows.tables]
        windows = Windows(spec)  # and what goes on from its arrays goes on as it would have
        for table, arrays in zip(windows.tables, kept, strict=True):
            table.restore(arrays)
            again = table.arrays()
            assert again.keys() == arrays.keys()
            assert all(np.array_equal(again[name], arrays[name]) for name in arrays)


@settings(max_examples=60)
@given(st.sampled_from(SPECS), ROWS, st.data())
def test_no_row_sees_its_own_label_or_one_that_is_not_known_yet(spec, rows, data) -> None:  # type: ignore[no-untyped-def]
    """Other labels, and other rows behind, change nothing before they are known."""
    given_ = [row for row in timed(rows) if row["y"] in {"0", "1"}]
    if not given_:
        return
    at = data.draw(st.integers(0, len(given_) - 1))
    flipped = [dict(row, y=str(1 - int(row["y"]))) if i >= at else row for i, row in enumerate(given_)]
    before, after = (of_kernel(Windows(spec), some, take_in=True) for some in (given_, flipped))
    assert after[: at + 1] == before[: at + 1]
    delays = [int((window.delay or "0s")[:-1]) for window in spec.windows if window.with_clicks]
    if given_[at]["t"] and all(row["t"] for row in given_):
        known = min(int(row["t"]) for row in given_[at:]) + min(delays)
        for row, one, other in zip(given_[at:], before[at:], after[at:], strict=True):
            assert one == other or int(row["t"]) >= known


def test_many_rows_of_one_key_outgrow_bytes() -> None:
    spec = SPECS[0]
    rows = [{"y": "1", "t": str(START + i // 300), "a": "p", "b": "s"} for i in range(1_200)]
    rows.append({"y": "0", "t": str(START + 60), "a": "p", "b": "s"})
    windows, plain = Windows(spec), [PlainWindow(window) for window in spec.windows]
    found = of_kernel(windows, rows, take_in=True)
    for row in rows[:-1]:
        for window, each in zip(spec.windows, plain, strict=True):
            each.take_in(Row(tuple(row[c] for c in window.key), int(row["t"]) * 10**6, True))
    assert found[-1] == of_plain(spec, plain, rows[-1], take_in=False)
    assert all(table.arrays()["wide.keys"].size == 2 for table in windows.tables)  # with that of all keys


@pytest.mark.large
def test_expired_keys_leave() -> None:
    """A key per second: no more are kept than there are in the time until they expire."""
    windows = Windows(SPECS[1])
    for first in range(0, 200_000, 20_000):
        rows = [
            {"y": "0", "t": str(START + i), "a": f"a{i}", "b": f"b{i}"} for i in range(first, first + 20_000)
        ]
        of_cells(windows, rows)
    sizes = [table.arrays()["narrow.keys"].size for table in windows.tables]
    assert sizes == [17, 31, 121]
    assert windows.bytes < 20 << 20


def of_cells(windows: Windows, rows: list[dict[str, str]]) -> None:
    cells = cells_of_rows(rows, COLUMNS, numbers=())
    windows.buckets(cells, np.zeros(len(rows), np.uint8), COLUMNS, slice(None), take_in=True)


def test_a_row_without_label_counts_but_is_no_click_and_no_example(tmp_path: Path) -> None:
    spec = spec_of(
        "{name: w, key: [a], time: t, spans: [1h], features: [count, clicks, rate], delay: 0s, strength: 1}"
    )
    log = tmp_path / "log.csv"
    times = ["2017-11-06 00:00:00", "2017-11-06T01:00:01+01:00", "2017-11-06T00:00:02Z", "2017-11-06 00:50"]
    labels = ["1", "", "yes", "0"]
    log.write_text("".join(["y,t,a\n", *(f"{y},{t},p\n" for y, t in zip(labels, times, strict=True))]))
    windows = Windows(spec)
    rows = sum(map(len, RawSource(spec, [log], on_bad_rows=SKIP, windows=windows).batches(10)))
    assert rows == 2
    (asked,) = of_kernel(windows, [{"y": "", "t": "2017-11-06 00:50:00", "a": "p"}], take_in=False)
    assert asked == {
        "w.count.1h": 3,
        "w.clicks.1h": 1,
        "w.rate.1h": bisect_right(spec.windows[0].rate_edges, 0.5),
    }


def test_rows_without_key_or_time_have_no_features_and_texts_that_are_no_times_are_bad() -> None:
    spec = spec_of("{name: w, key: [a, b], time: t, spans: [1h], features: [count]}")
    times = ["2017-11-06", "2017-11-06 00:00:01", "2017-11-06T02:00+01:59", "2017-11-06 00:01:02.5Z"]
    rows = [{"y": "1", "t": t, "a": "p", "b": "q"} for t in times]
    rows += [{"y": "1", "t": times[-1], "a": "p", "b": ""}, {"y": "1", "t": "", "a": "p", "b": "q"}]
    rows += [
        {"y": "1", "t": t, "a": "p", "b": "q"}
        for t in ("2017-02-29", "6.11.2017", "1510000000", "2017-11-06 7")
    ]
    cells = cells_of_rows(rows, COLUMNS, numbers=())
    (found,) = Windows(spec).buckets(cells, np.zeros(len(rows), np.uint8), COLUMNS, slice(None), take_in=True)
    assert found.buckets[:4].tolist() == [0, 1, 2, 3]
    assert found.present.tolist() == [True] * 4 + [False] * 6
    assert found.problem.tolist() == [0] * 6 + [RowStatus.TIME] * 4


def test_times_have_the_formats_that_fields_of_times_have() -> None:
    by_format = {
        "%d.%m.%Y %H:%M": ["6.11.2017 7:30", "06.11.2017 08:29"],
        "unix_ms": ["1509953400000", "1509956940000"],
    }
    for time_format, times in by_format.items():
        spec = spec_of(
            f"{{name: w, key: [a], time: t, format: '{time_format}', spans: [1h], features: [count]}}"
        )
        rows = [{"y": "1", "t": t, "a": "p"} for t in times]
        cells = cells_of_rows(rows, COLUMNS, numbers=())
        (found,) = Windows(spec).buckets(cells, np.zeros(2, np.uint8), COLUMNS, slice(None), take_in=True)
        assert found.buckets.tolist() == [0, 1]
        assert not found.problem.any()


@pytest.mark.parametrize(
    ("window", "problem"),
    [
        ("spans: [1d], expire: 1h, features: [count]", r"spans\[0\]: 1d is longer than `expire`, 1h"),
        ("spans: [1 d], features: [count]", r"spans\[0\]: expected a whole number and its unit .*got '1 d'"),
        ("features: [count]", "`spans` is missing"),
        ("features: [since_last]", "`expire` is missing"),
        ("spans: [1h], features: [clicks]", "`delay` is missing: say after how long a click is known"),
        ("spans: [1h], features: [count], delay: 1m", "delay: it is for clicks and rate alone"),
        ("half_life: 1d, expire: 1h, features: [count]", r"half_life: 1d is longer than `expire`, 1h"),
        ("half_life: 1m, features: [since_last]", r"half_life: since_last has no span"),
        ("half_life: 1h, features: [rate], delay: 1d", r"half_life: 1h is shorter than `delay` and `slack`"),
        ("spans: [1h], features: [rate], delay: 1d", r"spans\[0\]: 1h is shorter than `delay` and `slack`"),
        (
            "spans: [1h], features: [sum]",
            r"features\[0\]: expected 'count', 'clicks', 'rate' or 'since_last'",
        ),
        ("spans: [1h], features: []", r"features: expected a list of one or more, got \[\]"),
        ("spans: [1h], features: [count], strength: 0", "strength: must be above 0, got 0"),
        ("spans: [1h], features: [count], format: '%H:%M'", r"format: '%H:%M' tells no day"),
        ("spans: [1h], features: [count], format: '%q'", r"format: in '%q' there is no directive '%q'"),
        ("spans: [1h], features: [count], every: 1", "every: there is no such key; remove it"),
    ],
)
def test_what_does_not_fit_in_a_window_is_named(window: str, problem: str) -> None:
    with pytest.raises(SpecError, match=rf"windows:1: windows\[0\]\.?.*{problem}"):
        spec_of(f"{{name: w, key: [a], time: t, {window}}}")


def test_columns_and_names_of_windows_are_checked() -> None:
    with pytest.raises(SpecError, match=r"windows\[0\]\.key\[1\]: column 'y' is the label"):
        spec_of("{name: w, key: [a, y], time: t, spans: [1h], features: [count]}")
    text = """{version: 1, source: {format: delimited, header: false, columns: [y, a]}, label: y,
        fields: [{name: a, type: category}],
        windows: [{name: w, key: [a], time: t, spans: [1h], features: [count]}]}"""
    with pytest.raises(SpecError, match=r"windows\[0\]\.time: there is no column 't' in source.columns"):
        parse_spec(text, "w")
    crossed = parse_spec(text.replace("[y, a]", "[y, a, t]")[:-1] + ", crosses: [a * w.count.1h]}", "w")
    assert crossed.crosses[0].of == ("a", "w.count.1h")
    with pytest.raises(SpecError, match="window 'w': a pipeline keeps no rows to look back at"):
        Pipeline(crossed)
    plain = crossed.model_copy(update={"windows": (), "crosses": ()})
    assert "windows" not in plain.decisive()
    assert parse_spec(crossed.to_yaml(), "again") == crossed
