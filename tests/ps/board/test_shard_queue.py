"""The rule by which workers choose data shards."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ps.board.shard_queue import choose_shard

LIVE = (b"a", b"b")


def test_the_next_of_the_queue() -> None:
    assert choose_shard(b"a", {}, LIVE, begun=0, shards=3) == 0
    assert choose_shard(b"a", {1: b"b"}, LIVE, begun=2, shards=3) == 2


def test_what_is_free_comes_first_the_lowest_of_it() -> None:
    owners = {0: b"b", 4: b"dead", 7: b"", 9: b"dead"}
    assert choose_shard(b"a", owners, LIVE, begun=10, shards=20) == 4


def test_its_own_comes_before_that() -> None:
    assert choose_shard(b"a", {3: b"dead", 5: b"a"}, LIVE, begun=6, shards=9) == 5


def test_none_is_left() -> None:
    assert choose_shard(b"a", {}, LIVE, begun=3, shards=3) is None
    assert choose_shard(b"a", {2: b"b"}, LIVE, begun=3, shards=3) is None


@given(st.integers(1, 8), st.lists(st.tuples(st.sampled_from(["claim", "done", "die"]), st.integers(0, 3))))
def test_each_is_trained_once_and_in_work_with_one_live_worker(
    shards: int, events: list[tuple[str, int]]
) -> None:
    owners: dict[int, bytes] = {}
    in_work: dict[bytes, int] = {}
    live = [b"%d" % number for number in range(4)]
    begun, done = 0, []
    events += [("claim", 0), ("done", 0)] * shards
    for number, (event, who) in enumerate(events):
        worker = live[who]
        if event == "die":
            in_work.pop(worker, None)
            live[who] = b"%d" % (4 + number)
        elif event == "done" and worker in in_work:
            shard = in_work.pop(worker)
            del owners[shard]
            done.append(shard)
        elif event == "claim" and worker not in in_work:
            shard = choose_shard(worker, owners, live, begun, shards)
            if shard is not None:
                assert shard not in done
                assert shard not in in_work.values()
                begun = max(begun, shard + 1)
                owners[shard], in_work[worker] = worker, shard
    assert len(set(done)) == len(done)
    assert {*done, *in_work.values()} == set(range(shards))
