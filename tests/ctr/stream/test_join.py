"""Rows and clicks, joined run after run: each row once, with the label that it has to have."""

from __future__ import annotations

import json
import os
import random
import resource
import sys
from pathlib import Path
from time import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctr.errors import DataError
from ctr.stream import JoinSettings, join
from ctr.stream.event_log import CLICKS, IMPRESSIONS, EventWriter, segments, time_of
from tests.command_line import Cli

WINDOW_S, GRACE_S = 100.0, 10.0


def id_at(second: float, writer: str = "aaaaaaaa", number: int = 0) -> str:
    return f"{round(second * 1e6):014x}-{writer}-{number:x}"


def write(log: Path, kind: str, name: str, events: list[dict[str, Any]]) -> None:
    (log / kind).mkdir(parents=True, exist_ok=True)
    with (log / kind / name).open("ab") as file:
        file.writelines(json.dumps(event).encode() + b"\n" for event in events)


def served(second: float, writer: str = "aaaaaaaa", number: int = 0) -> dict[str, Any]:
    event_id = id_at(second, writer, number)
    return {"id": event_id, "model": "m", "prediction": 0.5, "row": {"key": event_id}}


def segment(writer: str) -> str:
    return f"{0:014x}-{writer}.jsonl"


def rows_of(out: Path) -> list[dict[str, Any]]:
    return [
        json.loads(line)
        for path in sorted(out.glob("part-*.jsonl"))
        for line in path.read_text().splitlines()
    ]


def run(log: Path, out: Path, second: float, **options: Any) -> Any:
    settings = JoinSettings(WINDOW_S, grace_s=GRACE_S, **options)
    return join(log, out, settings, until=round(second * 1e6))


def test_clicks_within_the_window_count_once(tmp_path: Path) -> None:
    log, out = tmp_path / "log", tmp_path / "out"
    write(log, IMPRESSIONS, segment("aaaaaaaa"), [served(1000), served(1010), served(1020), served(1030)])
    clicks = [(1000, 1050), (1010, 1111), (1020, 1120), (1020, 1121), (1030, 900), (500, 560)]
    events = [{"id": id_at(row), "time": round(moment * 1e6)} for row, moment in clicks]
    write(log, CLICKS, segment("cccccccc"), [*events, {"id": id_at(1015), "time": round(1016 * 1e6)}])
    early = run(log, out, 1109)
    assert (early.rows, early.file, early.open_rows) == (0, None, 4)
    joined = run(log, out, 1500)
    assert joined.open_rows == 0
    assert [(row["key"], row["click"]) for row in rows_of(out)] == [
        (id_at(1000), 1),
        (id_at(1010), 0),
        (id_at(1020), 1),
    ]
    assert (joined.rows, joined.clicked) == (3, 2)
    assert joined.bad == {"clicked early": 1}
    total = {why: early.dropped[why] + joined.dropped[why] for why in joined.dropped}
    assert total == {"repeated": 0, "too late": 3, "unknown": 1}
    again = run(log, out, 2000)
    assert again.rows == 0
    assert sum(again.dropped.values()) == 0, "each is counted once"


def test_a_log_may_have_more_files_than_may_be_open(tmp_path: Path) -> None:
    log, limits = tmp_path / "log", resource.getrlimit(resource.RLIMIT_NOFILE)
    for number in range(100):  # each overlaps with the next
        writer = f"{number:08x}"
        rows = [served(1000 + number, writer), served(1001.5 + number, writer, 1)]
        write(log, IMPRESSIONS, segment(writer), rows)
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 20, limits[1]))
    try:
        assert run(log, tmp_path / "out", 2000).rows == 200
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    keys = [row["key"] for row in rows_of(tmp_path / "out")]
    assert keys == sorted(keys)


def test_a_row_that_comes_late_is_joined_all_the_same(tmp_path: Path) -> None:
    """As of a server whose clock or disk was behind."""
    log, out = tmp_path / "log", tmp_path / "out"
    write(log, IMPRESSIONS, segment("aaaaaaaa"), [served(1000), served(1500)])
    assert run(log, out, 1200).rows == 1
    write(log, IMPRESSIONS, segment("bbbbbbbb"), [served(900, "bbbbbbbb")])
    write(log, CLICKS, segment("cccccccc"), [{"id": id_at(900, "bbbbbbbb"), "time": round(950 * 1e6)}])
    joined = run(log, out, 1250)
    assert (joined.rows, joined.clicked, joined.late_rows) == (1, 1, 1)
    assert run(log, out, 1700).rows == 1
    assert len({row["key"] for row in rows_of(out)}) == 3


def test_a_click_may_be_as_early_as_the_grace(tmp_path: Path) -> None:
    log = tmp_path / "log"
    write(log, IMPRESSIONS, segment("aaaaaaaa"), [served(1000)])
    write(log, CLICKS, segment("cccccccc"), [{"id": id_at(1000), "time": 985_000_000}])
    for grace_s, clicked in ((14.0, 0), (16.0, 1)):
        settings = JoinSettings(WINDOW_S, grace_s=grace_s)
        joined = join(log, tmp_path / str(grace_s), settings, until=1_200_000_000)
        assert (joined.rows, joined.clicked) == (clicked, clicked)
        assert joined.bad["clicked early"] == 1 - clicked


@pytest.mark.parametrize(
    ("row_off_s", "click_off_s", "complaint"),
    [
        (0, 3_600, "40 of 40 clicks stored in clicks/.-cccccccc.jsonl came after the window"),
        (-3_600, 0, "40 of 40 clicks on the rows of impressions/.-bbbbbbbb.jsonl came after the window"),
        (3_600, 0, "40 of 80 clicks came before their rows.*clicks/.-dddddddd.jsonl and impressions/.-bbbb"),
        (0, -3_600, "40 of 80 clicks came before their rows.*clicks/.-cccccccc.jsonl and impressions/.-bbbb"),
    ],
)
def test_a_clock_an_hour_off_is_refused(
    tmp_path: Path, row_off_s: float, click_off_s: float, complaint: str
) -> None:
    """One of two servers of rows, and one of two that get clicks: half of the clicks on the others' rows."""
    log, out = tmp_path / "log", tmp_path / "out"
    for number in range(80):
        row, is_wrong = 10_000.0 + number, number % 2
        row_writer, click_writer = ("bbbbbbbb" if is_wrong else "aaaaaaaa"), "dddddddd"
        if click_off_s and is_wrong:
            click_writer = "cccccccc"
        moment = row + (row_off_s if is_wrong else 0.0)
        write(log, IMPRESSIONS, segment(row_writer), [served(moment, row_writer)])
        clicked_at = round((row + 5 + (click_off_s if is_wrong else 0.0)) * 1e6)
        write(log, CLICKS, segment(click_writer), [{"id": id_at(moment, row_writer), "time": clicked_at}])
    with pytest.raises(DataError, match=complaint.replace("/.-", r"/\*-")):
        run(log, out, 20_000)
    assert rows_of(out) == []


def test_a_row_with_a_click_from_the_future_is_left_out(tmp_path: Path, cli: Cli) -> None:
    log, row = tmp_path / "log", time() - 7_200
    write(log, IMPRESSIONS, segment("aaaaaaaa"), [served(row), served(row + 1)])
    write(log, CLICKS, segment("cccccccc"), [{"id": id_at(row), "time": round((time() + 3_600) * 1e6)}])
    ended = cli("join", log, "--out", tmp_path / "out")
    assert "joined 1 rows, 0 of them clicked" in ended.out
    assert "1 rows left out: clicked at a time that is still to come" in ended.out
    assert "too late" not in ended.out


def test_a_run_that_was_killed_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, out = tmp_path / "log", tmp_path / "out"
    write(log, IMPRESSIONS, segment("aaaaaaaa"), [served(1000), served(1300)])
    module = sys.modules["ctr.stream.join"]
    replace_file, calls = module.replace_file, 0

    def killed(at: int) -> Any:
        def replacing(path: Path, *words: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == at:
                raise KeyboardInterrupt
            return replace_file(path, *words)

        return replacing

    for at in (1, 2):
        calls = 0
        monkeypatch.setattr(module, "replace_file", killed(at))
        with pytest.raises(KeyboardInterrupt):
            run(log, out, 1200)
        assert rows_of(out) == [], "nothing counts that is not settled"
    monkeypatch.setattr(module, "replace_file", replace_file)
    show, shown = module._publish, 0

    def killed_before_it_publishs(*words: Any) -> None:
        nonlocal shown
        shown += 1
        if shown == 2:
            raise KeyboardInterrupt
        show(*words)

    monkeypatch.setattr(module, "_publish", killed_before_it_publishs)
    with pytest.raises(KeyboardInterrupt):
        run(log, out, 1200)
    monkeypatch.setattr(module, "_publish", show)
    assert run(log, out, 1210).rows == 0
    assert [row["key"] for row in rows_of(out)] == [id_at(1000)]


@pytest.mark.hypothesis
@given(seed=st.integers(0, 2**32), runs=st.lists(st.integers(0, 1_500), min_size=1, max_size=6))
def test_any_schedule_gives_what_one_look_at_everything_would(
    tmp_path_factory: pytest.TempPathFactory, seed: int, runs: list[int]
) -> None:
    """Writers append, clicks come whenever they do, and runs look at what is there at their moment."""
    folder, draw = tmp_path_factory.mktemp("join"), random.Random(seed)
    log, out = folder / "log", folder / "out"
    events: list[tuple[float, str, str, dict[str, Any]]] = []
    expected: dict[str, int] = {}
    for number in range(draw.randint(0, 40)):
        writer = draw.choice(["aaaaaaaa", "bbbbbbbb"])
        moment = draw.uniform(1_000, 2_000)
        event = served(moment, writer, number)
        events.append((moment, IMPRESSIONS, writer, event))
        expected[event["id"]] = 0
        for _ in range(draw.choice([0, 0, 1, 2])):
            clicked = moment + draw.uniform(0, 2 * WINDOW_S)
            arrives = clicked + draw.uniform(0, GRACE_S / 2)
            events.append((arrives, CLICKS, "cccccccc", {"id": event["id"], "time": round(clicked * 1e6)}))
            if clicked <= moment + WINDOW_S:
                expected[event["id"]] = 1
    events.sort(key=lambda each: each[0])
    (log / IMPRESSIONS).mkdir(parents=True)
    total = 0
    for moment in [*sorted(1_000 + each for each in runs), 3_000]:
        while events and events[0][0] <= moment:
            _, kind, writer, event = events.pop(0)
            write(log, kind, segment(writer), [event])
        total += run(log, out, moment).rows
    rows = rows_of(out)
    assert {row["key"]: row["click"] for row in rows} == expected
    assert len(rows) == total == len(expected)
    assert [row["key"] for row in rows] == sorted(expected), "in the order of time"


def test_what_is_wrong_is_named(tmp_path: Path, cli: Cli) -> None:
    log, out = tmp_path / "log", tmp_path / "out"
    with pytest.raises(DataError, match="there is no log of impressions; `ctr serve --feedback-log"):
        run(log, out, 1)
    assert not out.exists()
    write(log, IMPRESSIONS, segment("aaaaaaaa"), [served(1000)])
    with (log / IMPRESSIONS / segment("aaaaaaaa")).open("ab") as file:
        file.write(b'{"id": "0')  # which is being written
    assert run(log, out, 1200).rows == 1
    with pytest.raises(DataError, match="was joined with --label click --window 100s"):
        join(log, out, JoinSettings(window_s=5), until=1)
    others = [{"id": 5}, {"id": "5"}, {"id": id_at(1), "row": 5}, {"id": id_at(1), "time": "5"}, []]
    for line in (b"torn", *(json.dumps(each).encode() for each in others)):
        (log / IMPRESSIONS / segment("bbbbbbbb")).write_bytes(line + b"\n")
        with pytest.raises(DataError, match="byte 0: not an event of a log"):
            run(log, out, 1300)
    (log / CLICKS).mkdir()
    for kind, event in ((IMPRESSIONS, {"id": id_at(1), "model": "m"}), (CLICKS, {"id": id_at(1)})):
        (log / IMPRESSIONS / segment("bbbbbbbb")).write_bytes(b"")
        (log / kind / segment("bbbbbbbb")).write_text(json.dumps(event) + "\n")
        with pytest.raises(DataError, match=f"{kind}.*byte 0: not an event of a log"):
            run(log, out, 1300)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "precious").write_text("")
    with pytest.raises(DataError, match="holds something else than joined rows"):
        run(log, tmp_path / "other", 1300)
    (log / IMPRESSIONS / segment("bbbbbbbb")).unlink()
    for time_text, complaint in {"soon": "is not a time", "0s": "is too short: write a time above 0"}.items():
        ended = cli("join", log, "--out", out, "--window", time_text)
        assert ended.code == 2
        assert f"'{time_text}' {complaint}" in ended.err


def test_rows_that_were_just_served_wait(tmp_path: Path, cli: Cli) -> None:
    log = tmp_path / "log"
    write(log, IMPRESSIONS, segment("aaaaaaaa"), [served(1000), served(time())])
    ended = cli("join", log, "--out", tmp_path / "out")
    assert "joined 1 rows" in ended.out
    assert "1 rows wait until their window has ended" in ended.out


def test_a_row_that_has_the_label_already_is_left_out(tmp_path: Path, cli: Cli) -> None:
    """And the rows after it are joined."""
    log, out = tmp_path / "log", tmp_path / "out"
    labelled = {**served(1000), "row": {"click": 1}}
    write(log, IMPRESSIONS, segment("aaaaaaaa"), [labelled, served(1001)])
    ended = cli("join", log, "--out", out)
    assert "joined 1 rows, 0 of them clicked" in ended.out
    assert "1 rows left out: they have the label's column; give another name with --label" in ended.out
    assert [row["key"] for row in rows_of(out)] == [id_at(1001)]


def test_a_file_that_was_copied_adds_no_row(tmp_path: Path, cli: Cli) -> None:
    """Though numbers of rows, as text, do not ascend."""
    log, out = tmp_path / "log", tmp_path / "out"
    events = [served(1000, number=number) for number in (9, 15, 16)] + [served(1001)]
    for name in (segment("aaaaaaaa"), segment("bbbbbbbb")):
        write(log, IMPRESSIONS, name, events)
    write(log, CLICKS, segment("aaaaaaaa"), [{"id": id_at(1000, number=15), "time": 1_000_500_000}])
    ended = cli("join", log, "--out", out)
    assert "joined 4 rows, 1 of them clicked" in ended.out
    assert "4 rows left out: repeated" in ended.out
    expected = [(event["id"], int(event == events[1])) for event in events]
    assert sorted((row["key"], row["click"]) for row in rows_of(out)) == sorted(expected)


def test_writers_draw_ids_in_the_order_of_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if the clock is set back."""
    import ctr.stream.event_log as module

    clock = iter([5, 9, 9, 7, 3, 10])
    writer = EventWriter(tmp_path, IMPRESSIONS)
    monkeypatch.setattr(module, "now", lambda: next(clock))
    ids = [id_ for _ in range(3) for id_ in writer.write_new([{"row": {}}, {"row": {}}])]
    writer.close()
    assert ids == sorted(ids)
    assert len(set(ids)) == 6
    (only,) = segments(tmp_path, IMPRESSIONS)
    assert [event["id"] for event, _ in only.events()] == ids
    assert time_of("0-0-0") is None
