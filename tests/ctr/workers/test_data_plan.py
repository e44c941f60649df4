"""Which rows are whose, and how many examples a position comes to."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ctr.distributed.position import JobPosition
from ctr.features import BadRows
from ctr.workers.data_plan import DataPlan, shard_chunks_for

small = st.integers(1, 7)


@st.composite
def plans(draw: st.DrawFn, *, rounds: bool = False) -> DataPlan:
    """Plans of jobs that go by clocks, or in rounds."""
    rows, chunk, passes = draw(st.integers(1, 60)), draw(small), draw(st.integers(1, 3))
    if rounds:
        return DataPlan(rows, chunk, 1, passes, draw(small))
    return DataPlan(rows, chunk, draw(small), passes)


def chunks_of(plan: DataPlan, shard: int, bad: set[int]) -> list[int]:
    """How many examples each chunk of a data shard has, as a reader deals them out."""
    good = [row for row in range(*plan.rows_of(shard)) if row not in bad]
    return [len(good[first : first + plan.chunk]) for first in range(0, len(good), plan.chunk)]


@given(plans())
def test_every_row_is_in_one_data_shard_per_pass(plan: DataPlan) -> None:
    found = Counter(
        (plan.pass_of(shard), row) for shard in range(plan.shards) for row in range(*plan.rows_of(shard))
    )
    assert found == Counter((pass_, row) for pass_ in range(plan.passes) for row in range(plan.rows))
    assert all(plan.chunks_of(s) == len(chunks_of(plan, s, set())) for s in range(plan.shards))


@given(plans(rounds=True))
def test_ranks_share_the_chunks_in_their_order(plan: DataPlan) -> None:
    rounds = [range(plan.rounds_of(rank)) for rank in range(plan.ranks)]
    places = {plan.place(rank, round_): round_ for rank in range(plan.ranks) for round_ in rounds[rank]}
    assert sorted(places) == list(range(plan.shards))
    assert [places[shard] for shard in range(plan.shards)] == sorted(places.values())
    sizes = Counter(places.values())
    assert all(plan.peers(round_) == size for round_, size in sizes.items())


def skipped(bad: set[int], passes: set[tuple[int, int]]) -> BadRows:
    """As workers meet them that read these rows in a pass, those of a data shard."""
    met = BadRows()
    for start, stop in sorted(passes):
        rows = np.array(sorted(row for row in bad if start <= row < stop), np.int64)
        if rows.size:
            met.add(start, rows, str)
    return met


@given(plans(), st.sets(st.integers(0, 60)), st.sets(st.integers(0, 60)), st.data())
def test_examples_of_a_position(
    plan: DataPlan, bad: set[int], held_out: set[int], data: st.DataObject
) -> None:
    bad -= held_out
    counts = [len(held_out & set(range(*plan.rows_of(shard)))) for shard in range(plan.shards_in_pass)]
    plan = replace(plan, held_out=sum(counts), held_out_of_shards=tuple(counts))
    begun = data.draw(st.integers(0, plan.shards))
    unfinished = data.draw(st.sets(st.integers(0, begun - 1))) if begun else set()
    progress = {shard: data.draw(st.integers(0, plan.chunks_of(shard))) for shard in unfinished}
    expected = [0] * plan.passes
    for shard in range(begun):
        expected[plan.pass_of(shard)] += sum(chunks_of(plan, shard, bad | held_out)[: progress.get(shard)])
    position = JobPosition(begun, progress, ())
    shards = {plan.rows_of(shard) for shard in range(plan.shards)}
    assert position.examples(plan, skipped(bad, shards)) == expected
    assert JobPosition.from_json(position.to_json()) == position


@given(plans(rounds=True), st.sets(st.integers(0, 60)), st.data())
def test_examples_of_a_position_between_rounds(plan: DataPlan, bad: set[int], data: st.DataObject) -> None:
    rounds = data.draw(st.integers(0, plan.rounds_of(0)))
    ranks = tuple(min(rounds, plan.rounds_of(rank)) - 1 for rank in range(plan.ranks))
    expected = [0] * plan.passes
    for shard in range(min(rounds * plan.ranks, plan.shards)):
        expected[plan.pass_of(shard)] += sum(row not in bad for row in range(*plan.rows_of(shard)))
    position = JobPosition(0, {}, ranks)
    shards = {plan.rows_of(shard) for shard in range(plan.shards)}
    assert position.examples(plan, skipped(bad, shards)) == expected
    assert position.passes(plan) == max(
        [1] + [i + 1 for i, count in enumerate(position.examples(plan)) if count]
    )


def test_data_shards_are_small_enough_for_all_to_end_together() -> None:
    assert shard_chunks_for(1_000_000, 10_000, 1) == 64
    assert shard_chunks_for(1_000_000, 10_000, 4) == 4
    assert shard_chunks_for(1_000, 10_000, 4) == 1
    assert shard_chunks_for(10**12, 10_000, 4) == 64
