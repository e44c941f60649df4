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


def test_of_its_own_those_that_it_has_never_heard_of() -> None:
    owners = {3: b"a", 5: b"a"}
    assert choose_shard(b"a", owners, LIVE, begun=6, shards=9, held=[3]) == 5
    assert choose_shard(b"a", owners, LIVE, begun=6, shards=9, held=[5, 3]) == 6
    assert choose_shard(b"a", owners, LIVE, begun=9, shards=9, held=[5], ahead=True) == 3


def test_ahead_it_leaves_one_for_each_of_the_others() -> None:
    owners = {4: b"b", 5: b"dead", 7: b"a"}
    assert choose_shard(b"a", owners, LIVE, begun=8, shards=9, held=[7], ahead=True) == 5
    assert choose_shard(b"a", owners, LIVE, begun=8, shards=8, held=[7], ahead=True) is None
    assert choose_shard(b"a", owners, LIVE, begun=8, shards=8, held=[7]) == 5
    assert choose_shard(b"a", {0: b"a"}, [b"a"], begun=1, shards=2, held=[0], ahead=True) == 1, "alone"


def test_none_is_left() -> None:
    assert choose_shard(b"a", {}, LIVE, begun=3, shards=3) is None
    assert choose_shard(b"a", {2: b"b"}, LIVE, begun=3, shards=3) is None


EVENTS = st.tuples(st.sampled_from(["claim", "ahead", "done", "die"]), st.integers(0, 3))


@given(st.integers(1, 8), st.lists(EVENTS))
def test_each_is_trained_once_and_in_work_with_one_live_worker(
    shards: int, events: list[tuple[str, int]]
) -> None:
    owners: dict[int, bytes] = {}
    in_work: dict[bytes, list[int]] = {}
    live = [b"%d" % number for number in range(4)]
    begun, done = 0, []
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
            held = in_work.setdefault(worker, [])
            shard = choose_shard(
                worker, owners, live, begun, shards, held=held, ahead=event == "ahead" and bool(held)
            )
            if shard is not None:
                assert shard not in done
                assert all(shard not in others for others in in_work.values())
                begun = max(begun, shard + 1)
                owners[shard] = worker
                held.append(shard)
    assert len(set(done)) == len(done)
    assert {*done, *(shard for held in in_work.values() for shard in held)} == set(range(shards))
