"""How workers choose data shards, and claim them from the queue."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from contextlib import closing
from itertools import count, pairwise
from threading import Event, Thread
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ctr.errors import StoreError
from ctr.ps.board import leases
from ctr.ps.board.job_board import JobBoard
from ctr.ps.board.job_record import JobGoneError, JobRecord
from ctr.ps.board.leases import Leases
from ctr.ps.board.shard_queue import Affinity, ShardQueue, choose_shard
from ctr.ps.board.view import Claim
from ctr.ps.wire.url import parse_redis_url
from tests.ps.cut_lines import cut_line
from tests.ps.job_boards import LONG_S, SHORT_S, Boards, at_once, opened_boards, until
from tests.ps.redis_servers import needs_redis

LIVE = (b"a", b"b")


def test_the_next_of_the_queue() -> None:
    assert choose_shard(b"a", {}, LIVE, started=0, shards=3) == 0
    assert choose_shard(b"a", {1: b"b"}, LIVE, started=2, shards=3) == 2


def test_what_is_free_comes_first_the_lowest_of_it() -> None:
    owners = {0: b"b", 4: b"dead", 7: b"", 9: b"dead"}
    assert choose_shard(b"a", owners, LIVE, started=10, shards=20) == 4


def test_its_own_comes_before_that() -> None:
    assert choose_shard(b"a", {3: b"dead", 5: b"a"}, LIVE, started=6, shards=9) == 5


def test_of_its_own_those_that_it_has_never_heard_of() -> None:
    owners = {3: b"a", 5: b"a"}
    assert choose_shard(b"a", owners, LIVE, started=6, shards=9, claimed=[3]) == 5
    assert choose_shard(b"a", owners, LIVE, started=6, shards=9, claimed=[5, 3]) == 6
    assert choose_shard(b"a", owners, LIVE, started=9, shards=9, claimed=[5], ahead=True) == 3


def test_ahead_it_leaves_one_for_each_of_the_others() -> None:
    owners = {4: b"b", 5: b"dead", 7: b"a"}
    assert choose_shard(b"a", owners, LIVE, started=8, shards=9, claimed=[7], ahead=True) == 5
    assert choose_shard(b"a", owners, LIVE, started=8, shards=8, claimed=[7], ahead=True) is None
    assert choose_shard(b"a", owners, LIVE, started=8, shards=8, claimed=[7]) == 5
    assert choose_shard(b"a", {0: b"a"}, [b"a"], started=1, shards=2, claimed=[0], ahead=True) == 1, "alone"


def test_none_is_left() -> None:
    assert choose_shard(b"a", {}, LIVE, started=3, shards=3) is None
    assert choose_shard(b"a", {2: b"b"}, LIVE, started=3, shards=3) is None


def in_parts(shards_in_part: int, held: Collection[int] = (), shards_in_pass: int = 100) -> Affinity:
    return Affinity(lambda shard: shard // shards_in_part, held, shards_in_pass, shards_in_part)


def test_of_a_part_that_it_holds_then_of_one_that_nobody_has_in_work() -> None:
    assert choose_shard(b"a", {}, LIVE, 0, 100, affinity=in_parts(4)) == 0
    assert choose_shard(b"b", {0: b"a"}, LIVE, 1, 100, affinity=in_parts(4)) == 4
    owners = {0: b"a", 4: b"b", **dict.fromkeys((1, 2, 3), b"")}
    three = (*LIVE, b"c")
    assert choose_shard(b"a", owners, LIVE, 5, 100, claimed=[0], affinity=in_parts(4, [0])) == 1
    assert choose_shard(b"b", owners, LIVE, 5, 100, claimed=[4], affinity=in_parts(4, [1])) == 5
    assert choose_shard(b"c", owners, three, 5, 100, affinity=in_parts(4)) == 8, "two parts are in work"
    assert choose_shard(b"c", owners, three, 5, 6, affinity=in_parts(4)) == 1, "of what there is"
    assert choose_shard(b"c", owners, three, 5, 5, affinity=in_parts(4)) == 1


def test_it_passes_over_few_and_none_of_the_next_pass() -> None:
    free = dict.fromkeys(range(8), b"")
    assert choose_shard(b"a", free, LIVE, 8, 100, affinity=in_parts(4, [3])) == 0, "enough are free"
    assert choose_shard(b"a", {}, LIVE, 8, 100, affinity=in_parts(4, [3], shards_in_pass=12)) == 8
    assert choose_shard(b"a", {}, LIVE, 8, 100, affinity=in_parts(4, [3], shards_in_pass=13)) == 12


EVENTS = st.tuples(st.sampled_from(["claim", "ahead", "done", "die"]), st.integers(0, 3))


@given(st.integers(1, 20), st.lists(EVENTS), st.integers(0, 5), st.sets(st.integers(0, 9)))
def test_each_is_trained_once_and_in_work_with_one_live_worker(
    shards: int, events: list[tuple[str, int]], shards_in_part: int, held: set[int]
) -> None:
    owners: dict[int, bytes] = {}
    in_work: dict[bytes, list[int]] = {}
    live = [b"%d" % number for number in range(4)]
    started, done = 0, []
    events += [("claim", 0), ("done", 0)] * shards
    for number, (event, who) in enumerate(events):
        worker = live[who]
        if event == "die":
            in_work.pop(worker, None)
            live[who] = b"%d" % (4 + number)
        elif event == "done" and in_work.get(worker):
            shard = in_work[worker].pop(0)
            del owners[shard]
            done.append(shard)
        elif event in ("claim", "ahead"):
            claimed = in_work.setdefault(worker, [])
            shard = choose_shard(
                worker,
                owners,
                live,
                started,
                shards,
                claimed=claimed,
                ahead=event == "ahead" and bool(claimed),
                affinity=in_parts(shards_in_part, held, shards_in_pass=7) if shards_in_part else None,
            )
            if shard is not None:
                assert shard not in done
                assert all(shard not in others for others in in_work.values())
                owners |= dict.fromkeys(range(started, shard), b"")
                started = max(started, shard + 1)
                owners[shard] = worker
                claimed.append(shard)
    assert len(set(done)) == len(done)
    assert {*done, *(shard for claimed in in_work.values() for shard in claimed)} == set(range(shards))


ACTIONS = st.sampled_from(["claim", "lost claim", "ahead", "done", "release", "look", "die", "late claim"])
MODELS = count()


@needs_redis
@given(st.integers(1, 6), st.lists(st.tuples(ACTIONS, st.integers(0, 3)), min_size=10, max_size=60))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_whatever_happens_all_are_trained_once(
    redis_url: str, shards: int, actions: list[tuple[str, int]]
) -> None:
    """Workers die, also with answers under way, and claim after they were taken for dead."""
    with opened_boards() as open_board:
        url = f"{redis_url}?model=queue-{next(MODELS)}"
        boards = [open_board(url) for _ in range(4)]
        boards[0].create("job", b"", shards=shards)
        workers = [board.leases.register("there") for board in boards]
        claimed: list[list[int]] = [[], [], [], []]
        done: set[int] = set()
        dead: list[str] = []

        def claim(who: int, *, ahead: bool = False) -> bool:
            claim = boards[who].queue.claim(workers[who], claimed[who], ahead=ahead)
            if claim is not None:
                assert claim.shard not in done
                assert all(claim.shard not in each for each in claimed)
                claimed[who].append(claim.shard)
            return claim is not None

        def finish(who: int) -> None:
            shard = claimed[who].pop(0)
            assert boards[who].queue.advance(workers[who], shard, 1, len(done) + 1) is not None
            assert boards[who].queue.done(workers[who], shard)
            done.add(shard)

        def die(who: int) -> None:
            boards[who - 1].leases.expire(workers[who])
            dead.append(workers[who])
            claimed[who] = []

        for action, who in actions:
            queue, worker = boards[who].queue, workers[who]
            if action == "claim" or (action == "ahead" and claimed[who]):
                claim(who, ahead=action == "ahead")
            elif action == "lost claim":
                queue.claim(worker, claimed[who])
            elif action == "look":
                queue.gate(worker)
            elif action == "die":
                die(who)
                workers[who] = boards[who].leases.register("there")
            elif action == "late claim":
                for name in dead[-1:]:
                    assert queue.claim(name) is None
                    assert queue._claim_new(name, 0) is None
            elif claimed[who] and action == "done":
                finish(who)
            elif claimed[who]:
                queue.release(worker, claimed[who].pop())
        for _ in range(3 * shards + 3):
            for who in range(4):
                claim(who)
                if claimed[who]:
                    finish(who)
        assert done == set(range(shards))
        view = boards[1].look()
        assert view.finished == shards
        assert [worker.clock for worker in view.workers] == [None] * 4


@needs_redis
class TestQueue:
    """Data shards, and the workers that claim them."""

    def test_in_order(self, board: JobBoard) -> None:
        board.create("job", b"", shards=3)
        first, second, third, idle = (board.leases.register(name) for name in "abcd")
        claims = [board.queue.claim(worker) for worker in (first, second, third)]
        assert [claim and (claim.shard, claim.progress) for claim in claims] == [(0, 0), (1, 0), (2, 0)]
        assert board.queue.claim(idle) is None
        assert board.queue.advance(third, 2, 4, 1)
        view = board.look()
        assert {shard: (s.owner, s.progress) for shard, s in view.unfinished.items()} == {
            0: (first, 0),
            1: (second, 0),
            2: (third, 4),
        }
        assert board.queue.done(first, 0)
        assert board.queue.done(first, 0)  # again, as after a lost answer
        assert board.queue.done(third, 2)
        view = board.look()
        assert (view.started, view.finished, list(view.unfinished)) == (3, 2, [1])
        assert board.look(shards=False).finished == 2
        assert board.look(shards=False).unfinished == {}
        assert board.queue.done(second, 1)
        assert board.look().finished == 3
        assert board.queue.claim(first) is None

    def test_what_is_passed_over_is_free(self, board: JobBoard) -> None:
        board.create("job", b"", shards=8)
        first, second = board.leases.register("a"), board.leases.register("b")
        assert board.queue.claim(first, affinity=in_parts(4)).shard == 0
        assert board.queue.claim(second, affinity=in_parts(4)).shard == 4
        view = board.look()
        assert (view.started, view.finished) == (5, 0)
        assert {shard: each.owner for shard, each in view.unfinished.items()} == {
            0: first, 1: None, 2: None, 3: None, 4: second,
        }  # fmt: skip
        assert board.queue.claim(second, [4], affinity=in_parts(4, [1])).shard == 5
        assert board.queue.claim(board.leases.register("c")).shard == 1

    def test_claims_of_new_ones_ahead_and_what_becomes_free_meanwhile(
        self, url: str, board: JobBoard, boards: Boards
    ) -> None:
        """Those that ask for nothing before they claim notice when something was freed."""
        board.create("job", b"", shards=12)
        other = boards(url)
        other.job()
        fast, slow = board.leases.register("fast"), other.leases.register("slow")
        assert other.queue.claim(slow).shard == 0
        assert board.queue.claim(fast).shard == 1
        assert board.queue.advance(fast, 1, 1, 1)
        assert board.queue.claim(fast, [1], ahead=True).shard == 2
        assert board.queue.advance(fast, 2, 3, 2)
        other.queue.release(slow, 0)
        assert board.queue.advance(fast, 2, 4, 3)
        assert board.queue.claim(fast, [1, 2], ahead=True).shard == 0
        view = board.look()
        assert {shard: (each.owner, each.progress) for shard, each in view.unfinished.items()} == {
            0: (fast, 0), 1: (fast, 1), 2: (fast, 4),
        }  # fmt: skip
        assert board.queue.claim(fast, [0, 1, 2], ahead=True).shard == 3
        assert other.queue.claim(slow).shard == 4
        board.queue.gate(fast)
        other.leases.expire(slow)
        assert board.queue.claim(fast, [0, 1, 2, 3]).shard == 5, "it has not heard of that"
        assert board.queue.claim(fast, [0, 1, 2, 3, 5]).shard == 4
        board.stop()
        assert board.queue.claim(fast, range(6)) is None

    @pytest.mark.parametrize("first_clock", [None, 3])
    def test_a_claim_after_the_job_was_dropped_leaves_nothing(
        self, board: JobBoard, first_clock: int | None
    ) -> None:
        """It writes before it knows: nothing is watched."""
        board.create("job", b"", shards=12)
        worker = board.leases.register("fast")
        assert board.queue.claim(worker).shard == 0
        assert board.queue.advance(worker, 0, 1, 1)
        assert board.queue.claim(worker, [0]).shard == 1
        record = board.queue._record
        record.connection.ask(("DEL", *record.key.all))
        with pytest.raises(JobGoneError):
            board.queue._claim_new(worker, first_clock)
        assert record.connection.ask(("EXISTS", *record.key.all)) == [0]

    def test_many_workers_claim_without_reading_what_all_do(self, redis_url: str, boards: Boards) -> None:
        """All of a job's workers do so at once: those of a large one would keep the board's server busy."""
        board = boards(redis_url)
        board.create("job", b"", shards=9)
        progress, sent = board.queue._record.key.progress, list[bytes]()
        search = b"ZRANGE\r\n$%d\r\n%b\r\n" % (len(progress), progress)

        def searches() -> int:
            """How often all progress was read since this was last asked."""
            found = sum(each.count(search) for each in sent)
            sent.clear()
            return found

        with cut_line(redis_url, on_data=sent.append) as line:
            there = [boards(line.url) for _ in range(4)]
            workers = [each.leases.register("there") for each in there]
            queues = [each.queue for each in there]
            claimed = [[queue.claim(name).shard] for queue, name in zip(queues, workers, strict=True)]
            assert claimed == [[0], [1], [2], [3]]
            assert searches() == 1
            assert queues[0].advance(workers[0], 0, 5, 5)
            for i in range(4):
                claimed[i].append(queues[i].claim(workers[i], claimed[i], ahead=i == 0).shard)
            assert queues[1].claim(workers[1], claimed[1], ahead=True) is None, "the last is left to others"
            assert queues[2].claim(workers[2], claimed[2]).shard == 8
            assert searches() == 0
            assert queues[0].claim(workers[0], claimed[0]) is None
            assert searches() == 1, "for what nobody knows of"
            for name, shard in [(workers[i], shard) for i in (0, 1, 3) for shard in claimed[i]]:
                assert board.queue.done(name, shard)
            assert [queues[i].claim(workers[i]) for i in (0, 1, 3)] == [None, None, None]
            gate = board.queue.gate(workers[2])
            assert (gate.working, gate.least_clock) == (1, 0), "the others no longer have clocks"
            assert searches() == 0
            for _ in range(3):
                assert [queues[i].claim(workers[i]) for i in (0, 1)] == [None, None]
            assert searches() == 1, "each searches once"
            board.queue.release(workers[2], 8)
            assert queues[0].claim(workers[0]).shard == 8
            late = board.leases.register("late")
            assert queues[1].claim(workers[1]) is None
            assert board.queue.claim(late) is None

    def test_a_worker_that_comes_later_begins_at_the_least_clock(self, board: JobBoard) -> None:
        board.create("job", b"", shards=9)
        first, second, third = (board.leases.register(name) for name in "abc")
        assert board.queue.claim(first).shard == 0
        assert board.queue.advance(first, 0, 7, 7)
        assert board.queue.claim(second).clock == 7
        assert board.queue.advance(second, 1, 2, 9)
        claim = board.queue.claim(third)
        assert (claim.shard, claim.progress, claim.clock) == (2, 0, 7)
        assert board.look().clock == 9

    def test_an_entry_of_one_that_has_expired(self, url: str, board: JobBoard, boards: Boards) -> None:
        """Nothing says that its data shard is free; yet it is claimed once no other is left."""
        board.create("job", b"", shards=4)
        dead, heir, idle = (board.leases.register(name) for name in ("dead", "heir", "idle"))
        assert board.queue.claim(heir).shard == 0
        board.leases.expire(dead)
        board.queue.gate(heir)
        assert board.queue.claim(heir, [0]).shard == 1
        late = boards(url)
        assert late.queue._claim_new(dead, 0) is None
        assert board.queue.gate(heir).working == 1, "it has left no clock"
        assert board.queue.claim(heir, [0, 1]).shard == 3
        assert board.queue.claim(heir, [0, 1, 3], ahead=True) is None
        assert board.queue.claim(heir, [0, 1, 3]).shard == 2, "also by one who never has none"
        assert board.queue.claim(idle) is None

    def test_a_stream_whose_workers_always_have_lanes(self, board: JobBoard) -> None:
        """A lane that a worker does not know that it has is not lost."""
        board.create("job", b"", shards=6)
        worker, lanes = board.leases.register("here"), list[int]()
        for number in range(8):
            if number == 3:
                board.queue._claim_new(worker, None)  # as of which the answer is lost
            claim = board.queue.claim(worker, lanes)
            lanes += [] if claim is None else [claim.shard]
        assert sorted(lanes) == list(range(6))

    def test_a_board_with_an_old_snapshot(self, redis_url: str, boards: Boards) -> None:
        """`moves` comes back to a number at which no data shard was free."""
        board, other = boards(redis_url, lease_s=SHORT_S), boards(redis_url)
        board.create("job", b"", shards=1)
        dead, gone = other.leases.register("dead"), other.leases.register("gone")
        here = board.leases.register("here")
        assert other.queue.claim(dead).shard == 0
        record = board.queue._record
        (moves,) = record.ask(("HGET", record.key.job, "moves"))
        other.leases.expire(gone)
        assert board.queue.claim(here) is None
        record.ask(("HSET", record.key.job, "moves", moves))
        other.leases.expire(dead)

        def claim() -> Claim | None:
            board.leases.heartbeat(here)
            return board.queue.claim(here)

        assert until(claim).shard == 0

    def test_an_idle_worker_learns_that_it_has_a_clock(self, redis_url: str, boards: Boards) -> None:
        """For which others wait: from an old snapshot, or as it claimed while its lease had run out."""
        board, brief = boards(redis_url), boards(redis_url, lease_s=0.5)
        board.create("job", b"", shards=2)
        worker, other = brief.leases.register("here"), board.leases.register("other")
        assert brief.leases.heartbeat(worker)
        assert brief.queue.claim(worker).shard == 0
        assert brief.queue.gate(worker).has_clock
        assert board.queue.claim(other).shard == 1
        assert brief.queue.done(worker, 0)
        time.sleep(0.7)
        assert brief.queue.claim(worker) is None
        gate = brief.queue.gate(worker)
        assert (gate.live, gate.has_clock, gate.working) == (True, False, 1)
        record = board.queue._record
        record.ask(("ZADD", record.key.clocks, 0, worker))
        assert brief.leases.heartbeat(worker)
        assert brief.queue.gate(worker).has_clock
        assert brief.queue.claim(worker) is None
        assert not brief.queue.gate(worker).has_clock

    def test_claims_beyond_the_last(self, url: str, board: JobBoard, boards: Boards) -> None:
        """As many workers at once as there are new data shards left: some claim ones that do not exist."""
        board.create("job", b"", shards=5)
        queues = [boards(url).queue for _ in range(3)]
        workers = [board.leases.register(name) for name in "abc"]
        for number, (queue, worker) in enumerate(zip(queues, workers, strict=True)):
            assert queue.claim(worker).shard == number
            queue.gate(worker)
        claims = [queues[i].claim(workers[i], [i]) for i in range(3)]
        assert [claim and claim.shard for claim in claims] == [3, 4, None]
        for shard, worker in enumerate([*workers, *workers[:2]]):
            assert board.queue.done(worker, shard)
        view = board.look()
        assert (view.started, view.finished, view.unfinished) == (5, 5, {})

    def test_many_at_once(self, url: str, board: JobBoard, boards: Boards) -> None:
        """Every data shard goes to one worker, and each worker's come in ascending order."""
        shards, workers = 120, 6
        board.create("job", b"", shards=shards)
        claimed: list[list[int]] = [[] for _ in range(workers)]

        def work(w: int) -> None:
            own = boards(url)
            worker = own.leases.register(f"host {w}")
            while claim := own.queue.claim(worker):
                claimed[w].append(claim.shard)
                assert own.queue.advance(worker, claim.shard, 1, claim.clock + 1)
                assert own.queue.done(worker, claim.shard)
            assert own.leases.heartbeat(worker)

        at_once(*(lambda w=w: work(w) for w in range(workers)))
        assert sorted(shard for own in claimed for shard in own) == list(range(shards))
        assert all(a < b for own in claimed for a, b in pairwise(own))
        assert board.look().finished == shards

    def test_one_board_in_several_threads(self, board: JobBoard) -> None:
        board.create("job", b"", shards=60)
        worker = board.leases.register("here")
        over = Event()

        def renew() -> None:
            while not over.is_set():
                assert board.leases.heartbeat(worker)
                assert board.queue.gate(worker).live

        def work() -> None:
            try:
                for shard in range(60):
                    claim = board.queue.claim(worker)
                    assert claim is not None
                    assert claim.shard == shard
                    assert board.queue.done(worker, shard)
            finally:
                over.set()

        at_once(renew, renew, work)
        assert board.look().finished == 60

    def test_a_claim_whose_answer_was_lost(self, board: JobBoard) -> None:
        board.create("job", b"", shards=5)
        worker = board.leases.register("here")
        assert board.queue.claim(worker).shard == 0
        assert board.queue.claim(worker).shard == 0  # which it does not know of
        assert board.queue.done(worker, 0)
        assert board.queue.claim(worker).shard == 1

    def test_a_lease_that_runs_out(self, url: str, board: JobBoard, boards: Boards) -> None:
        """The shard is handed over with its progress, and its old owner is told so."""
        brief = boards(url, lease_s=SHORT_S)
        board.create("job", b"", shards=2)
        lost = brief.leases.register("lost")
        heir = board.leases.register("heir")
        assert brief.queue.claim(lost).shard == 0
        assert brief.queue.advance(lost, 0, 3, 3)
        until(lambda: [worker.id for worker in brief.look().workers] == [heir])
        assert board.look().unfinished[0].owner is None
        claim = board.queue.claim(heir)
        assert (claim.shard, claim.progress) == (0, 3)
        assert board.look().unfinished[0].owner == heir
        assert not brief.queue.gate(lost).live
        assert not brief.queue.advance(lost, 0, 9, 9)
        assert not brief.queue.done(lost, 0)
        brief.queue.release(lost, 0)
        assert not brief.leases.heartbeat(lost)
        assert brief.queue.claim(lost) is None
        assert board.look().unfinished[0].owner == heir
        assert board.look().unfinished[0].progress == 3
        again = board.leases.register("lost")
        assert again != lost
        assert board.queue.claim(again).shard == 1

    @pytest.mark.parametrize(
        "ask",
        [
            lambda board, worker: board.queue.gate(worker),
            lambda board, worker: board.ranks.gate(worker),
            lambda board, worker: board.queue.claim(worker),
        ],
    )
    def test_everybody_who_asks_notices_the_dead(
        self, url: str, board: JobBoard, boards: Boards, ask: Callable[[JobBoard, str], Any]
    ) -> None:
        brief = boards(url, lease_s=SHORT_S)
        board.create("job", b"", shards=1, ranks=1)
        worker = board.leases.register("here")
        for _ in range(100):  # more than are expired at a time
            brief.leases.register("lost")

        def alone() -> bool:
            ask(brief, worker)
            return board.queue.gate(worker).workers == 1

        until(alone)

    def test_many_workers_watch_all_leases_in_turns(
        self, url: str, board: JobBoard, boards: Boards, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        board.create("job", b"", shards=1)
        monkeypatch.setattr(leases, "_WATCHERS", 0)
        here = [boards(url, lease_s=1.0) for _ in range(6)]
        names = [each.leases.register("here") for each in here]
        boards(url, lease_s=SHORT_S).leases.register("dead")

        def workers() -> int:
            for each, name in zip(here, names, strict=True):
                assert each.leases.heartbeat(name)
                count = each.queue.gate(name).workers
            return count

        end = time.monotonic() + 1.5
        while time.monotonic() < end:
            assert workers() == 7
        monkeypatch.setattr(leases, "_WATCHERS", 2)
        until(lambda: workers() == 6)

    def test_a_heartbeat_renews_the_lease(self, board: JobBoard) -> None:
        board.create("job", b"", shards=1)
        worker = board.leases.register("here")

        def left() -> float:
            (found,) = board.look().workers
            assert (found.id, found.host, found.clock) == (worker, "here", None)
            return found.lease_left_s

        assert LONG_S - 60 < left() <= LONG_S
        time.sleep(0.2)
        before = left()
        assert before < LONG_S - 0.1
        assert board.leases.heartbeat(worker)
        assert left() > before

    def test_expire(self, board: JobBoard) -> None:
        board.create("job", b"", shards=9)
        dead, heir = board.leases.register("dead"), board.leases.register("heir")
        board.queue.claim(dead)
        board.queue.claim(heir)
        board.queue.advance(dead, 0, 2, 2)
        board.leases.expire(dead)
        board.leases.expire(dead)
        assert [worker.id for worker in board.look().workers] == [heir]
        assert not board.queue.advance(dead, 0, 3, 3)  # nobody has taken it, but it will be taken
        assert board.queue.done(heir, 1)
        claim = board.queue.claim(heir)
        assert (claim.shard, claim.progress) == (0, 3)  # what the dead pushed last is pushed

    def test_leave_and_release(self, board: JobBoard) -> None:
        board.create("job", b"", shards=9)
        others = [board.leases.register("a"), board.leases.register("b")]
        first, second = board.leases.register("c"), board.leases.register("d")
        for worker in (*others, first):
            board.queue.claim(worker)
        board.queue.advance(first, 2, 7, 1)
        board.queue.release(first, 2)
        board.queue.release(first, 2)
        board.queue.release(second, 0)  # which is not its own
        assert not board.queue.advance(first, 2, 8, 2)
        assert not board.queue.done(first, 2)
        assert board.look().unfinished[2].owner is None
        claim = board.queue.claim(second)
        assert (claim.shard, claim.progress) == (2, 7)
        for worker in (*others, first):
            board.leases.expire(worker)
        for expected in (2, 0, 1, 3):
            assert board.queue.claim(second).shard == expected
            assert board.queue.done(second, expected)

    def test_nothing_is_claimed_while_stopping(self, board: JobBoard) -> None:
        board.create("job", b"", shards=9)
        worker = board.leases.register("here")
        board.queue.claim(worker)
        board.stop()
        assert board.queue.claim(worker) is None
        assert board.queue.advance(worker, 0, 1, 1)
        assert board.queue.gate(worker).state == "stopping"

    def test_numbers_only_grow(self, board: JobBoard) -> None:
        board.create("job", b"", shards=1)
        worker = board.leases.register("here")
        board.queue.claim(worker)
        assert board.queue.advance(worker, 0, 5, 12)
        assert board.queue.advance(worker, 0, 4, 11)
        view = board.look()
        assert (view.unfinished[0].progress, view.workers[0].clock, view.clock) == (5, 12, 12)

    def test_restore(self, url: str, board: JobBoard, boards: Boards) -> None:
        board.create("job", b"", shards=10_000, ranks=2)
        board.restore({7: 3, 9_989: 1}, [4, -1], started=9_990)
        view = board.look()
        assert (view.started, view.finished) == (9_990, 9_988)
        assert [(rank.prepared, rank.pushed) for rank in view.ranks] == [(4, 4), (-1, -1)]
        worker = boards(url).leases.register("here")
        for expected in ((7, 3), (9_989, 1), (9_990, 0)):
            claim = board.queue.claim(worker)
            assert (claim.shard, claim.progress) == expected
            assert board.queue.done(worker, claim.shard)
        with pytest.raises(StoreError, match="create it anew"):
            board.restore({}, started=0)

    def test_restore_after_the_beginning(self, board: JobBoard) -> None:
        board.create("job", b"", shards=10)
        board.queue.claim(board.leases.register("here"))
        with pytest.raises(StoreError, match="create it anew"):
            board.restore({0: 1})


class CountingLeases(Leases):
    """Counts how often it is seen: once for each attempt at a claim."""

    attempts = 0

    def see(self, leases: Any, lengths: Any) -> Any:
        self.attempts += 1
        return super().see(leases, lengths)


def test_what_ends_while_it_is_claimed_is_not_begun_again(boards: Boards, redis_url: str) -> None:
    """Its worker has expired, and says at this very moment that the last push has arrived."""
    board = boards(redis_url)
    board.create("j", b"", shards=3)
    dead = board.leases.register("dead")
    assert board.queue.claim(dead).shard == 0
    board.leases.expire(dead)

    class EndsMeanwhile(CountingLeases):
        def see(self, leases: Any, lengths: Any) -> Any:
            if self.attempts == 0:
                assert board.queue.done(dead, 0)
            return super().see(leases, lengths)

    with closing(
        JobRecord(parse_redis_url(redis_url), lease_s=LONG_S, timeout_s=10, patience_s=30)
    ) as record:
        record.find()
        leases = EndsMeanwhile(record)
        worker, leases._next_check = leases.register("heir"), float("inf")
        assert ShardQueue(record, leases).claim(worker).shard == 1
        assert leases.attempts == 2
    view = board.look()
    assert (view.finished, list(view.unfinished)) == (1, [1])


def test_claims_are_not_held_up_by_heartbeats(boards: Boards, redis_url: str) -> None:
    """They watched the key that each heartbeat writes."""
    boards(redis_url).create("j", b"", shards=200)
    over, beats = Event(), [0, 0]

    def beat(number: int) -> None:
        board = boards(redis_url)
        board.job()
        worker = board.leases.register("h")
        while not over.is_set():
            assert board.leases.heartbeat(worker)
            beats[number] += 1

    threads = [Thread(target=beat, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    with closing(
        JobRecord(parse_redis_url(redis_url), lease_s=LONG_S, timeout_s=10, patience_s=30)
    ) as record:
        record.find()
        leases = CountingLeases(record)
        queue, worker = ShardQueue(record, leases), leases.register("h")
        until(lambda: min(beats) > 10)
        began, before = time.monotonic(), sum(beats)
        leases.attempts = 0
        claimed = [queue.claim(worker, range(number)) for number in range(200)]
        seconds, beaten = time.monotonic() - began, sum(beats) - before
        over.set()
        for thread in threads:
            thread.join()
    assert [claim and claim.shard for claim in claimed] == list(range(200))
    assert beaten / seconds > 500
    assert leases.attempts <= 210
