"""The rule by which workers share ranks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ps.board.ranks import share_ranks


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
        share = share_ranks(worker, owners, ranks, live, reserve_untouched=reserve_untouched)
        assert not any(owners.get(rank) in live for rank in share.take)
        assert all(owners[rank] == worker for rank in share.give)
        assert before - len(share.give) >= min(before, 1)
        owners.update(dict.fromkeys(share.take, worker))
        owners.update(dict.fromkeys(share.give, ""))
        return bool(share.take or share.give)

    for number, (event, who) in enumerate(events):
        if event == "join":
            live.append(f"worker {number}")
        elif live and event == "die":
            live.remove(live[who % len(live)])
        elif live:
            claim(live[who % len(live)], reserve_untouched=reserve)
    if not live:
        assert share_ranks("nobody", owners, ranks, live, reserve_untouched=False).take == ()
        return
    for _ in range(4 * ranks + 2):  # then all ask now and then
        changes = [claim(worker, reserve_untouched=False) for worker in live]
    assert not any(changes)
    assert set(owners.values()) <= set(live)
    counts = [list(owners.values()).count(worker) for worker in live]
    assert len(owners) == ranks
    assert max(counts) - min(counts) <= 1
