"""Many freezes in little time: independent servers, each frozen again and again while clients push."""

from __future__ import annotations

import random
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from threading import Event
from time import monotonic, sleep

import numpy as np

from ctr.ps import RedisSessions, RedisStore, parse_redis_url
from tests.drill.ledger import Ledger, LedgerWriter, Push, went_on
from tests.drill.proof import Proof, StoreSums, prove
from tests.ps.breakable_redis import BreakableRedis, BreakableServer

_MOST_SERVERS = 20
_BITS = 16
_SLOTS = 400  # of a push
_PAUSE_S = 0.02  # between pushes: all servers share the processor
_TIMEOUTS_S = (2.0, 10.0)
"""Of the pushers of one server: one gives a push up and asks what became of it, the other waits."""
_JOB = "freezes"


@dataclass(slots=True)
class FreezeReport:
    """What many freezes did."""

    freezes: int = 0
    in_flight: int = 0
    """Those of them that caught a push between its sending and its acknowledgement."""
    servers: int = 0
    seconds: float = 0.0
    recoveries_s: list[float] = field(default_factory=list)
    """From each thaw to the first push that was acknowledged since."""
    proofs: list[Proof] = field(default_factory=list)
    """One per server."""
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        pushes = sum(proof.pushes for proof in self.proofs)
        most = f"; pushes went on at most {max(self.recoveries_s):.2f} s later" if self.recoveries_s else ""
        return (
            f"{'WRONG' if self.problems else 'right'} ({self.seconds:.0f} s, {self.servers} servers, "
            f"{pushes:,} pushes; {self.in_flight} of {self.freezes} freezes caught a push{most})"
        )


def freeze_servers(
    count: int,
    seed: str,
    folder: Path,
    *,
    freeze_s: float,
    stop: Event,
) -> FreezeReport:
    """Freeze servers `count` times in all, side by side, and prove that each has every push once.

    Every server has two clients that push without end, each with a ledger in `folder`, and there are up to
    20 servers: 100 freezes of 7 s take 40 s.
    """
    started = monotonic()
    servers = min(count, _MOST_SERVERS)
    report = FreezeReport(servers=servers)
    with ExitStack() as opened, ThreadPoolExecutor(max(servers, 1)) as pool:
        trials = []
        for number in range(servers):
            server = opened.enter_context(BreakableRedis())
            trial = _Trial(server, folder / f"server-{number}", random.Random(f"{seed}:{number}"))
            opened.callback(trial.close)
            trials.append(trial)
        share = [count // servers + (number < count % servers) for number in range(servers)]
        futures = [
            pool.submit(trial.run, share[number], freeze_s, stop) for number, trial in enumerate(trials)
        ]
        for future, trial in zip(futures, trials, strict=True):
            future.result()
            trial.evaluate(report)
    report.seconds = monotonic() - started
    return report


class _Trial:
    """One server, its two clients, and its freezes."""

    def __init__(self, servers: BreakableRedis, folder: Path, chosen: random.Random) -> None:
        folder.mkdir(parents=True)
        self._server: BreakableServer = servers.servers[0]
        self._chosen = chosen
        self._folder = folder
        self._over = Event()
        self._freezes: list[tuple[float, float]] = []
        self._arrived = [0] * len(_TIMEOUTS_S)
        """Pushes of each client that have arrived."""
        self._sending = [False] * len(_TIMEOUTS_S)
        """Whether a push of each client is on its way."""
        url = parse_redis_url(servers.url)
        self._stores = [
            RedisStore(url, bits=_BITS, width=2, join=number > 0, timeout_s=timeout_s)
            for number, timeout_s in enumerate(_TIMEOUTS_S)
        ]

    def run(self, count: int, freeze_s: float, stop: Event) -> None:
        """Freeze the server `count` times while both clients push. Raises what ended a client."""
        with ThreadPoolExecutor(len(self._stores)) as pool:
            clients = [pool.submit(self._push, number) for number in range(len(self._stores))]
            try:
                for _ in range(count):
                    self._await_pushes(clients, stop)
                    if stop.wait(self._chosen.random() / 4):
                        break
                    self._await_sending(clients, stop)
                    self._server.freeze()
                    frozen = monotonic()
                    stop.wait(freeze_s)
                    self._freezes.append((frozen, monotonic()))
                    self._server.thaw()
            finally:
                self._server.thaw()
                self._over.set()
            for client in clients:
                client.result()

    def _await_pushes(self, clients: Sequence[Future[None]], stop: Event) -> None:
        """Wait until every client has got a push through, so that none is at one push for all of the time."""
        wanted = [arrived + 2 for arrived in self._arrived]
        while any(arrived < least for arrived, least in zip(self._arrived, wanted, strict=True)):
            if any(client.done() for client in clients) or stop.wait(0.01):
                return

    def _await_sending(self, clients: Sequence[Future[None]], stop: Event) -> None:
        """Wait until a push is on its way, so that the freeze catches it."""
        while not any(self._sending):
            if any(client.done() for client in clients) or stop.wait(0.001):
                return

    def evaluate(self, report: FreezeReport) -> None:
        """Compare the server with the ledgers of its clients."""
        pushes = Ledger(self._folder).read()
        store = self._stores[0]
        dumps = (store.dumps.take(p) for p in range(store.partitions.count))
        proof = prove(pushes, StoreSums.of(dumps, store.partitions, _JOB), owed=_owed(pushes))
        report.proofs.append(proof)
        report.problems += [f"server {self._folder.name}: {problem}" for problem in proof.problems]
        for frozen, thawed in self._freezes:
            report.freezes += 1
            report.in_flight += any(
                push.sent < frozen and (push.acknowledged or thawed) >= thawed for push in pushes
            )
            at = went_on(pushes, frozen)
            if at is None:
                report.problems.append(f"server {self._folder.name}: no push arrived after a freeze")
            else:
                report.recoveries_s.append(at - thawed)

    def close(self) -> None:
        """Close all connections."""
        for store in self._stores:
            store.close()

    def _push(self, client: int) -> None:
        """Push random numbers to random slots until it is over."""
        store = self._stores[client]
        numbers = np.random.default_rng([self._chosen.getrandbits(32), client])
        ledger = LedgerWriter(store, self._folder / f"client-{client}.jsonl")
        sessions = RedisSessions(store, _JOB, push=ledger)
        session = sessions.join(client, -1)
        for chunk in count():
            is_over = self._over.is_set()  # then one push more, so that one is sent after the last freeze
            slots = np.unique(numbers.integers(0, 1 << _BITS, _SLOTS, dtype=np.uint32))
            # Few enough for a slot not to reach its limit, where a push adds less than the ledger says.
            increments = numbers.integers(-(1 << 20), 1 << 20, slots.size) << 32
            increments += numbers.integers(0, 1 << 12, slots.size)
            push = session.push_packed(slots, increments, chunk)
            self._sending[client] = True
            session.send(push)
            self._sending[client] = False
            self._arrived[client] += 1
            if is_over:
                return
            sleep(_PAUSE_S)


def _owed(pushes: Sequence[Push]) -> set[tuple[int, int]]:
    """All that was ever begun: the clients ended in order."""
    return {(push.shard, push.chunk) for push in pushes}
