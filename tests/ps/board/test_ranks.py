"""How workers share ranks, and claim and announce them on the board."""

from __future__ import annotations

import re
from threading import Barrier

from hypothesis import given
from hypothesis import strategies as st

from ctr.ps.board.job_board import JobBoard
from ctr.ps.board.ranks import share_ranks
from tests.ps.job_boards import SHORT_S, Boards, at_once, until
from tests.ps.redis_servers import needs_redis


@given(
    ranks=st.integers(1, 12),
    events=st.lists(st.tuples(st.sampled_from(["join", "die", "claim"]), st.integers(0, 9)), max_size=40),
    reserve=st.booleans(),
)
def test_ranks_are_shared_evenly_whoever_comes_and_goes(
    ranks: int, events: list[tuple[str, int]], reserve: bool
) -> None:
    owners: dict[int, str] = {}
    live: list[str] = []

    def claim(worker: str, *, reserve_untouched: bool) -> bool:
        before = sum(owner == worker for owner in owners.values())
        changes = share_ranks(worker, owners, ranks, live, reserve_untouched=reserve_untouched)
        given_up = [rank for rank, owner in changes.items() if owner == ""]
        assert not any(owners.get(rank) in live for rank in changes if rank not in given_up)
        assert all(owners[rank] == worker for rank in given_up)
        assert set(changes.values()) <= {worker, ""}
        assert before - len(given_up) >= min(before, 1)
        owners.update(changes)
        return bool(changes)

    for number, (event, who) in enumerate(events):
        if event == "join":
            live.append(f"worker {number}")
        elif live and event == "die":
            live.remove(live[who % len(live)])
        elif live:
            claim(live[who % len(live)], reserve_untouched=reserve)
    if not live:
        assert share_ranks("nobody", owners, ranks, live, reserve_untouched=False) == {}
        return
    for _ in range(4 * ranks + 2):  # then all ask now and then
        changes = [claim(worker, reserve_untouched=False) for worker in live]
    assert not any(changes)
    assert set(owners.values()) <= set(live)
    counts = [list(owners.values()).count(worker) for worker in live]
    assert len(owners) == ranks
    assert max(counts) - min(counts) <= 1


@needs_redis
class TestRanks:
    """Rounds."""

    def test_each_worker_gets_one(self, board: JobBoard) -> None:
        board.create("job", b"", shards=9, ranks=3)
        workers = [board.leases.register(f"host {w}") for w in range(4)]
        assert [board.ranks.claim(worker) for worker in workers] == [[0], [1], [2], []]
        assert [board.ranks.claim(worker) for worker in workers] == [[0], [1], [2], []]
        assert [rank.owner for rank in board.look().ranks] == workers[:3]
        assert board.ranks.claim("nobody") == []

    def test_many_at_once(self, url: str, board: JobBoard, boards: Boards) -> None:
        board.create("job", b"", shards=9, ranks=8)
        owned: list[int] = []

        def work() -> None:
            own = boards(url)
            owned.extend(own.ranks.claim(own.leases.register("here")))

        at_once(*[work] * 8)
        assert sorted(owned) == list(range(8))

    def test_ranks_of_workers_that_do_not_come(self, url: str, board: JobBoard, boards: Boards) -> None:
        board.create("job", b"", shards=9, ranks=3)
        first, second = board.leases.register("a"), board.leases.register("b")
        assert board.ranks.claim(first) == [0]
        assert board.ranks.claim(first) == [0]  # the others are kept for those on their way
        assert board.ranks.claim(second) == [1]
        impatient = boards(url, lease_s=SHORT_S)
        assert until(lambda: len(impatient.ranks.claim(first)) == 2)
        assert board.ranks.claim(first) == [0, 2]

    def test_takeover_and_return(self, board: JobBoard) -> None:
        board.create("job", b"", shards=9, ranks=2)
        dead, heir = board.leases.register("dead"), board.leases.register("heir")
        assert (board.ranks.claim(dead), board.ranks.claim(heir)) == ([0], [1])
        board.ranks.prepare(0, 4, b"update")
        board.ranks.announce_prepared(0, 4)
        board.leases.expire(dead)
        assert board.ranks.claim(dead) == []
        assert board.look().ranks[0].owner is None
        assert board.ranks.claim(heir) == [0, 1]
        assert board.ranks.gate(heir).prepared == (4, -1)
        assert board.ranks.prepare(0, 4, b"another") == b"update"
        newcomer = board.leases.register("newcomer")
        assert board.ranks.claim(newcomer) == []
        assert board.ranks.claim(heir) == [0]
        assert board.ranks.claim(heir) == [0]  # the free one is for the newcomer
        assert board.ranks.claim(newcomer) == [1]

    def test_the_first_prepared_update_counts(self, url: str, board: JobBoard, boards: Boards) -> None:
        board.create("job", b"", shards=9, ranks=2)
        late = boards(url)
        assert board.ranks.prepared(1, 0) is None
        assert board.ranks.prepare(1, 0, b"first") == b"first"
        assert late.ranks.prepare(1, 0, b"second") == b"first"
        assert board.ranks.prepare(1, 0, b"first") == b"first"
        assert late.ranks.prepared(1, 0) == b"first"
        assert board.ranks.prepared(0, 0) is None
        assert board.ranks.prepare(1, 1, b"") == b""
        assert late.ranks.prepare(1, 1, b"late") == b""
        assert late.ranks.prepared(1, 0) is None
        assert late.ranks.prepare(1, 0, b"later still") is None
        assert late.ranks.prepared(1, 0) is None
        assert board.ranks.prepared(1, 1) == b""
        assert board.ranks.prepare(1, 7, b"x" * 3_000_000) == b"x" * 3_000_000

    def test_many_prepare_at_once(self, url: str, board: JobBoard, boards: Boards) -> None:
        board.create("job", b"", shards=9, ranks=1)
        counted: list[list[bytes | None]] = [[] for _ in range(4)]
        together = Barrier(4)

        def work(w: int) -> None:
            own = boards(url)
            for round_ in range(50):
                together.wait(30)
                counted[w].append(own.ranks.prepare(0, round_, b"%d of %d" % (round_, w)))

        at_once(*(lambda w=w: work(w) for w in range(4)))
        for round_, updates in enumerate(zip(*counted, strict=True)):
            assert len(set(updates) - {None}) == 1
            assert re.fullmatch(b"%d of [0-3]" % round_, next(each for each in updates if each is not None))

    def test_announcements_only_grow(self, board: JobBoard) -> None:
        board.create("job", b"", shards=9, ranks=2)
        worker = board.leases.register("here")
        for round_ in (2, 3, 2):
            board.ranks.announce_prepared(0, round_)
            board.ranks.announce_pushed(1, round_ + 10)
        gate = board.ranks.gate(worker)
        assert (gate.prepared, gate.pushed) == ((3, 13), (-1, 13))  # what is pushed was prepared
        assert (gate.state, gate.live) == ("running", True)
        assert not board.ranks.gate("nobody").live
        assert [(rank.prepared, rank.pushed) for rank in board.look().ranks] == [(3, -1), (13, 13)]
