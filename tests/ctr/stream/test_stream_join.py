"""Rows and clicks of a stream in Redis, joined to a stream of examples: each row once, whatever is killed."""

from __future__ import annotations

import json
import random
import signal
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from itertools import count
from pathlib import Path
from threading import Event
from time import monotonic, sleep, time
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from ctr.cli.joining import progress_lines
from ctr.errors import DataError, StoreError
from ctr.ps import parse_redis_url
from ctr.stream import (
    LANES,
    ExampleStream,
    Gap,
    JoinSettings,
    StreamJoinResult,
    join_stream,
    now,
    open_writers,
)
from ctr.stream.event_log import CLICKS, IMPRESSIONS
from ctr.stream.example_stream import _UNTRAINED
from tests.command_line import Cli
from tests.ctr.distributed_jobs import Command
from tests.ctr.stream.test_join import id_at, segment, served, write
from tests.ps.redis_servers import StartRedis, eventually, needs_faketime, needs_redis, timing_sensitive
from tests.ps.stepped_clock import SteppedClock

pytestmark = needs_redis

WINDOW_S, GRACE_S = 100.0, 10.0
SETTINGS = JoinSettings(WINDOW_S, late="wait", grace_s=GRACE_S)
LATE: tuple[Literal["wait", "importance"], ...] = ("wait", "importance")

_numbers = count()


def rows_of(stream: ExampleStream) -> list[dict[str, Any]]:
    """All rows, in the order of their chunks."""
    rows: list[dict[str, Any]] = []
    for number in range(stream.last()[0]):
        lane = number % LANES
        chunk = stream.read({lane: number // LANES})[lane]
        lines = chunk.rows.splitlines()
        assert len(lines) == chunk.count
        rows += [json.loads(line) for line in lines]
    return rows


class Streams:
    """A stream of events that a test fills, and one of examples."""

    def __init__(self, url: str) -> None:
        name = f"join-{next(_numbers)}"
        self.events, self.out = f"{url}?stream={name}", f"{url}?stream={name}"
        self._name = name
        parsed = parse_redis_url(url)
        self.client = parsed.client(parsed.hosts[0], 10.0)

    def close(self) -> None:
        self.client.close()

    def key(self, kind: str) -> str:
        return f"ctr:{{events:{self._name}}}:{kind}"

    def add(self, kind: str, second: float, *events: Any, number: int = 0) -> None:
        """An entry that arrived then."""
        lines = b"\n".join(json.dumps(event).encode() for event in events)
        self.client.xadd(self.key(kind), {"events": lines}, id=f"{round(second * 1e3)}-{number + 1}")

    def rows(self) -> list[dict[str, Any]]:
        with closing(ExampleStream(self.out)) as stream:
            return rows_of(stream)

    def join(self, second: float, settings: JoinSettings = SETTINGS, **options: Any) -> StreamJoinResult:
        return join_stream(
            self.events, self.out, settings, follow=False, until_ms=round(second * 1e3), **options
        )


@pytest.fixture
def streams(redis_url: str) -> Iterator[Streams]:
    with closing(Streams(redis_url)) as streams:
        yield streams


def click(row: float, second: float, writer: str = "aaaaaaaa", number: int = 0) -> dict[str, Any]:
    return {"id": id_at(row, writer, number), "time": round(second * 1e6)}


def labels(rows: list[dict[str, Any]]) -> list[tuple[str, int]]:
    return [(row["key"], row["click"]) for row in rows]


def test_rows_wait_for_their_window(streams: Streams) -> None:
    streams.add(IMPRESSIONS, 1000, served(1000), served(1000, number=1))
    streams.add(IMPRESSIONS, 1020, served(1020))
    streams.add(CLICKS, 1050, click(1000, 1050))
    assert streams.join(1109).rows == 0
    joined = streams.join(1115)
    assert labels(streams.rows()) == [(id_at(1000), 1), (id_at(1000, number=1), 0)]
    assert (joined.rows, joined.clicked, joined.open_rows) == (2, 1, 3)
    assert streams.join(1200).rows == 3
    assert labels(streams.rows())[2:] == [(id_at(1020), 0)]


def test_rows_are_written_at_once_and_again_when_they_are_clicked(streams: Streams) -> None:
    settings = replace(SETTINGS, late="importance")
    streams.add(IMPRESSIONS, 1000, served(1000), served(1000, number=1))
    assert streams.join(1001, settings).rows == 2
    streams.add(CLICKS, 1050, click(1000, 1050))
    joined = streams.join(1051, settings)
    unclicked = [(id_at(1000), 0), (id_at(1000, number=1), 0)]
    assert labels(streams.rows()) == [*unclicked, (id_at(1000), 1)]
    assert (joined.rows, joined.clicked, joined.chunks) == (2, 1, 2)
    with closing(ExampleStream(streams.out)) as out:
        assert out.read({0: 0})[0].is_weighted


@pytest.mark.parametrize("late", LATE)
def test_what_tells_nothing_is_counted(streams: Streams, late: Literal["wait", "importance"]) -> None:
    settings = replace(SETTINGS, late=late)
    other = {**served(1003), "row": {"click": 1}}
    streams.add(IMPRESSIONS, 1000, served(1000), served(1001), other)
    streams.add(IMPRESSIONS, 1005, served(1000), served(5000), "torn", {"id": id_at(1), "time": 1})
    streams.client.xadd(streams.key(IMPRESSIONS), {"other": b"x"}, id="1006000-0")
    wrong = [{"id": "x", "time": 1}, {"id": id_at(1000)}]
    streams.add(CLICKS, 1006, *wrong, click(1004, 1006))
    streams.add(CLICKS, 1050, click(1000, 1050), click(1000, 1051))
    streams.add(CLICKS, 1109, click(1001, 1102))
    streams.add(CLICKS, 1112, click(1001, 1102))
    joined = streams.join(2000, settings)
    assert joined.dropped == {"too late": 2, "unknown": 1, "repeated": 1}
    assert joined.bad == {"no event": 5, "repeated": 1, "label's column": 1, "clock": 1}
    assert (joined.rows, joined.clicked) == (3, 1)


@pytest.mark.parametrize("late", LATE)
@pytest.mark.parametrize("row_off_s", [-300, -15, 0, 15, 300])
@pytest.mark.parametrize("click_off_s", [-300, -8, 0, 8, 300])
def test_clocks_of_servers_that_are_wrong_mislabel_no_row(
    streams: Streams, late: Literal["wait", "importance"], row_off_s: float, click_off_s: float
) -> None:
    settings, claimed = replace(SETTINGS, late=late), 1000 + row_off_s
    streams.add(IMPRESSIONS, 1000, served(claimed), served(claimed, number=1), served(claimed, number=2))
    streams.add(CLICKS, 1060, click(claimed, 1060 + click_off_s))
    streams.add(CLICKS, 1130, click(claimed, 1130 + click_off_s, number=1))
    joined = streams.join(2000, settings)
    assert (joined.rows, joined.clicked) == (3, 1)
    assert joined.dropped.total() == 1
    assert (id_at(claimed), 1) in labels(streams.rows())
    assert joined.bad["clock"] == 3 * (abs(row_off_s) > GRACE_S)


def test_rows_that_are_joined_by_arrival_are_not_left_out(streams: Streams, cli: Cli) -> None:
    streams.add(IMPRESSIONS, 1000, served(5000), {"id": "x"})
    ended = cli("join", streams.events, "--out", streams.out)
    assert "joined 1 rows, 0 of them clicked" in ended.out
    assert "; 1 events left out" in ended.out
    assert "1 rows arrived late, or from servers with another clock than Redis" in ended.out


def test_a_joiner_that_follows_names_what_it_leaves_out_when_that_changes(streams: Streams) -> None:
    streams.add(IMPRESSIONS, 1000, served(5000), {"id": "x"})
    streams.add(CLICKS, 1000, click(900, 1000))
    joined, printed = streams.join(1200), set[str]()
    totals, *reasons = progress_lines(joined, printed)
    assert totals.startswith("joined 1 rows")
    assert [line.partition(" ")[2][:18] for line in reasons] == [
        "clicks left out: u",
        "rows arrived late,",
        "lines left out: no",
    ]
    assert progress_lines(joined, printed) == [totals]
    joined.bad["clock"] += 1
    assert [line[:6] for line in progress_lines(joined, printed)] == ["joined", "2 rows"]


def test_a_stream_that_was_never_written_is_refused(streams: Streams, cli: Cli) -> None:
    ended = cli("join", streams.events, "--out", streams.out)
    assert ended.code == 1
    assert "nothing was ever written to this stream; correct ?stream=NAME" in ended.err


def test_a_joiner_that_follows_says_that_it_waits_for_the_first_events(streams: Streams) -> None:
    stop, waited = Event(), 0

    def on_empty() -> None:
        nonlocal waited
        waited += 1
        streams.add(IMPRESSIONS, time(), served(time()))

    settings = replace(SETTINGS, late="importance", chunk_s=0.1)
    seen: list[int] = []

    def on_progress(joined: StreamJoinResult) -> None:
        seen.append(joined.rows)
        if joined.chunks:
            stop.set()

    options = {"stop": stop, "on_progress": on_progress, "progress_s": 0.05, "on_empty": on_empty}
    joined = join_stream(streams.events, streams.out, settings, follow=True, **options)
    assert (waited, joined.rows) == (1, 1)


def test_the_summary_for_programs_has_all_counts(streams: Streams, tmp_path: Path, cli: Cli) -> None:
    labelled = {**served(1000), "row": {"click": 1}}
    streams.add(IMPRESSIONS, 1000, labelled)
    streams.add(CLICKS, 1001, click(1000, 1001))
    write(tmp_path / "log", IMPRESSIONS, segment("aaaaaaaa"), [labelled])
    for log, out in ((streams.events, streams.out), (tmp_path / "log", tmp_path / "out")):
        ended = cli("join", log, "--out", out, "--json", "-")
        summary = json.loads(ended.out)
        assert (ended.code, summary["rows"], summary["bad"]) == (0, 0, {"label's column": 1})
        assert summary["dropped"]["unknown"] == (log == streams.events)


def reference(entries: list[tuple[float, str, list[Any]]]) -> tuple[dict[str, int], Counter[str]]:
    """The label of each row, and why clicks are left out, of entries in the order of arrival."""
    rows: dict[str, float] = {}
    clicked: dict[str, int] = {}
    dropped: Counter[str] = Counter()
    for arrived, kind, events in entries:
        if kind == IMPRESSIONS:
            rows.update((event["id"], arrived) for event in events if event["id"] not in rows)
    for arrived, kind, events in entries:
        for event in events if kind == CLICKS else []:
            event_id, clicked_s = event["id"], event["time"] / 1e6
            if abs(clicked_s - arrived) > GRACE_S:
                clicked_s = arrived
            came = arrived - rows[event_id]
            if came < -GRACE_S:
                dropped["unknown"] += 1
            elif came > WINDOW_S + GRACE_S or clicked_s - int(event_id[:14], 16) / 1e6 > WINDOW_S:
                dropped["too late"] += 1
            elif event_id in clicked:
                dropped["repeated"] += 1
            else:
                clicked[event_id] = 1
    return dict.fromkeys(rows, 0) | clicked, dropped


class KilledError(Exception):
    """A joiner that ends in the middle."""


def kill(_: StreamJoinResult) -> None:
    raise KilledError


@pytest.mark.hypothesis
@pytest.mark.parametrize("late", LATE)
@examples(max_examples=40)
@given(
    seed=st.integers(0, 2**32),
    runs=st.lists(st.tuples(st.integers(0, 1_500), st.booleans()), max_size=6),
    chunk_rows=st.integers(1, 20),
)
def test_any_schedule_gives_what_one_look_at_everything_would(
    shared_redis: Any,
    late: Literal["wait", "importance"],
    seed: int,
    runs: list[tuple[int, bool]],
    chunk_rows: int,
) -> None:
    """Runs look at what is there at their moment, and some are killed after they have read it."""
    draw = random.Random(seed)
    entries: list[tuple[float, str, list[Any]]] = []
    for number in range(draw.randint(0, draw.choice([20, 40, 600]))):  # more than are read at once
        moment = round(draw.uniform(1_000, 2_000), 3)
        arrives = round(moment + draw.uniform(0, GRACE_S / 2), 3)
        rows = [served(moment, "aaaaaaaa", 10 * number + k) for k in range(draw.randint(1, 3))]
        entries.append((arrives, IMPRESSIONS, rows))
        if draw.random() < 0.1:
            entries.append((round(arrives + draw.uniform(0, GRACE_S), 3), IMPRESSIONS, rows))
        for row in rows:
            for _ in range(draw.choice([0, 0, 1, 2])):
                after = draw.uniform(-2 * GRACE_S, 1.5 * WINDOW_S)
                came = max(moment + after + draw.uniform(-GRACE_S, 2 * GRACE_S), moment - 2 * GRACE_S)
                event = {"id": row["id"], "time": round((moment + after) * 1e6)}
                entries.append((round(came, 3), CLICKS, [event]))
    entries.sort(key=lambda each: each[:2])
    expected, dropped = reference(entries)
    settings = replace(SETTINGS, late=late, chunk_rows=chunk_rows)
    with closing(Streams(shared_redis.url)) as streams:
        for number, (arrived, kind, events) in enumerate(entries):
            streams.add(kind, arrived, *events, number=number)
        for moment, is_killed in sorted(runs):
            if is_killed:
                with pytest.raises(KilledError):
                    streams.join(1_000 + moment, settings, on_progress=kill, progress_s=-1)
            else:
                streams.join(1_000 + moment, settings)
        joined = streams.join(3_000, settings)
        rows = labels(streams.rows())
    assert joined.dropped == dropped
    unclicked = Counter((key, 0) for key, label in expected.items() if late == "importance" or not label)
    assert Counter(rows) == unclicked + Counter(item for item in expected.items() if item[1])
    assert (joined.rows, joined.clicked) == (len(expected), sum(expected.values()))
    assert joined.open_rows == 0


@pytest.mark.parametrize("late", LATE)
def test_trimmed_events_are_named_by_their_time(
    streams: Streams, late: Literal["wait", "importance"]
) -> None:
    settings, gaps = replace(SETTINGS, late=late), list[Gap]()
    for second in (1000, 1200, 1400, 1600):
        streams.add(IMPRESSIONS, second, served(second))
    assert streams.join(1500, settings, on_gap=gaps.append).rows == 2 + (late == "importance")
    assert not gaps
    streams.client.xtrim(streams.key(IMPRESSIONS), minid=1_500_000, approximate=False)
    joined = streams.join(2000, settings, on_gap=gaps.append)
    # From the first row for which a click might have come.
    assert gaps == [Gap(IMPRESSIONS, 1_400_000, 1_600_000)]
    assert joined.rows == 3 + (late == "importance")
    assert labels(streams.rows())[-1] == (id_at(1600), 0)


def test_what_is_wrong_is_refused(streams: Streams, cli: Cli) -> None:
    streams.add(IMPRESSIONS, 1000, served(1000))
    streams.client.set(streams.key("kept"), "139")
    with pytest.raises(DataError, match=r"keeps events for 139 s.*needs 140 s; .*--feedback-keep"):
        streams.join(1200)
    streams.client.set(streams.key("kept"), "140")
    assert streams.join(1200).rows == 1
    with pytest.raises(
        DataError,
        match=r"\?stream=join-\d+: was joined from the stream .* --label click --window 100s --grace 10s",
    ):
        streams.join(1200, replace(SETTINGS, window_s=90))
    with closing(ExampleStream(streams.out)) as out:
        out.append(1, [b"{}"], {"of": "others"})
    with pytest.raises(DataError, match="its last chunk was not written by `ctr join`"):
        streams.join(1200)
    mixed = cli("join", streams.events, "--out", "folder")
    assert (mixed.code, "a stream to a stream" in mixed.err) == (2, True)
    model = streams.out.replace("?stream=", "?model=")
    for words in ([model, "--out", streams.out], [streams.events, "--out", model]):
        ended = cli("join", *words)
        assert (ended.code, "names a model, and not a stream" in ended.err) == (2, True)
    for words in (["--follow"], ["--late", "wait"], ["--chunk", 5], ["--chunk-time", "1s"]):
        ended = cli("join", "log", "--out", "folder", *words)
        assert (ended.code, "is for streams" in ended.err) == (2, True)


def test_a_redis_that_deletes_rows_is_refused(streams: Streams, start_redis: StartRedis) -> None:
    deleting = f"{start_redis(config={'maxmemory-policy': 'allkeys-lru'}).url}?stream=any"
    for events, out in ((deleting, streams.out), (streams.events, deleting)):
        with pytest.raises(StoreError, match=r"allkeys-lru.*set maxmemory-policy to noeviction"):
            join_stream(events, out, SETTINGS, follow=False)


def test_of_two_joiners_one_ends(streams: Streams) -> None:
    """Nothing is there twice."""
    streams.add(IMPRESSIONS, 1000, served(1000))

    def join_too(_: StreamJoinResult) -> None:
        assert streams.join(1200).rows == 1

    with pytest.raises(StoreError, match="do two processes write to one stream"):
        streams.join(1200, on_progress=join_too, progress_s=-1)
    assert labels(streams.rows()) == [(id_at(1000), 0)]


def test_a_joiner_waits_for_training(streams: Streams) -> None:
    """One that is stopped then goes on later."""
    most, entries = _UNTRAINED * LANES, _UNTRAINED * LANES + 4
    with streams.client.pipeline() as pipeline:
        for number in range(entries):
            lines = json.dumps(served(1000, number=number))
            pipeline.xadd(streams.key(IMPRESSIONS), {"events": lines}, id=f"1000000-{number + 1}")
        pipeline.execute()
    stop, settings = Event(), replace(SETTINGS, chunk_rows=1)

    def on_progress(joined: StreamJoinResult) -> None:
        if joined.is_waiting:
            stop.set()

    joined = streams.join(1200, settings, stop=stop, on_progress=on_progress, progress_s=-1)
    assert (joined.rows, joined.chunks) == (most, most)
    with closing(ExampleStream(streams.out)) as out:
        for lane in range(LANES):
            out.trained(lane, _UNTRAINED)
        joined = streams.join(1200, settings)
        assert (joined.rows, joined.chunks, out.last()[0]) == (entries, entries, entries)


@timing_sensitive
@needs_faketime
@pytest.mark.parametrize("step_s", [-3_600, 3_600])
@pytest.mark.parametrize("late", LATE)
def test_the_clock_of_redis_is_stepped(
    start_redis: StartRedis, stepped_clock: SteppedClock, late: Literal["wait", "importance"], step_s: int
) -> None:
    """For a while, in which rows and clicks arrive: each counts once, with its click."""
    with closing(Streams(start_redis(clock=stepped_clock).url)) as streams:
        settings = replace(SETTINGS, late=late, window_s=3.0, grace_s=0.5)
        impressions, clicks = open_writers(streams.events, kept_s=7_200)
        ids = list[str]()
        for step in (0, step_s, 0):
            stepped_clock.step(step)
            new = impressions.write_new([{"row": {"n": n}} for n in range(10)])
            eventually(lambda last=new[-1]: last.encode() in last_entry(streams, IMPRESSIONS))
            clicks.write([{"id": each, "time": now()} for each in new[::2]])
            ids += new
            join_stream(streams.events, streams.out, settings, follow=False)
        for writer in (impressions, clicks):
            writer.close()
        stepped_clock.step(max(step_s, 0) + 10)
        join_stream(streams.events, streams.out, settings, follow=False)
        rows = Counter(row["click"] for row in streams.rows())
    assert len(ids) == 30
    assert rows == {1: 15, 0: 30 if late == "importance" else 15}


def last_entry(streams: Streams, kind: str) -> bytes:
    entries: Any = streams.client.xrevrange(streams.key(kind), count=1)
    return bytes(entries[0][1][b"events"]) if entries else b""


@timing_sensitive
def test_a_joiner_that_is_killed_goes_on(redis_url: str) -> None:
    """With -9, while servers write: each row is there once, and once more if it was clicked."""
    name = f"killed-{next(_numbers)}"
    events, out = f"{redis_url}?stream={name}", f"{redis_url}?stream={name}"
    words = ("join", events, "--out", out, "--follow", "--window", "2s", "--grace", "1s", "--chunk", "50")
    impressions, clicks = open_writers(events, kept_s=600)
    draw, ids, clicked = random.Random(1), list[str](), set[str]()
    waits: deque[str] = deque()

    def serve(until: float) -> None:
        while monotonic() < until:
            new = impressions.write_new([{"row": {"n": len(ids) + k}} for k in range(draw.randint(1, 5))])
            ids.extend(new)
            waits.extend(new)
            while len(waits) > 40:
                if (event_id := waits.popleft()) and draw.random() < 0.3:
                    clicked.add(event_id)
                    clicks.write([{"id": event_id, "time": now()}])
            sleep(0.002)

    joiner = Command(*words)
    try:
        for _ in range(5):
            serve(monotonic() + 0.7)
            joiner.kill()
            serve(monotonic() + 0.2)
            joiner = Command(*words)
        serve(monotonic() + 0.5)
        impressions.close()
        clicks.close()
        with closing(ExampleStream(out)) as stream:
            eventually(lambda: sum(1 for _ in rows_of(stream)) == len(ids) + len(clicked))
            rows = rows_of(stream)
            assert stream.last()[0] > 5
        joiner.popen.send_signal(signal.SIGTERM)
        code, _ = joiner.end()
    finally:
        joiner.kill()
    assert code == 0
    assert f"joined {len(ids):,} rows, {len(clicked):,} of them clicked" in joiner.out
    numbers = {event_id: number for number, event_id in enumerate(ids)}
    assert Counter((row["n"], row["click"]) for row in rows) == Counter(
        [(number, 0) for number in range(len(ids))] + [(numbers[event_id], 1) for event_id in clicked]
    )
