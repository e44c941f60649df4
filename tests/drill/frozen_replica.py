"""A primary that dies as a worker waits for its frozen replica, and comes back with an old snapshot.

The worker has lost pushes that it does not keep any more. So it begins with the data shard again, and every
push of it has to count once. `python -m tests.drill.frozen_replica --runs 50` repeats it.
"""

from __future__ import annotations

import argparse
from collections import Counter
from contextlib import closing
from threading import Event, Thread
from time import sleep

import numpy as np
from redis import ResponseError

from ctr.features.threads import Background
from ctr.ps import Outcome, PackedPush, RedisSession, RedisSessions, RedisStore, parse_redis_url
from ctr.ps.partitions import Bools
from tests.ps.breakable_redis import BreakableRedis, BreakableServer
from tests.ps.redis_servers import eventually

BITS = 12
SLOTS = np.arange(0, 1 << BITS, 7, dtype=np.uint32)
CHUNKS = 12
LAST = CHUNKS - 1


def train(session: RedisSession, first: int, end: int, arrived: list[int]) -> None:
    """Push these chunks of the data shard, each of which adds 1 to every slot; note which have arrived."""
    for number in range(first, end):
        pulled, delta = session.pull(SLOTS, number, number), np.tile(np.float32([0, 1]), (SLOTS.size, 1))
        session.wait(pulled)
        sent = session.send(session.push(pulled, delta, number))
        if sent and (number < LAST or session.close() is Outcome.ARRIVED):
            arrived.append(number)


def take_snapshot(server: BreakableServer) -> None:
    """Let the server keep what it holds now, once it has copied it for its replica."""

    def saved() -> bool:
        try:
            return bool(server.call("SAVE"))
        except ResponseError:  # it is still copying
            return False

    eventually(saved)


def come_back(primary: BreakableServer, replica: BreakableServer, away_s: float) -> None:
    """Start the primary again, followed by its replica, which freezes at once: WAIT lasts again."""
    sleep(away_s)
    primary.restart()
    replica.thaw()
    eventually(lambda: primary.call("INFO", "replication")["connected_slaves"])
    replica.freeze()


def run(away_s: float) -> tuple[set[float], set[int], list[int]]:
    """How often the chunks count in the slots, the watermarks, and the chunks that were said to arrive."""
    with BreakableRedis(replicas=1) as servers:
        primary, replica = servers.nodes[0]
        url, arrived, died = parse_redis_url(servers.url), list[int](), Event()

        def push(push: PackedPush, only: Bools | None) -> list[int]:
            behind = store.push_packed(push, only)
            if push.token is not None and push.token.number == LAST and not died.is_set():
                primary.kill()
                died.set()
            return behind

        with closing(RedisStore(url, bits=BITS, width=2)) as store:
            worker = RedisSessions(store, "job", push=push)
            session = worker.begin(0)
            assert session.first == 0
            take_snapshot(primary)
            train(session, 0, LAST, arrived)
            assert worker.wait_replicated()  # so that only the last few pushes are kept
            replica.freeze()
            training = Background("trainer").submit(train, session, LAST, CHUNKS, arrived)
            assert died.wait(30.0)
            returning = Thread(target=come_back, args=(primary, replica, away_s))
            returning.start()
            try:
                training.result()
                assert session.outcome is Outcome.LOST
                session = worker.begin(0)
                train(session, session.first, CHUNKS, arrived)
            finally:
                returning.join()
            sums, marks = store.pull(SLOTS)[:, 1], store.applied("job", 0)
            return set(sums.tolist()), set(marks.tolist()), arrived


def main() -> None:
    """Count the outcomes of several runs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--away", type=float, default=5.0, help="seconds until the primary is back")
    chosen = parser.parse_args()
    outcomes: Counter[str] = Counter()
    for _ in range(chosen.runs):
        sums, marks, arrived = run(chosen.away)
        last = arrived.count(LAST)
        outcomes[f"{sums} of {CHUNKS} pushes in every slot, watermarks {marks}, {last} last arrived"] += 1
    for outcome, runs in outcomes.items():
        print(f"{runs} of {chosen.runs} runs: {outcome}")


if __name__ == "__main__":
    main()
